"""S2, R3: the agent's way to files, against whatever the code left lying there."""

from __future__ import annotations

import gc
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.runtimes.guest import places


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    """A folder's descriptor; no other may be open when the test is over."""
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    before = open_descriptors()
    yield descriptor
    assert open_descriptors() <= before
    os.close(descriptor)


def open_descriptors() -> int:
    gc.collect()  # what other tests in this process have dropped
    return len(os.listdir("/proc/self/fd"))


def scanned(root: int) -> dict[str, str]:
    """Path → why it cannot be read."""
    return {path: skipped for path, _, skipped in places.scan(root, "/w/")}


def read(root: int, path: str) -> bytes:
    file = places.read(root, path)
    try:
        return os.read(file, 1 << 20)
    finally:
        os.close(file)


def write(root: int, path: str, data: bytes) -> None:
    file = places.create(root, path, 0o644)
    os.write(file, data)
    os.close(file)


# -- create ----------------------------------------------------------------------------------------


def test_create_makes_the_folders_on_the_way(root: int, tmp_path: Path) -> None:
    write(root, "a/b/c.txt", b"deep")
    write(root, "a/b/d.txt", b"beside")
    assert (tmp_path / "a/b/c.txt").read_bytes() == b"deep"
    assert (tmp_path / "a/b/d.txt").read_bytes() == b"beside"


def test_create_overwrites(root: int, tmp_path: Path) -> None:
    write(root, "x", b"long content")
    write(root, "x", b"new")
    assert (tmp_path / "x").read_bytes() == b"new"


def test_create_follows_no_link(root: int, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    target = elsewhere / "target"
    target.write_text("untouched")
    (tmp_path / "folder-link").symlink_to(elsewhere)
    (tmp_path / "file-link").symlink_to(target)
    (tmp_path / "dangling").symlink_to(tmp_path / "not-there")
    for path in ("folder-link/target", "folder-link/new", "file-link", "dangling"):
        with pytest.raises(OSError):
            places.create(root, path, 0o644)
    assert target.read_text() == "untouched"
    assert os.listdir(elsewhere) == ["target"]
    assert not (tmp_path / "not-there").exists()


def test_create_through_a_file_fails(root: int) -> None:
    write(root, "file", b"")
    with pytest.raises(NotADirectoryError):
        places.create(root, "file/below", 0o644)


# -- scan ------------------------------------------------------------------------------------------


def test_scan_names_everything_and_says_what_cannot_be_read(root: int, tmp_path: Path) -> None:
    write(root, "plain", b"x")
    write(root, "sub/also", b"y")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "folder-link").symlink_to("/etc")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").mkdir()
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "socket"))
    server.close()
    assert scanned(root) == {
        "/w/plain": "",
        "/w/sub/also": "",
        "/w/link": "a symbolic link",
        "/w/folder-link": "a symbolic link",
        "/w/loop": "a symbolic link",
        "/w/fifo": "a FIFO",
        "/w/socket": "a socket",
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
def test_scan_names_devices(root: int, tmp_path: Path) -> None:
    os.mknod(tmp_path / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    assert scanned(root) == {"/w/null": "a device"}


def test_scan_stops_at_a_depth(root: int) -> None:
    """A thousand nested folders would cost a thousand opens for each of them."""
    here = os.dup(root)
    for level in range(places.MAX_DEPTH + 40):
        os.close(os.open(f"at-{level}", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    found = scanned(root)
    readable = [path for path, skipped in found.items() if not skipped]
    assert len(readable) == places.MAX_DEPTH
    assert [skipped for skipped in found.values() if skipped] == [
        f"folders nested deeper than {places.MAX_DEPTH}"
    ]


def test_scan_stops_at_a_number_of_entries(
    root: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "MAX_ENTRIES", 50)
    for number in range(80):
        (tmp_path / f"{number:03}").touch()
    assert len(scanned(root)) == 50


HOSTILE = [
    b"new\nline",
    b"\xff\xfe not utf-8",
    b"-rf",
    b" ",
    b"...",
    b"\\..\\up",
    b"%00",
    b"\x1b[31mred",
    b"n" * 255,
    "\u202egnp.exe".encode(),
    b"$(reboot)",
]


def test_hostile_names_come_through_unharmed(root: int, tmp_path: Path) -> None:
    for name in HOSTILE:
        with open(os.fsencode(tmp_path) + b"/" + name, "wb") as file:
            file.write(name)
    found = list(places.scan(root, "/w/"))
    assert {os.fsencode(path)[3:] for path, _, _ in found} == set(HOSTILE)
    for path, status, skipped in found:
        assert not skipped
        assert read(root, path[3:]) == os.fsencode(path)[3:]
        assert status.st_size == len(os.fsencode(path)) - 3


@given(
    name=st.binary(min_size=1, max_size=40).filter(
        lambda name: not {0, ord("/")} & set(name) and name not in (b".", b"..")
    )
)
def test_any_name_that_a_file_can_have(
    tmp_path_factory: pytest.TempPathFactory, name: bytes
) -> None:
    folder = tmp_path_factory.mktemp("n")
    with open(os.fsencode(folder) + b"/" + name, "wb") as file:
        file.write(b"content")
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        ((path, _, skipped),) = places.scan(root, "/w/")
        assert (os.fsencode(path), skipped) == (b"/w/" + name, "")
        assert read(root, path[3:]) == b"content"
    finally:
        os.close(root)


def test_what_may_not_be_read_does_not_stop_the_rest(root: int, tmp_path: Path) -> None:
    """Root reads everything; in a sandbox, where nobody is root, a mode of 000 closes a file."""
    write(root, "closed", b"secret")
    write(root, "dark/inside", b"")
    write(root, "last", b"z")
    os.chmod(tmp_path / "closed", 0)
    os.chmod(tmp_path / "dark", 0)
    try:
        found = scanned(root)
        assert {"/w/closed", "/w/last"} <= set(found)
        if os.geteuid() == 0:
            assert read(root, "closed") == b"secret"
        else:
            assert "/w/dark/inside" not in found
            with pytest.raises(PermissionError):
                places.read(root, "closed")
    finally:
        os.chmod(tmp_path / "dark", 0o755)


# -- read ------------------------------------------------------------------------------------------


def test_read_takes_regular_files_only(root: int, tmp_path: Path) -> None:
    """Between the scan and the read nothing can change (all are dead), and if it did: refused."""
    write(root, "sub/file", b"content")
    assert read(root, "sub/file") == b"content"
    (tmp_path / "link").symlink_to(tmp_path / "sub/file")
    (tmp_path / "around").symlink_to(tmp_path / "sub")
    os.mkfifo(tmp_path / "fifo")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "socket"))
    server.close()
    for path in ("link", "around/file", "fifo", "socket", "sub", "nothing", "nowhere/file"):
        with pytest.raises(OSError):
            places.read(root, path)


def test_stamp_tells_a_change_of_content_size_or_file(root: int, tmp_path: Path) -> None:
    """R1: an input that the code did not change is no output."""
    path = tmp_path / "x"
    path.write_bytes(b"one")
    before = places.stamp(os.stat(path))
    assert places.stamp(os.stat(path)) == before
    path.write_bytes(b"two!")
    changed = places.stamp(os.stat(path))
    path.rename(tmp_path / "old")
    path.write_bytes(b"one")
    assert len({before, changed, places.stamp(os.stat(path))}) == 3
