"""L4, I2: the file system that a wasm sandbox sees, which is all in memory and bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.engines.wasm.wasi import abi
from belljar.engines.wasm.wasi.abi import WasiError
from belljar.engines.wasm.wasi.files import File, FileSystem, Folder, Quota


def system(*, disk_bytes: int = 1000, disk_files: int = 20) -> tuple[FileSystem, Folder]:
    made = FileSystem(Quota(disk_bytes=disk_bytes, disk_files=disk_files))
    made.folder("/data/input", frozen=True)
    return made, made.folder("/workspace")


def new(files: FileSystem, folder: Folder, path: str) -> File:
    parent, name, _ = files.parent(folder, path)
    return files.create(parent, name)


def test_bytes_are_bounded_and_come_back_when_a_file_goes() -> None:
    files, workspace = system(disk_bytes=100)
    file = new(files, workspace, "a")
    assert files.write(file, 0, b"x" * 80) == 80
    assert files.write(file, 80, b"x" * 80) == 20, "what fits is written"
    with pytest.raises(WasiError) as full:
        files.write(file, 100, b"x")
    assert full.value.errno == abi.ENOSPC
    files.remove(workspace, "a")
    assert files.quota.bytes_left == 100


def test_a_removed_file_that_is_open_still_counts() -> None:
    files, workspace = system(disk_bytes=100)
    file = new(files, workspace, "a")
    files.opened(file)
    files.write(file, 0, b"x" * 60)
    files.remove(workspace, "a")
    assert files.quota.bytes_left == 40
    files.closed(file)
    assert files.quota.bytes_left == 100


def test_a_hole_counts_like_content_and_a_huge_one_is_refused() -> None:
    files, workspace = system(disk_bytes=100)
    file = new(files, workspace, "a")
    for size in (101, 1 << 40, 1 << 62):
        with pytest.raises(WasiError) as full:
            files.resize(file, size)
        assert full.value.errno == abi.ENOSPC
        with pytest.raises(WasiError):
            files.write(file, size, b"x")
    assert file.size == 0
    files.write(file, 50, b"x")
    assert bytes(file.data) == bytes(50) + b"x"
    assert files.quota.bytes_left == 49


def test_names_are_bounded_whatever_they_name() -> None:
    files, workspace = system(disk_files=4)
    new(files, workspace, "a")
    files.make_folder(workspace, "b")
    files.make_symlink("a", workspace, "c")
    files.make_link(files.find(workspace, "a"), workspace, "d")
    for one_more in (
        lambda: new(files, workspace, "e"),
        lambda: files.make_folder(workspace, "e"),
        lambda: files.make_symlink("a", workspace, "e"),
        lambda: files.make_link(files.find(workspace, "a"), workspace, "e"),
    ):
        with pytest.raises(WasiError) as full:
            one_more()
        assert full.value.errno == abi.ENOSPC
    files.remove_folder(workspace, "b")
    new(files, workspace, "e")


def test_the_root_and_the_inputs_cannot_be_changed() -> None:
    files, workspace = system()
    files.place(files.folder("/data/input", frozen=True), "sub/a.txt")
    new(files, workspace, "mine")
    for change in (
        lambda: new(files, files.root, "new"),
        lambda: new(files, workspace, "/data/input/new"),
        lambda: new(files, workspace, "/data/input/sub/new"),
        lambda: files.make_folder(workspace, "/new"),
        lambda: files.make_symlink("/etc", workspace, "/data/input/link"),
        lambda: files.remove(workspace, "/data/input/sub/a.txt"),
        lambda: files.remove_folder(workspace, "/workspace"),
        lambda: files.rename(workspace, "/data/input/sub", workspace, "stolen"),
        lambda: files.rename(workspace, "mine", workspace, "/data/input/mine"),
        lambda: files.rename(workspace, "/data", workspace, "data"),
    ):
        with pytest.raises(WasiError) as refused:
            change()
        assert refused.value.errno in (abi.EROFS, abi.ENOTEMPTY)
    with pytest.raises(WasiError) as refused:
        files.make_link(files.find(workspace, "/data/input/sub/a.txt"), workspace, "mine2")
    assert refused.value.errno == abi.EPERM


def test_links_are_followed_inside_and_a_circle_ends() -> None:
    files, workspace = system()
    file = new(files, workspace, "a")
    files.make_folder(workspace, "deep")
    files.make_symlink("../a", workspace, "deep/up")
    files.make_symlink("/workspace/deep", workspace, "absolute")
    assert files.find(workspace, "absolute/up") is file
    assert files.find(workspace, "deep/../../../../workspace/a") is file
    files.make_symlink("round", workspace, "round")
    with pytest.raises(WasiError) as circle:
        files.find(workspace, "round")
    assert circle.value.errno == abi.ELOOP


def test_a_folder_cannot_be_moved_into_itself() -> None:
    files, workspace = system()
    files.make_folder(workspace, "a")
    files.make_folder(workspace, "a/b")
    for target in ("a/c", "a/b/c"):
        with pytest.raises(WasiError) as refused:
            files.rename(workspace, "a", workspace, target)
        assert refused.value.errno == abi.EINVAL


@pytest.mark.parametrize(
    ("path", "errno"),
    [
        ("", abi.ENOENT),
        ("a\0b", abi.EINVAL),
        ("x" * 256, abi.ENAMETOOLONG),
        ("x/" * 3000, abi.ENAMETOOLONG),
        ("nothing/a", abi.ENOENT),
        ("file/a", abi.ENOTDIR),
        ("file/", abi.ENOTDIR),
    ],
)
def test_impossible_paths_have_their_error(path: str, errno: int) -> None:
    files, workspace = system()
    new(files, workspace, "file")
    with pytest.raises(WasiError) as refused:
        files.find(workspace, path)
    assert refused.value.errno == errno


_paths = st.lists(st.sampled_from(["a", "b", "..", ".", "/data/input", "/", "c"]), max_size=4).map(
    "/".join
)
_steps = st.lists(
    st.tuples(
        st.sampled_from(["create", "write", "folder", "link", "hard", "remove", "rmdir", "move"]),
        _paths,
        _paths,
    ),
    max_size=40,
)


@given(_steps)
def test_whatever_a_guest_does_the_quota_is_what_is_there(
    steps: list[tuple[str, str, str]],
) -> None:
    files, workspace = system(disk_bytes=500, disk_files=12)
    for step, path, other in steps:
        try:
            if step == "create":
                new(files, workspace, path)
            elif step == "write":
                node = files.find(workspace, path)
                if isinstance(node, File) and not node.frozen:
                    files.write(node, 7 * len(other), b"x" * 50)
            elif step == "folder":
                files.make_folder(workspace, path)
            elif step == "link":
                files.make_symlink(other, workspace, path)
            elif step == "hard":
                files.make_link(files.find(workspace, other), workspace, path)
            elif step == "remove":
                files.remove(workspace, path)
            elif step == "rmdir":
                files.remove_folder(workspace, path)
            else:
                files.rename(workspace, path, workspace, other)
        except WasiError:
            pass
    seen: dict[int, int] = {}
    names = _count(files.root, seen) - len(("data", "input", "workspace"))
    assert files.quota.files_left == 12 - names >= 0
    assert files.quota.bytes_left == 500 - sum(seen.values()) >= 0
    assert not files.find(workspace, "/data/input").entries  # type: ignore[attr-defined]


def _count(folder: Folder, sizes: dict[int, int]) -> int:
    names = len(folder.entries)
    for node in folder.entries.values():
        if isinstance(node, Folder):
            assert node.parent is folder
            names += _count(node, sizes)
        elif isinstance(node, File):
            sizes[node.inode] = node.size
    return names
