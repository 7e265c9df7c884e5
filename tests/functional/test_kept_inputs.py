"""Inputs that are files and folders of the host, mounted into kept sandboxes (S2, S4, I2)."""

from __future__ import annotations

import ast
import hashlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import belljar
from belljar.engines.base import Capabilities
from belljar.engines.jail.engine import JailEngine
from belljar.errors import InvalidFileName, InvalidRequest, LimitExceeded

GIB = 1 << 30


class Given:
    """What the host has, and a sandbox that was given it."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.table = top / "table.csv"
        self.table.write_text("a,b\n1,2\n")
        self.table.chmod(0o600)
        self.giant = top / "giant"
        with self.giant.open("wb") as file:
            file.truncate(GIB)
            file.seek(GIB - 3)
            file.write(b"end")
        self.folder = top / "folder"
        (self.folder / "sub").mkdir(parents=True)
        (self.folder / "sub" / "deep.txt").write_text("deep")
        (self.folder / "sub" / "deep.txt").chmod(0o600)
        (self.folder / "out").symlink_to(top / "secret")
        (top / "secret").write_text("secret")
        (top / "link.csv").symlink_to(self.table)

    @property
    def inputs(self) -> dict[str, object]:
        return {
            "table.csv": str(self.table),
            "link.csv": self.top / "link.csv",
            "giant": self.giant,
            "some/where/folder": self.folder,
            "note": b"content",
        }


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    return Given(tmp_path_factory.mktemp("given"))


@pytest.fixture(scope="module")
def box(jar: belljar.Belljar, given: Given) -> Iterator[belljar.Sandbox]:
    with belljar.Sandbox(jar, inputs=given.inputs, max_runs=1000) as box:
        box.run("import os; os.chdir('/data/input')")
        yield box


def value(box: belljar.Sandbox, code: str) -> object:
    result = box.run(code)
    assert result.success, result.stderr
    return ast.literal_eval(result.value or "None")


def test_s2_paths_can_be_read_whoever_owns_them(box: belljar.Sandbox, given: Given) -> None:
    code = "[open(p).read() for p in ('table.csv', 'link.csv', 'some/where/folder/sub/deep.txt')]"
    assert value(box, code) == ["a,b\n1,2\n", "a,b\n1,2\n", "deep"]
    assert value(box, "open('note').read()") == "content"
    assert value(box, "sorted(os.listdir('/data/input'))") == sorted(
        ["giant", "link.csv", "note", "some", "table.csv"]
    )
    assert not box.run("1").warnings, "nothing was copied"


def test_s4_a_file_of_1_gb_is_there_without_a_copy(box: belljar.Sandbox, given: Given) -> None:
    seen = value(box, "s = os.stat('giant'); (s.st_size, s.st_ino)")
    assert seen == (GIB, given.giant.stat().st_ino), "larger than its disk, and the same inode"
    assert value(box, "f = open('giant', 'rb'); _ = f.seek(-3, 2); f.read()") == b"end"


@pytest.mark.parametrize(
    "action",
    [
        "open({file!r}, 'a')",
        "os.open({file!r}, os.O_RDWR)",
        "os.truncate({file!r}, 0)",
        "os.chmod({file!r}, 0o777)",
        "os.chown({file!r}, 1000, 1000)",
        "os.utime({file!r})",
        "os.setxattr({file!r}, 'user.x', b'1')",
        "os.unlink({file!r})",
        "os.rename({file!r}, {file!r} + '2')",
        "os.link({file!r}, '/tmp/linked')",
        "os.open('some/where/folder/sub', os.O_TMPFILE | os.O_RDWR)",
        "os.mkdir('some/where/folder/new')",
        "open('new', 'w')",
    ],
)
@pytest.mark.parametrize("file", ["table.csv", "some/where/folder/sub/deep.txt"])
def test_s2_nothing_can_be_changed(
    box: belljar.Sandbox, given: Given, action: str, file: str
) -> None:
    before = given.table.read_bytes(), given.table.stat()
    result = box.run(action.format(file=file))
    assert result.error is not None and result.error.name in ("OSError", "PermissionError")
    assert (given.table.read_bytes(), given.table.stat()) == before
    assert sorted(p.name for p in given.folder.rglob("*")) == ["deep.txt", "out", "sub"]


def test_i2_no_way_leads_out_of_a_folder(box: belljar.Sandbox, given: Given) -> None:
    assert value(box, "os.listdir('some/where/folder/..')") == ["folder"]
    code = "d = os.open('some/where/folder', os.O_RDONLY); os.listdir(f'/proc/self/fd/{d}/..')"
    assert value(box, code) == ["folder"]
    result = box.run("open('some/where/folder/out').read()")
    assert result.error and result.error.name == "FileNotFoundError", "a link leads nowhere"


def test_i2_the_mounts_are_read_only_and_stay(box: belljar.Sandbox) -> None:
    lines = str(value(box, "[l for l in open('/proc/self/mountinfo') if '/data/input/' in l]"))
    assert lines.count("ro,nosuid,nodev,noexec") == 4
    result = box.run(
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "[libc.umount2(b'/data/input/table.csv', 2), ctypes.get_errno(),\n"
        " libc.mount(None, b'/data/input/table.csv', None, 32 | 4096, None), ctypes.get_errno()]"
    )
    assert result.value == "[-1, 1, -1, 1]"


def test_s6_branches_and_rollbacks_have_them_too(box: belljar.Sandbox) -> None:
    run = box.run("gone = open('table.csv').read()")
    assert run.run_id is not None
    box.rollback(run.run_id)
    assert value(box, "open('table.csv').read(), 'gone' in globals()") == ("a,b\n1,2\n", False)
    (child,) = box.fork()
    (grandchild,) = child.fork()
    child.close()
    code = "[open(p).read() for p in ('/data/input/table.csv', '/data/input/note')]"
    assert value(grandchild, code) == ["a,b\n1,2\n", "content"]
    assert grandchild.files.read("/data/input/note") == b"content"
    assert grandchild.run("open('/data/input/table.csv', 'a')").error is not None
    grandchild.close()


def test_s2_files_sees_what_the_code_sees(box: belljar.Sandbox) -> None:
    assert box.files.read("/data/input/table.csv") == b"a,b\n1,2\n"
    assert box.files.stat("/data/input/giant").size == GIB
    assert box.files.exists("/data/input/some/where/folder/sub/deep.txt")


def test_s2_a_name_that_is_exchanged_later_changes_nothing(
    jar: belljar.Belljar, tmp_path: Path
) -> None:
    """The file is what was given, not its name: links are followed once, by the host."""
    (tmp_path / "first").write_text("first")
    (tmp_path / "second").write_text("second")
    (tmp_path / "name").symlink_to(tmp_path / "first")
    with belljar.Sandbox(jar, inputs={"x": tmp_path / "name"}) as box:
        (tmp_path / "name").unlink()
        (tmp_path / "name").symlink_to(tmp_path / "second")
        os.replace(tmp_path / "second", tmp_path / "first")
        assert box.run("open('/data/input/x').read()").value == "'first'"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount on the host")
def test_i2_mounts_that_the_host_makes_later_do_not_arrive(
    jar: belljar.Belljar, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    with belljar.Sandbox(jar, inputs={"x": tmp_path}) as box:
        subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path / "sub"], check=True)
        try:
            (tmp_path / "sub" / "new").write_text("new")
            assert box.run("import os; os.listdir('/data/input/x/sub')").value == "[]"
        finally:
            subprocess.run(["umount", tmp_path / "sub"], check=True)


def test_s2_what_is_no_file_and_no_folder_is_refused(jar: belljar.Belljar, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder" / "sub").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listening:
        # By way of the folder's descriptor: paths of sockets are short.
        here = os.open(tmp_path / "folder" / "sub", os.O_PATH)
        listening.bind(f"/proc/self/fd/{here}/s")
        os.close(here)
        for path, why in (
            (tmp_path / "missing", "No such file"),
            ("a,b\n1,2\n", "give content as bytes"),
            ("/dev/null", "neither a file nor a folder"),
            (tmp_path / "fifo", "neither a file nor a folder"),
            (tmp_path / "folder", "a socket, a FIFO or a device"),
            ("/proc/self", "the kernel's"),
            ("/", "a socket, a FIFO or a device|the kernel's"),
        ):
            with pytest.raises(InvalidRequest, match=why):
                belljar.Sandbox(jar, inputs={"x": path}).open()


def test_s2_names_are_checked_with_those_of_contents(jar: belljar.Belljar, tmp_path: Path) -> None:
    for inputs in ({"../x": tmp_path}, {"/x": tmp_path}, {"x": tmp_path, "x/y": b"both"}):
        with pytest.raises(InvalidFileName):
            belljar.Sandbox(jar, inputs=inputs).open()
    with pytest.raises(InvalidRequest, match="more than 32"):
        belljar.Sandbox(jar, inputs={str(n): tmp_path for n in range(33)}).open()


def test_s2_where_nothing_can_be_mounted_it_is_copied(
    jar: belljar.Belljar, given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JailEngine, "capabilities", Capabilities(kept=True))
    large = given.top / "large"
    large.write_bytes(os.urandom(5 << 20))
    inputs = {"large": large, "folder": given.folder}
    with belljar.Sandbox(jar, inputs=inputs) as box:
        result = box.run(
            "import hashlib\nhashlib.md5(open('/data/input/large', 'rb').read()).hexdigest()"
        )
        assert result.value == repr(hashlib.md5(large.read_bytes()).hexdigest())
        assert len(result.warnings) == 2 and "was copied" in result.warnings[0]
        assert box.run("open('/data/input/folder/sub/deep.txt').read()").value == "'deep'"
        assert box.run("open('/data/input/large', 'a')").error is not None
    with pytest.raises(LimitExceeded, match="have to be copied"):
        belljar.Sandbox(jar, inputs={"giant": given.giant}).open()
