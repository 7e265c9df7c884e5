"""I5: a QEMU that was taken over. What it could reach is tried from its place, or from its
descriptors; the guest has no part in it."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar import Belljar, Settings
from belljar.engines.linux import syscalls
from belljar.engines.linux.pidfd import exited
from belljar.engines.microvm import available, confine, launch
from belljar.testing import EngineConformance
from tests.functional.test_microvm import qemus

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="x86-64 only")


class Suite(EngineConformance):
    __test__ = False
    engine = "microvm"


@pytest.fixture(scope="module")
def machines() -> Iterator[set[int]]:
    """One without a disk and one with."""
    Suite.check_available()
    with Belljar(Settings(pool_size=1, engine="microvm")) as jar:
        jar.warm("base", 1)
        jar.warm("node", 1)
        assert jar.run("print(1)").stdout == "1\n"
        assert jar.run("console.log(2)", language="javascript").stdout == "2\n"
        jar.warm("node", 1)
        jar.warm("base", 1)
        yield qemus()


def files_of(pid: int) -> Iterator[str]:
    """Its descriptors of files that have a name on the host."""
    for number in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{number}"
        found = os.stat(path)
        if stat.S_ISREG(found.st_mode) and found.st_nlink:
            yield path


def test_what_machines_start_from_cannot_be_opened_for_writing(machines: set[int]) -> None:
    """For an ordinary user QEMU has the uid that owns these files. A descriptor that can only be
    read is no wall then: `/proc/self/fd` opens the file again, and its owner may change its mode.
    The mount is one: not even root, which this test may be, can write to a file by it."""
    names = set()
    for pid in machines:
        for path in files_of(pid):
            name = os.readlink(path)
            before = os.stat(path)
            for attempt in (
                lambda path=path: os.chmod(path, 0o666),
                lambda path=path: os.utime(path),
                lambda path=path: os.setxattr(path, "user.x", b"x"),
                lambda path=path: os.close(os.open(path, os.O_RDWR)),
                lambda path=path: os.truncate(path, 0),
            ):
                with pytest.raises(OSError) as refused:
                    attempt()
                # Who is not root is told first that the file's mode forbids it.
                assert refused.value.errno in (errno.EROFS, errno.EACCES), name
            assert os.stat(path) == before
            names.add(Path(name).suffix or Path(name).name)
    assert "ram" in names and len(names) == 2  # and a disk


def test_a_crash_of_qemu_starts_no_helper_on_the_host(machines: set[int]) -> None:
    """A helper that core dumps are piped to runs as root, and only a limit of one byte stops it."""
    for pid in machines:
        limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
        core = next(line for line in limits if line.startswith("Max core file size"))
        assert core.split()[4:6] == ["1", "1"]


def test_the_filter_is_around_every_qemu(machines: set[int]) -> None:
    for pid in machines:
        status = Path(f"/proc/{pid}/status").read_text()
        filters = [line for line in status.splitlines() if line.startswith("Seccomp_filters:")]
        assert int(filters[0].split()[1]) >= 2  # ours, QEMU's own, and one that lends memory


PERL = shutil.which("perl")
CALLS = {
    "bpf": (0, 0, 0),
    "io_uring_setup": (1, 0),
    "userfaultfd": (1,),
    "ptrace": (0, 0, 0, 0),
    "process_vm_readv": (1, 0, 0, 0, 0, 0),
    "perf_event_open": (0, 0, 0, 0, 0),
    "socket": (40, 1, 0),  # AF_VSOCK
    "socketpair": (1, 1, 0, 0),
    "bind": (0, 0, 0),
    "connect": (0, 0, 0),
    "unshare": (0x1000_0000,),
    "setns": (0, 0),
    "mount": (0, 0, 0, 0, 0),
    "open_tree": (-100, 0, 0),
    "open_by_handle_at": (0, 0, 0),
    "keyctl": (0, 0),
    "add_key": (0, 0, 0, 0, 0),
    "fchmod": (10, 0o666),
    "chmod": (0, 0o666),
    "memfd_create": (0, 0),
    "kill": (0, 0),
    "pidfd_open": (1, 0),
    "clone3": (0, 0),
    "vfork": (),
    "shmget": (0, 4096, 0),
    "mq_open": (0, 0, 0, 0),
    "personality": (0xFFFF_FFFF,),
    "sched_setattr": (0, 0, 0),
    "setpriority": (0, 0, 0),
    "fsync": (10,),
}


@pytest.mark.skipif(not PERL or not PERL.startswith("/usr/bin/"), reason="needs /usr/bin/perl")
def test_calls_that_no_machine_needs_do_not_exist_in_qemus_place(tmp_path: Path) -> None:
    """Perl is started where QEMU would be, and says what each call answers."""
    Suite.check_available()
    numbers = syscalls.numbers("x86_64")
    lines = ";".join(
        f"$! = 0; $r = syscall({', '.join(map(str, (numbers[name], *arguments)))});"
        f'print "{name} $r ", $! + 0, "\\n"'
        for name, arguments in CALLS.items()
    )
    program = available.program(Settings())
    assert program

    async def drive() -> str:
        launcher = await launch.Launcher.start(program, tmp_path, kvm=False)
        log = os.memfd_create("log")
        try:
            pidfd = await launcher.qemu([str(PERL), "-e", lines], log, [log])
            await exited(pidfd)
            os.close(pidfd)
            return os.pread(log, 1 << 20, 0).decode()
        finally:
            os.close(log)
            launcher.close()

    said = asyncio.run(drive())
    answers = {line.split()[0]: line.split()[1:] for line in said.splitlines()}
    assert answers == {name: ["-1", str(errno.ENOSYS)] for name in CALLS}, said


def test_every_name_of_the_filter_is_a_call_and_none_is_named_twice() -> None:
    names = [name for group in confine.CALLS.values() for name in group.split()]
    names += confine.ruled(kvm=True)
    assert len(names) == len(set(names))
    assert set(names) <= set(syscalls.numbers("x86_64"))
    assert not set(names) & set(CALLS)


def test_only_a_machine_with_kvm_may_ask_kvm_for_anything() -> None:
    assert confine.allowed_calls(kvm=True) != confine.allowed_calls(kvm=False)
    assert "ioctl" not in " ".join(confine.CALLS.values()).split()
