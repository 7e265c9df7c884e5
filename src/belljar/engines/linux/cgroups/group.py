"""The group of one sandbox: its limits, what it used, and its end."""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from belljar.model import Limits

from . import files
from .hierarchy import Hierarchy
from .kill import kill_all
from .plan import plan

_UNTHROTTLE = {1: ("cpu.cfs_quota_us", "-1"), 2: ("cpu.max", "max")}


class Reading(NamedTuple):
    """Usage since `baseline()`. Processes are the kernel's count: threads and the reserve too."""

    cpu_ms: float
    peak_memory_bytes: int
    processes: int
    peak_processes: int | None
    """None where the kernel keeps no peak (before 6.1)."""


class Group:
    """One sandbox's group. Every method is a handful of system calls and never sleeps."""

    __slots__ = (
        "_busy",
        "_cpu_ns",
        "_left",
        "_limits",
        "_memory",
        "_oom_kills",
        "_peak_fd",
        "_processes",
        "hierarchy",
        "name",
    )

    def __init__(self, hierarchy: Hierarchy, name: str) -> None:
        self.hierarchy = hierarchy
        self.name = name
        self._left: list[str] = []
        self._busy = False
        self._limits: Limits | None = None
        self._cpu_ns = 0
        self._oom_kills = 0
        self._memory = _Peak()
        self._processes = _Peak()
        self._peak_fd = -1

    @classmethod
    def create(cls, hierarchy: Hierarchy, name: str) -> Group:
        if "/" in name or name in ("", ".", ".."):
            raise ValueError(f"not a group's name: {name!r}")
        hierarchy.claim()
        group = cls(hierarchy, name)
        try:
            for root in hierarchy.roots:
                os.mkdir(name, 0o755, dir_fd=hierarchy.fds[root])
                group._left.append(root)
        except OSError as error:
            group.remove()
            raise files.engine_error("create", error) from error
        return group

    def apply(self, limits: Limits, *, reserve: int = 1) -> None:
        """Put limits in force; also on a group that already has others."""
        hierarchy = self.hierarchy
        for write in plan(
            limits,
            hierarchy.version,
            reserve=reserve,
            files=hierarchy.files,
            previous=self._limits,
            cpu=hierarchy.limits_cpu,
        ):
            try:
                self._write(write.controller, write.file, write.text)
            except OSError as error:
                # v1 refuses a share above the parent's; -1 means the parent's, which is less.
                if write.file != "cpu.cfs_quota_us" or error.errno != errno.EINVAL:
                    raise files.engine_error(f"apply {write.file}={write.text}", error) from error
                self._write(write.controller, write.file, "-1")
        self._limits = limits

    def begin(self) -> None:
        """Code is about to run in here: until it is removed, the group counts as in use."""
        if not self._busy:
            self._busy = True
            self.hierarchy.busy(1)

    def open_entrances(self, *, for_others: bool = False) -> list[int]:
        """Files into which a process with one thread writes `0` to move itself; `for_others`: into
        which somebody else writes its pid, to move it with all its threads.

        To move it from outside can wait milliseconds for a kernel-wide lock on v1. The caller
        closes them, on both sides, before any code that is not ours runs.
        """
        one_thread = self.hierarchy.version == 1 and not for_others
        file = "tasks" if one_thread else "cgroup.procs"
        opened: list[int] = []
        try:
            for root in self._left:
                opened.append(self._open(root, file, os.O_WRONLY))
        except OSError:
            for entrance in opened:
                os.close(entrance)
            raise
        return opened

    def expect_move(self, member: int) -> None:
        """For a thread, shortly before a process is moved in from outside (`for_others`). To do so
        the kernel waits some ten milliseconds for all processors, unless it has just done so: it
        does it here, for a process that is inside already."""
        if self.hierarchy.fds:  # it may have been closed meanwhile
            self._attempt("pids", "cgroup.procs", str(member))

    def baseline(self) -> None:
        """Count from now: a pooled sandbox's warm-up is not its user's usage."""
        self._cpu_ns = self._read_cpu_ns()
        self._oom_kills += self.oom_kills()
        resettable = self._reset_peak()
        self._memory = _Peak(
            before=0 if resettable else self._read_peak_memory(), seen=self._read_memory()
        )
        self._processes = _Peak(
            before=self._read_optional("pids", "pids.peak") or 0,
            seen=int(self._read("pids", "pids.current")),
        )

    def usage(self) -> Reading:
        memory = self._read_memory()
        processes = int(self._read("pids", "pids.current"))
        peak_processes = self._read_optional("pids", "pids.peak")
        return Reading(
            cpu_ms=(self._read_cpu_ns() - self._cpu_ns) / 1e6,
            peak_memory_bytes=self._memory.take(memory, self._read_peak_memory()),
            processes=processes,
            peak_processes=None
            if peak_processes is None
            else self._processes.take(processes, peak_processes),
        )

    def oom_kills(self) -> int:
        """How many processes the kernel killed for memory since `baseline()`."""
        file = "memory.oom_control" if self.hierarchy.version == 1 else "memory.events"
        return files.value(self._read("memory", file), "oom_kill") - self._oom_kills

    def kill(self) -> bool:
        """SIGKILL everything inside; True once nothing is left. Call again, or `remove`, later."""
        if "cgroup.kill" in self.hierarchy.files and self._attempt("memory", "cgroup.kill", "1"):
            return not self.members()
        self._end(set())
        return not self.members()

    def empty(self, spared: int) -> bool:
        """SIGKILL everything inside but one process, and let nothing fork from now on; True once
        that process is alone. Call again."""
        self._end({spared})
        if self.members() - {spared}:
            return False
        self.hold()
        return True

    def _end(self, spared: set[int]) -> None:
        """Forks are blocked first: a chain of them would outrun a kill."""
        self._attempt("pids", "pids.max", "0")
        hierarchy = self.hierarchy
        if len(hierarchy.roots) > 1:
            # v1: forks of a process that is not in every one of its groups are not blocked yet.
            counted = files.members(hierarchy.fds["pids"], self.name)
            for stray in self.members() - counted:
                self._attempt("pids", "cgroup.procs", str(stray))
        # On many kernels a throttled group's processes wait for their share even to die. It is
        # given to the dying only.
        if kill_all(lambda: self.members() - spared) and hierarchy.limits_cpu:
            self._attempt("cpu", *_UNTHROTTLE[hierarchy.version])

    def hold(self) -> None:
        """Puts the limit on the processor's share back, which `kill` lifts."""
        hierarchy = self.hierarchy
        for write in plan(self._limits, hierarchy.version) if self._limits else ():
            if write.controller == "cpu" and hierarchy.limits_cpu:
                self._attempt(*write)

    def members(self) -> set[int]:
        """Live processes inside, as seen from our pid namespace, by the lists of all hierarchies:
        a process may be in some of a sandbox's groups only."""
        fds = self.hierarchy.fds
        return set().union(*(files.members(fds[root], self.name) for root in self.hierarchy.roots))

    def remove(self) -> bool:
        """Remove the emptied group; False while something in it is still dying: try again."""
        self._close_peak()
        fds = self.hierarchy.fds
        for _ in range(3 if fds else 0):
            left = [root for root in self._left if not files.rmdir(self.name, dir_fd=fds[root])]
            self._left = left
            if not self._left:
                break
            os.sched_yield()
        if not self._left and self._busy:
            self._busy = False
            self.hierarchy.busy(-1)
        return not self._left

    def _reset_peak(self) -> bool:
        """v1 resets it for all; v2 since 6.12 for the descriptor that wrote, which must be kept."""
        if self.hierarchy.version == 1:
            self._write("memory", "memory.max_usage_in_bytes", "0")
            return True
        if "memory.peak" not in self.hierarchy.files:
            return False
        try:
            if self._peak_fd < 0:
                self._peak_fd = self._open("memory", "memory.peak", os.O_RDWR)
            os.write(self._peak_fd, b"reset")
        except OSError:
            self._close_peak()
            return False
        return True

    def _close_peak(self) -> None:
        if self._peak_fd >= 0:
            os.close(self._peak_fd)
            self._peak_fd = -1

    def _read_memory(self) -> int:
        version_1 = self.hierarchy.version == 1
        return int(self._read("memory", "memory.usage_in_bytes" if version_1 else "memory.current"))

    def _read_peak_memory(self) -> int:
        if self._peak_fd >= 0:
            return int(os.pread(self._peak_fd, 64, 0))
        version_1 = self.hierarchy.version == 1
        file = "memory.max_usage_in_bytes" if version_1 else "memory.peak"
        return self._read_optional("memory", file) or 0

    def _read_cpu_ns(self) -> int:
        if self.hierarchy.version == 1:
            return int(self._read("cpuacct", "cpuacct.usage"))
        return files.value(self._read("cpu", "cpu.stat"), "usage_usec") * 1000

    def _read_optional(self, controller: str, file: str) -> int | None:
        return int(self._read(controller, file)) if file in self.hierarchy.files else None

    def _open(self, controller: str, file: str, flags: int) -> int:
        fd = self.hierarchy.fds[controller]
        return os.open(f"{self.name}/{file}", flags | os.O_CLOEXEC, dir_fd=fd)

    def _read(self, controller: str, file: str) -> bytes:
        return files.read(self.hierarchy.fds[controller], f"{self.name}/{file}")

    def _write(self, controller: str, file: str, text: str) -> None:
        files.write(self.hierarchy.fds[controller], f"{self.name}/{file}", text)

    def _attempt(self, controller: str, file: str, text: str) -> bool:
        return files.attempt(self.hierarchy.fds[controller], f"{self.name}/{file}", text)


class _Peak:
    """A maximum the kernel may not let us reset: its value before, and the most seen since.

    Below `before` the kernel's figure says nothing about this run, so the answer is then a lower
    bound.
    """

    __slots__ = ("before", "seen")

    def __init__(self, *, before: int = 0, seen: int = 0) -> None:
        self.before = before
        self.seen = seen

    def take(self, now: int, kernels: int) -> int:
        self.seen = max(self.seen, now)
        return kernels if kernels > self.before else self.seen
