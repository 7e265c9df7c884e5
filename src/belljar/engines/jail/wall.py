"""One sandbox of the jail, seen from the host: what is enforced about it, what it used, its end."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

from belljar import threads
from belljar.engines.base import Inside, Seen
from belljar.engines.linux import cgroups, uncounted
from belljar.engines.linux.cgroups.removal import removed
from belljar.engines.linux.pidfd import exited, kill, pid_of
from belljar.engines.making import DestroyedOnce
from belljar.model import GIB, Limits, Usage

from . import netns
from .process import Born, Zygote

AGENT_PROCESSES = 1
"""The agent counts as a process of its sandbox; the limit is about the code's."""
OPEN_FILES_UNCOUNTED = 256
"""Where no cgroup counts what waits in sockets: fewer of them, each with a short queue (netns)."""
UNCOUNTED = 4
"""There a socket's whole buffer, 208 KB, is counted by nobody, so that many times fewer of them."""
UNUSED_BYTES = GIB
"""Memory that a process may reserve beyond its limit where no cgroup counts what it really uses:
thread stacks are mostly never touched. The watchdog looks at the rest."""

EMPTY_PAUSES_S = (0.001, 0.01, 0.05, 0.2, 0.5, 1.0, 2.0, 5.0)


class JailWall(DestroyedOnce):
    """Its pid 1 is known by a descriptor, so no other process is hit by mistake."""

    def __init__(
        self,
        on_gone: Callable[[JailWall], None],
        stream: socket.socket,
        born: Born,
        group: cgroups.Group | None,
        index: int,
        isolation: dict[str, str],
        limits: Limits,
        zygote: Zygote,
        number: int,
    ) -> None:
        self.zygote = zygote
        self.index = index
        """Of its uid in the zygote's range; 0 where there is no range, and in a branch."""
        self.number = number
        """Its name with the zygote that it came from."""
        self.family = number
        """Of all that share its network: the number of the first of them."""
        self.stream = stream
        self.isolation: dict[str, str] = isolation
        self.inputs: Path | None = None
        self.strays: netns.Strays | None = None
        self._on_gone = on_gone
        self._pidfd = born.pidfd
        self._sockets = uncounted.Sockets(born.sockets)
        self.group = group
        self._limits = limits
        self._used = False
        self._expecting: asyncio.Future[None] | None = None
        self._flooded = False

    def settle(self) -> None:
        if self.group:
            self.group.baseline()

    def apply(self, limits: Limits) -> Inside:
        self._used = True
        if self.group:
            self.group.begin()
            if limits != self._limits:
                self.group.apply(limits, reserve=AGENT_PROCESSES)
                self._limits = limits
            return Inside(rlimits={"RLIMIT_NOFILE": limits.open_files})
        self._limits = limits
        rlimits = {
            "RLIMIT_NOFILE": min(limits.open_files, OPEN_FILES_UNCOUNTED),
            "RLIMIT_NPROC": limits.processes + AGENT_PROCESSES,
            "RLIMIT_DATA": limits.memory_bytes + UNUSED_BYTES,
        }
        return Inside(rlimits=rlimits, watch_memory_bytes=limits.memory_bytes)

    def look(self) -> Seen | None:
        if self.group is None:
            return Seen(usage=Usage(), out_of_memory=True) if self._flooded else None
        try:
            used, killed = self.group.usage(), self.group.oom_kills() > 0 or self._flooded
        except FileNotFoundError:  # destroyed meanwhile
            return None
        processes = used.processes if used.peak_processes is None else used.peak_processes
        usage = Usage(
            cpu_ms=used.cpu_ms,
            peak_memory_bytes=used.peak_memory_bytes,
            peak_processes=max(0, processes - AGENT_PROCESSES),
        )
        return Seen(usage=usage, out_of_memory=killed)

    def watch_strays(self) -> None:
        if self.strays is None and self._pidfd >= 0:
            self.strays = netns.Strays(self._pidfd)

    def has_too_many_sockets(self) -> bool:
        if not self._used or self._flooded or self._pidfd < 0:
            return False
        memory_bytes = self._limits.memory_bytes
        return self._sockets.too_many(memory_bytes if self.group else memory_bytes // UNCOUNTED)

    def end_for_memory(self) -> None:
        self._flooded = True
        self.kill()

    def pid(self) -> int | None:
        return pid_of(self._pidfd) if self._used and self._pidfd >= 0 else None

    def kill(self) -> None:
        kill(self._pidfd)

    def expect_move(self) -> None:
        """A copy will be moved into its group: what takes long about that is done meanwhile."""
        if self.group:
            work = threads.ENGINES.do_for(threads.OURS, self.group.expect_move, pid_of(self._pidfd))
            self._expecting = asyncio.ensure_future(work)

    async def empty(self) -> bool | None:
        """Ends everything inside but pid 1, and what lives in walls of its own there; False if
        something does not end, None if nobody but pid 1 can do it."""
        if self.group is None:
            return None
        if self._pidfd < 0:
            return True  # it was destroyed
        first = pid_of(self._pidfd)
        for pause_s in EMPTY_PAUSES_S:
            if self.group.empty(first):
                return True
            await asyncio.sleep(pause_s)
        return False

    async def _destroy(self) -> None:
        self.kill()
        await exited(self._pidfd)
        try:
            self.stream.close()
            os.close(self._pidfd)
            self._pidfd = -1
            self.strays = None
            self._sockets.close()
            if self.group:
                await removed(self.group)
        finally:
            self._on_gone(self)
