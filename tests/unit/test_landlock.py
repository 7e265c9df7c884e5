"""The fence around files, put on for real in a child (I2), and its arithmetic."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from belljar.engines.linux import kernel, landlock

SOURCE = str(Path(landlock.__file__).parents[3])
ABI = landlock.abi()
needs_landlock = pytest.mark.skipif(not ABI, reason="no Landlock in this kernel")


def fenced(source: str, inside: Path, outside: Path) -> str:
    """Runs Python that may write below `inside` only; returns what it printed."""
    start = f"""
import os, sys, signal, socket
sys.path.insert(0, {SOURCE!r})
from belljar.engines.linux import landlock
inside, outside = {str(inside)!r}, {str(outside)!r}
def attempt(function, *args):
    try:
        function(*args)
        print("done")
    except OSError as error:
        print(error.errno)
"""
    fence = "landlock.restrict(writable=(inside, '/dev/shm'))\n"
    done = subprocess.run(
        [sys.executable, "-c", start + source.replace("FENCE\n", fence)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "old").write_text("old")
    return inside, outside


EACCES, EXDEV, EPERM = "13", "18", "1"


@needs_landlock
def test_writing_only_below_the_writable_folders(folders: tuple[Path, Path]) -> None:
    """I2, FS-13."""
    inside, outside = folders
    source = """
FENCE
for folder in (inside, outside):
    attempt(lambda: open(folder + "/new", "w").write("x"))
    attempt(lambda: open(folder + "/old", "a").write("x"))
    attempt(os.mkdir, folder + "/folder")
    attempt(os.symlink, "x", folder + "/link")
    attempt(os.mkfifo, folder + "/fifo")
    attempt(os.rename, folder + "/old", folder + "/older")
    attempt(os.rmdir, folder + "/folder")
    print(sorted(os.listdir(folder)))
"""
    said = fenced(source, inside, outside).split("\n")
    assert said[:7] == ["done"] * 7
    assert said[7] == "['fifo', 'link', 'new', 'older']"
    assert said[8:14] == [EACCES] * 6
    assert said[15] == "['old']"
    assert (outside / "old").read_text() == "old"


@needs_landlock
def test_reading_and_executing_everywhere(folders: tuple[Path, Path]) -> None:
    """R2: the mounts decide what there is to see."""
    source = """
FENCE
import subprocess
print(open(outside + "/old").read(), subprocess.check_output(["cat", "/proc/self/comm"]).decode())
"""
    assert fenced(source, *folders) == "old cat"


@needs_landlock
@pytest.mark.skipif(ABI < 3, reason="truncation came with version 3")
def test_no_truncation_outside(folders: tuple[Path, Path]) -> None:
    source = """
FENCE
attempt(os.truncate, outside + "/old", 0)
attempt(os.truncate, inside + "/old", 0)
"""
    assert fenced(source, *folders).split() == [EACCES, "done"]
    assert (folders[1] / "old").read_text() == "old"


@needs_landlock
def test_no_moving_or_linking_into_the_writable_folders(folders: tuple[Path, Path]) -> None:
    """A file moved to where it may be written would be a way around."""
    source = """
FENCE
attempt(os.rename, outside + "/old", inside + "/stolen")
attempt(os.link, outside + "/old", inside + "/linked")
print(os.path.exists(outside + "/old"))
"""
    said = fenced(source, *folders).split()
    assert said[0] in (EACCES, EXDEV)
    assert said[1] in (EACCES, EXDEV)
    assert said[2] == "True"


@needs_landlock
def test_devices_and_terminals_work(folders: tuple[Path, Path]) -> None:
    """R2: /dev/null, random numbers, pseudo-terminals, shared memory."""
    source = """
