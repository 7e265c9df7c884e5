"""The code's memory, counted and limited by the guest's own kernel; runs inside, as root.

The machine has more memory than the code may use, so that the agent lives on and can tell.
"""

from __future__ import annotations

import os
import resource
import time

from belljar.runtimes.guest import watch

FOLDER = "/run/belljar/cgroup"
CODE = f"{FOLDER}/code"
_PERIOD_US = 100_000


def make() -> None:
    """In an emptied cgroup v2 file system: one group for the code, to be limited by each run."""
    _write(f"{FOLDER}/cgroup.subtree_control", "+cpu +memory +pids")
    os.mkdir(CODE)
    _write(f"{CODE}/memory.oom.group", "1")


def enter() -> None:
    """Puts the calling process, and all it will start, into the code's group."""
    _write(f"{CODE}/cgroup.procs", "0")


class Counted(watch.Watched):
    """The kernel watches; this reads what it saw."""

    def __init__(self, memory_bytes: int, disk: int) -> None:
        _write(f"{CODE}/memory.max", str(memory_bytes))
        self._killed_before = _killed()
        self._cpu_before_ms = _cpu_ms()
        self._next_tell = time.monotonic() + watch.TELL_MS / 1000

    def share(self, cpus: float) -> None:
        quota = max(1000, round(cpus * _PERIOD_US))
        _write(f"{CODE}/cpu.max", f"{quota} {_PERIOD_US}")

    def exceeded(self) -> bool:
        return False  # the kernel has killed the whole group before anybody could ask

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
        return _cpu_ms() - self._cpu_before_ms

    def summary(self) -> dict:  # type: ignore[type-arg]
        largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        return {
            "out_of_memory": _killed() > self._killed_before,
            "peak_memory_bytes": _number("memory.peak", largest),
            "peak_processes": _number("pids.peak", 1),
        }


def _killed() -> int:
    with open(f"{CODE}/memory.events") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("oom_kill "))


def _cpu_ms() -> int:
    with open(f"{CODE}/cpu.stat") as file:
        return next(int(line.split()[1]) // 1000 for line in file if line.startswith("usage_usec "))


def _number(file: str, otherwise: int) -> int:
    """Older kernels keep no peaks."""
    try:
        with open(f"{CODE}/{file}") as opened:
            return int(opened.read())
    except OSError:
        return otherwise


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
