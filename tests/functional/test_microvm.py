"""What only a machine of its own has to show (I5); the rest is in tests/conformance."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import belljar
from belljar import Belljar, Settings
from belljar.engines.base import Ground
from belljar.engines.microvm import snapshots
from belljar.engines.microvm.engine import MicrovmEngine
from belljar.errors import LimitExceeded
from belljar.model import GIB, Limits
from belljar.sandbox import Sandbox
from belljar.testing import EngineConformance

BASE = Ground(name="base", mount="/opt/belljar/base")


class Suite(EngineConformance):
    __test__ = False
    engine = "microvm"


@pytest.fixture(scope="module")
def jar() -> Iterator[Belljar]:
    Suite.check_available()
    with Belljar(Settings(pool_size=1, engine="microvm")) as made:
        yield made


def qemus() -> set[int]:
    """Those that this process has a descriptor of."""
    found = set()
    for info in Path("/proc/self/fdinfo").glob("*"):
        try:
            lines = info.read_text().splitlines()
        except OSError:
            continue
        found |= {int(line.split()[1]) for line in lines if line.startswith("Pid:")}
    return {pid for pid in found if pid > 0 and b"qemu" in command_line(pid)}


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has just ended
        return b""


def test_the_kernel_is_its_own(jar: Belljar) -> None:
    """I5: and the result says what it runs on."""
    result = jar.run("import os; print(os.uname().release, os.uname().nodename)")
    release, name = result.stdout.split()
    assert release != os.uname().release and name == "belljar"
    assert result.engine == "microvm"
    assert result.isolation["kernel"].startswith("own (QEMU ")
    assert result.isolation["network"] == "none (no device)"


def test_copies_of_one_snapshot_differ_in_what_must_not_repeat(jar: Belljar) -> None:
    """Randomness and the clock are fresh in every copy, in Python's generators too."""
    code = (
        "import os, random, time, uuid, secrets\n"
        "print(os.urandom(8).hex(), random.random(), uuid.uuid4(), secrets.token_hex(8))\n"
        "print(time.time())"
    )
    seen = set()
    for _ in range(4):
        before = time.time()
        *words, clock = jar.run(code).stdout.split()
        assert before - 0.5 <= float(clock) <= time.time() + 0.5
        assert not seen & set(words)
        seen |= set(words)


def test_the_clock_runs_as_fast_as_ours(jar: Belljar) -> None:
    """L1: an emulated machine is told how fast its counter runs; a wrong answer shows here."""
    result = jar.run(
        "import time\nt = time.monotonic(); time.sleep(2); print(time.monotonic() - t)"
    )
    assert 1.99 <= float(result.stdout) < 2.5
    assert 2000 <= result.duration_ms < 8000


def test_there_is_no_device_to_reach_anything_with(jar: Belljar) -> None:
    """I4"""
    code = (
        "import os, pathlib\n"
        "print(*[line.split(':')[0].strip() for line in open('/proc/net/dev') if ':' in line])\n"
        "print(*sorted(os.listdir('/dev')))\n"
        "print(os.listdir('/sys'))"
    )
    network, devices, system = jar.run(code).stdout.splitlines()
    assert network == "lo" and system == "[]"
    assert set(devices.split()) == {
        "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout",
        "urandom", "zero",
    }  # fmt: skip


def test_no_copy_changes_what_the_next_one_starts_from(jar: Belljar) -> None:
    """R3: the snapshot's memory is mapped privately, and QEMU cannot even write to the file."""
    jar.warm("base", 1)
    for pid in qemus():
        opened = {}
        for info in Path(f"/proc/{pid}/fdinfo").glob("*"):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                opened[int(info.name)] = info.read_text()
        memory = [
            number
            for number in opened
            if os.readlink(f"/proc/{pid}/fd/{number}").endswith("/ram")
            or "belljar-ram" in os.readlink(f"/proc/{pid}/fd/{number}")
        ]
        assert memory
        for number in memory:
            flags = next(ln for ln in opened[number].splitlines() if ln.startswith("flags:"))
            assert int(flags.split()[1], 8) & 3 == os.O_RDONLY
    files = snapshots.folder_of(Settings()).glob("*/ram")
    before = {path: path.stat().st_mtime_ns for path in files}
    assert jar.run("x = bytearray(64 << 20); open('/tmp/f', 'wb').write(x)").success
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_qemu_itself_is_nobody(jar: Belljar) -> None:
    """I5: whoever breaks out of the guest is in a process without rights, files or network."""
    jar.warm("base", 1)
    found = qemus()
    assert found
    for pid in found:
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
        assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
        assert status["NoNewPrivs"].strip() == "1" and status["Seccomp"].strip() == "2"
        for name in ("net", "pid", "mnt", "ipc", "uts"):
            assert os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")
        assert os.listdir(f"/proc/{pid}/root/dev") == ["null", "zero", "urandom"] or set(
            os.listdir(f"/proc/{pid}/root/dev")
        ) <= {"null", "zero", "urandom", "kvm"}
        assert not {"home", "root", "tmp", "work"} & set(os.listdir(f"/proc/{pid}/root"))
        if os.getuid() == 0:
            uids = {int(word) for word in status["Uid"].split()}
            assert len(uids) == 1 and uids != {0}
    if os.getuid() == 0 and len(found) > 1:
        owners = {os.stat(f"/proc/{pid}").st_uid for pid in found}
        assert len(owners) == len(found)


