"""Memory watched from inside by pid 1, for machines where no cgroup can be written.

Slower and coarser than a cgroup: it samples, and what waits in socket buffers it cannot see. The
result's `isolation` says when it was in force.
"""

from __future__ import annotations

import os
import resource
import time

INTERVAL_MS = 20
TELL_MS = 250
_SHORTEST_MS = 1
_SHARE = 10
"""Looking closely may take a tenth of the time: with large programs it takes milliseconds."""


class Watched:
    held_bytes = 0
    """At the last look."""

    def __init__(self, memory_bytes: int, disk: int) -> None:
        self._limit = memory_bytes
        self._disk = disk
        self._next = 0.0
        self._next_exact = 0.0
        self._next_tell = time.monotonic() + TELL_MS / 1000
        self._before = (0.0, 0)
        self._peak_memory = 0
        self._peak_processes = 0
        self._out_of_memory = False

    def share(self, cpus: float) -> None:
        """Whoever only watches cannot limit that."""

    def exceeded(self) -> bool:
        """True once the processes and the files in memory together hold more than allowed."""
        now = time.monotonic()
        if self._out_of_memory or now < self._next:
            return False
        held = self.held_bytes = self._look(now)
        self._peak_memory = max(self._peak_memory, held)
        self._out_of_memory = held > self._limit
        self._next = now + self._interval_s(now, held)
        return self._out_of_memory

    def look_again(self, pause_s: float) -> None:
        """Something was done about it: the verdict is open again, after a pause."""
        self._out_of_memory = False
        self._next = time.monotonic() + pause_s

    def last_look(self) -> None:
        """Who is left when the code has ended belongs to the peak, but changes no verdict."""
        self._peak_memory = max(self._peak_memory, self._look(time.monotonic()))

    def due_ms(self) -> int:
        """When to look again."""
        return max(0, round((self._next - time.monotonic()) * 1000))

    def tell(self) -> bool:
        """True now and then: time to let the host know."""
        now = time.monotonic()
        if now < self._next_tell:
            return False
        self._next_tell = now + TELL_MS / 1000
        return True

    def cpu_ms(self, reaped_ms: int) -> int:
        """`reaped_ms`: what processes used that have ended."""
        return reaped_ms + living_cpu_ms()

    def summary(self) -> dict:  # type: ignore[type-arg]
        # A short program may end between two looks; its largest process the kernel remembers.
        largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        return {
            "out_of_memory": self._out_of_memory,
            "peak_memory_bytes": max(self._peak_memory, largest),
            "peak_processes": self._peak_processes,
        }

    def _interval_s(self, now: float, held: int) -> float:
        """At the speed it grew since last time, half the time until the limit is reached."""
        then, before = self._before
        self._before = (now, held)
        speed = (held - before) / (now - then) if then and held > before else 0.0
        left_s = (self._limit - held) / speed / 2 if speed else 1.0
        return min(INTERVAL_MS, max(_SHORTEST_MS, left_s * 1000)) / 1000

    def _look(self, now: float) -> int:
        sizes = _own_sizes()
        self._peak_processes = max(self._peak_processes, len(sizes))
        files = os.fstatvfs(self._disk)
        in_files = (files.f_blocks - files.f_bfree) * files.f_frsize
        # Page tables and files are nobody else's; with the rest, pages may be shared.
        certain = in_files + sum(tables for _, _, tables in sizes.values())
        mapped = sum(mapped for mapped, _, _ in sizes.values())
        if certain > self._limit:
            return certain
        if certain + mapped <= self._limit:  # who has not even mapped that much cannot hold it
            return certain + sum(resident for _, resident, _ in sizes.values())
        if now < self._next_exact:
            return certain
        exact = certain + _exactly(sizes)
        self._next_exact = now + (time.monotonic() - now) * _SHARE
        return exact


def living_cpu_ms() -> int:
    """Time used by the processes that have not ended yet."""
    ticks = 0
    for pid in os.listdir("/proc"):
        if pid.isdigit() and pid != "1":
            try:
                with open("/proc/%s/stat" % pid, "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
            except (OSError, IndexError, ValueError):
                pass
    return ticks * 1000 // os.sysconf("SC_CLK_TCK")


def reaped_cpu_ms() -> int:
    """Time used by the processes that have ended, as far as they were reaped here."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round((used.ru_utime + used.ru_stime) * 1000)


def _own_sizes() -> dict[str, tuple[int, int, int]]:
    """Of each process in here but pid 1 and those of branches, which have a watch of their own."""
    pids = [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]
    sizes = ((pid, _sizes(pid)) for pid in pids)
    return {pid: size for pid, size in sizes if size is not None}


def _sizes(pid: str) -> tuple[int, int, int] | None:
    """Mapped, resident and page-table bytes of a process, which it cannot hide. None if it is in a
    pid namespace below ours: it then has several numbers."""
    found = {b"VmSize:": 0, b"VmRSS:": 0, b"VmSwap:": 0, b"VmPTE:": 0}
    try:
        with open("/proc/%s/status" % pid, "rb") as file:
            for line in file:
                key, _, rest = line.partition(b"\t")
                if key in found:
                    found[key] = int(rest.split()[0]) * 1024
                elif key == b"NSpid:" and len(rest.split()) > 1:
                    return None
    except (OSError, ValueError, IndexError):
        pass
    return found[b"VmSize:"], found[b"VmRSS:"] + found[b"VmSwap:"], found[b"VmPTE:"]


def own_pids() -> set[int]:
    """Every process of this sandbox, pid 1 too, and none of its branches."""
    return {1, *map(int, _own_sizes())}


def _exactly(processes: dict[str, tuple[int, int, int]]) -> int:
    """Shared pages once, and shared memory at its full size: pages of it that a process has let go
    of stay allocated and are in nobody's resident size. A process that does not let itself be
    looked at is taken to hold all it has mapped."""
    total = 0
    shared: dict[str, int] = {}
    for pid, (mapped, _, _) in processes.items():
        try:
            proportional = _proportional(pid)
            shared.update(_shared_memory(pid))
        except (OSError, ValueError, IndexError):
            proportional = mapped
        total += proportional
    return total + sum(shared.values())


def _proportional(pid: str) -> int:
    """Resident memory but for shared anonymous memory, each page divided by its users."""
    found = {b"Pss:": 0, b"Pss_Shmem:": 0, b"SwapPss:": 0}
    with open("/proc/%s/smaps_rollup" % pid, "rb") as file:
        for line in file:
            key, *rest = line.split()
            if key in found:
                found[key] = int(rest[0]) * 1024
    return found[b"Pss:"] - found[b"Pss_Shmem:"] + found[b"SwapPss:"]


def _shared_memory(pid: str) -> dict[str, int]:
    """Inode → bytes of the anonymous shared memory that a process has mapped."""
    found: dict[str, int] = {}
    with open("/proc/%s/maps" % pid, "rb") as file:
        for line in file:
            if b"/dev/zero (deleted)" in line:
                span, _, _, _, inode, *_ = line.split()
                first, last = (int(end, 16) for end in span.split(b"-"))
                found[inode.decode()] = found.get(inode.decode(), 0) + last - first
    return found