FENCE
import pty, termios
open("/dev/null", "w").write("x")
assert len(open("/dev/urandom", "rb").read(8)) == 8
left, right = pty.openpty()
termios.tcgetattr(right)
assert os.isatty(os.open(os.ttyname(right), os.O_RDWR | os.O_NOCTTY))
from multiprocessing import shared_memory
block = shared_memory.SharedMemory(create=True, size=100)
block.close()
block.unlink()
attempt(open, "/dev/belljar-new", "w")
"""
    assert fenced(source, *folders) == EACCES


@needs_landlock
@pytest.mark.skipif(ABI < 6, reason="scopes came with version 6")
def test_signals_reach_the_inside_only(folders: tuple[Path, Path]) -> None:
    """PR-17: one's own children, and theirs, but not the process that started it all."""
    source = """
pid = os.fork()
if pid:
    os.waitpid(pid, 0)  # outside: plays the agent
    sys.exit()
FENCE
import subprocess
sleeper = subprocess.Popen(["sh", "-c", "sleep 60"], start_new_session=True)
attempt(os.killpg, sleeper.pid, signal.SIGTERM)
print(sleeper.wait())
sys.stdout.flush()
brother = os.fork()
if brother == 0:
    attempt(os.kill, os.getppid(), 0)
    sys.stdout.flush()
    os._exit(0)
os.waitpid(brother, 0)
attempt(os.kill, os.getpid(), 0)
attempt(os.kill, os.getppid(), 0)
attempt(os.kill, os.getppid(), signal.SIGTERM)
sys.stdout.flush()
os._exit(0)
"""
    said = fenced(source, *folders).split()
    assert said == ["done", "-15", "done", "done", EPERM, EPERM]


@needs_landlock
@pytest.mark.skipif(ABI < 6, reason="scopes came with version 6")
def test_abstract_sockets_reach_the_inside_only(folders: tuple[Path, Path]) -> None:
    """NW-04: even where the network namespace is shared."""
    name = f"\0belljar-test-{os.getpid()}"
    source = f"""
FENCE
client = socket.socket(socket.AF_UNIX)
attempt(client.connect, {name!r})
server = socket.socket(socket.AF_UNIX)
server.bind({name + "-inside"!r})
server.listen()
attempt(socket.socket(socket.AF_UNIX).connect, {name + "-inside"!r})
"""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        assert fenced(source, *folders).split() == [EPERM, "done"]


@needs_landlock
def test_a_fence_prepared_outside_is_put_on_by_a_child(folders: tuple[Path, Path]) -> None:
    source = """
ruleset = landlock.prepare(writable=(inside,))
attempt(lambda: open(outside + "/before", "w"))
sys.stdout.flush()
pid = os.fork()
if pid == 0:
    landlock.enforce(ruleset)
    attempt(lambda: open(outside + "/after", "w"))
    attempt(lambda: open(inside + "/after", "w"))
    sys.stdout.flush()
    os._exit(0)
os.waitpid(pid, 0)
"""
    assert fenced(source, *folders).split() == ["done", EACCES, "done"]


@needs_landlock
def test_a_missing_folder_is_an_error_and_leaks_nothing(tmp_path: Path) -> None:
    """Fails closed: no fence with a hole where a folder should have been."""
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        landlock.prepare(writable=(str(tmp_path / "missing"),))
    assert set(os.listdir("/proc/self/fd")) <= set(before)


def test_an_absent_landlock_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> int:
        raise OSError(38, "landlock_create_ruleset: Function not implemented")

    monkeypatch.setattr(kernel, "syscall", absent)
    assert landlock.abi() == 0
    with pytest.raises(OSError, match="absent"):
        landlock.restrict(writable=("/tmp",))


def test_each_version_asks_for_what_it_knows() -> None:
    """More would be refused by the kernel as a whole, less would leave a hole."""
    known = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16, 6: 16, 7: 16, 8: 16, 9: 17}
    for version, count in known.items():
        files, scopes = landlock.handled(version)
        assert files == (1 << count) - 1
        assert scopes == (3 if version >= 6 else 0)
    assert landlock.handled(0) == (0, 0)