def settled() -> set[int]:
    """The machines there are, once no pool makes more: ours is to be the only new one."""
    seen = qemus()
    for _ in range(10):
        time.sleep(1)
        before, seen = seen, qemus()
        if seen == before:
            break
    return seen


def test_a_machine_that_dies_ends_its_run_and_no_other(jar: Belljar) -> None:
    """R3: and the next run gets another."""
    others = settled()

    def kill(stream: str, text: str) -> None:
        for pid in qemus() - others:
            os.kill(pid, 9)

    with Belljar(Settings(pool_size=0, engine="microvm")) as own:
        lost = own.run("print(1, flush=True)\nwhile True: pass", on_output=kill)
        assert lost.status == "killed" and lost.stdout == "1\n"
        assert own.run("print(2)").stdout == "2\n"
    assert jar.run("print(3)").stdout == "3\n"


def test_more_memory_than_a_machine_has_is_refused(jar: Belljar) -> None:
    """L2: before anything starts."""
    with pytest.raises(LimitExceeded, match="at most"):
        jar.run("print(1)", memory_bytes=8 * GIB)


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("bash", "echo $((6 * 7)) | tr 4 4; printf x > /data/output/f"),
        ("javascript", "console.log(6 * 7)"),
        ("typescript", "const x: number = 42; console.log(x)"),
        ("go", 'package main\nimport "fmt"\nfunc main() { fmt.Println(6 * 7) }'),
    ],
)
def test_every_language_runs(jar: Belljar, language: str, code: str) -> None:
    """R2"""
    result = jar.run(code, language=language, timeout_s=120)
    assert result.stdout == "42\n", result.stderr


def test_the_packages_are_there(jar: Belljar) -> None:
    """S5: from a read-only disk, imported before the snapshot was made."""
    code = (
        "import pandas, sys\n"
        "print(pandas.DataFrame({'a': [1, 2]}).a.sum(), pandas.__file__)\n"
        "open(pandas.__file__, 'a')"
    )
    result = jar.run(code)
    assert result.stdout.split() == ["3", "/opt/belljar/data/pandas/__init__.py"]
    assert "Read-only file system" in result.stderr


def test_a_size_of_disk_that_no_snapshot_was_made_for(jar: Belljar) -> None:
    """L4"""
    code = "open('/tmp/f', 'wb').write(bytes(30 << 20)); print('written')"
    assert jar.run(code, disk_bytes=20 << 20).stdout == ""
    assert jar.run(code, disk_bytes=200 << 20).stdout == "written\n"


def test_a_snapshot_that_is_damaged_gives_a_clear_error(tmp_path: Path) -> None:
    """Fail closed: a machine that does not come up is an error with QEMU's own words."""
    Suite.check_available()

    async def drive() -> None:
        engine = MicrovmEngine(Settings())
        try:
            wall = await engine.create(BASE, Limits(), waiting=False)
            await wall.destroy()
            made = await engine._snapshots["base"]
            broken = snapshots.Snapshot(ram=made.ram, state=b"not a state")
            done: asyncio.Future[snapshots.Snapshot] = asyncio.get_running_loop().create_future()
            done.set_result(broken)
            engine._snapshots["base"] = done  # type: ignore[assignment]
            sandbox = Sandbox(await engine.create(BASE, Limits(), waiting=True))
            with pytest.raises(belljar.EngineError):
                await sandbox.ready()
            await sandbox.destroy()
        finally:
            await engine.close()

    asyncio.run(drive())
