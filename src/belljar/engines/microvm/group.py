"""The code's memory, counted and limited by the guest's own kernel; runs inside, as root.

The machine has more memory than the code may use, so that the agent lives on and can tell.
"""

from __future__ import annotations

import os
import resource
import time

from belljar.engines.linux import places
from belljar.runtimes.guest import watch

FOLDER = "/run/belljar/cgroup"
CODE = f"{FOLDER}/code"
_PERIOD_US = 100_000


def make(*, kept: bool) -> None:
    """In an emptied cgroup v2 file system: one group for the code, to be limited by each run.

    Of a kept sandbox one process after the other ends when memory runs out, checkpoints first; of
    any other all do at once. The agent of a kept one does to files what the code's user may do, so
    it gets the two limits to write."""
    _write(f"{FOLDER}/cgroup.subtree_control", "+cpu +memory +pids")
    os.mkdir(CODE)
    _write(f"{CODE}/memory.oom.group", "0" if kept else "1")
    for name in ("memory.max", "cpu.max"):
        if kept:
            os.chown(f"{CODE}/{name}", places.UID, places.GID)
    Counted.group = os.open(CODE, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def enter() -> None:
    """Puts the calling process, and all it will start, into the code's group."""
    _write(f"{CODE}/cgroup.procs", "0")


class Counted(watch.Watched):
    """The kernel watches; this reads what it saw."""

    group = -1
    """The code's, opened while we could still reach it by its path."""

    def __init__(self, memory_bytes: int, disk: int) -> None:
        _write("memory.max", str(memory_bytes), folder=self.group)
        self._killed_before = self._killed()
        self._cpu_before_ms = self._cpu_ms()
        self._next_tell = time.monotonic() + watch.TELL_MS / 1000

    def share(self, cpus: float) -> None:
        quota = max(1000, round(cpus * _PERIOD_US))
        _write("cpu.max", f"{quota} {_PERIOD_US}", folder=self.group)

    def exceeded(self) -> bool:
        return False  # the kernel has killed before anybody could ask

    def last_look(self) -> None:
        pass

    def due_ms(self) -> int:
        return max(0, round((self._next_tell - time.monotonic()) * 1000))

    def tell(self) -> bool:
        now = time.monotonic()
        if now < self._next_tell:
            return False
        self._next_tell = now + watch.TELL_MS / 1000
        return True

    def cpu_ms(self, reaped_ms: int) -> int:
        return self._cpu_ms() - self._cpu_before_ms

    def summary(self) -> dict:  # type: ignore[type-arg]
        largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        return {
            "out_of_memory": self._killed() > self._killed_before,
            "peak_memory_bytes": self._number("memory.peak", largest),
            "peak_processes": self._number("pids.peak", 1),
        }

    def _killed(self) -> int:
        lines = _read("memory.events", folder=self.group).splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def _cpu_ms(self) -> int:
        lines = _read("cpu.stat", folder=self.group).splitlines()
        used = next(int(line.split()[1]) for line in lines if line.startswith("usage_usec "))
        return used // 1000

    def _number(self, file: str, otherwise: int) -> int:
        """Older kernels keep no peaks."""
        try:
            return int(_read(file, folder=self.group))
        except OSError:
            return otherwise


def _read(path: str, *, folder: int) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.read(descriptor, 65536).decode()
    finally:
        os.close(descriptor)


def _write(path: str, text: str, *, folder: int | None = None) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
