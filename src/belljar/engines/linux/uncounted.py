"""Memory of the kernel that no cgroup counts, watched from outside: what waits in sockets, and file
locks. For engines whose sandboxes use this machine's kernel."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection
from typing import Protocol

from belljar import threads
from belljar.errors import EngineUnavailable

from . import locks

WATCH_S = 0.05
MOST_SOCKETS, FEWEST_SOCKETS = 2048, 256
MEMORY_PER_SOCKET = 128 << 10
"""About 20 KB can wait in a connection that nobody accepted, and no cgroup counts them: a sandbox
has at most a socket for each 128 KB of its memory limit, so that this stays a small part of it."""


class Watchable(Protocol):
    """A sandbox, as far as it is watched here."""

    def has_too_many_sockets(self) -> bool: ...

    def pid(self) -> int | None:
        """Of its first process, as /proc shows it here; None while it runs no code."""

    def end_for_memory(self) -> None:
        """The verdict on its run will be that it is out of memory."""


class Sockets:
    """How many sockets there are in a network namespace, including those that no process holds."""

    def __init__(self, file: int) -> None:
        """`file`: its /proc/net/sockstat, opened; taken over."""
        self._file = file

    def too_many(self, memory_bytes: int) -> bool:
        """For a sandbox with that memory limit."""
        for_memory = memory_bytes // MEMORY_PER_SOCKET
        return self.count() > max(FEWEST_SOCKETS, min(MOST_SOCKETS, for_memory))

    def count(self) -> int:
        """The first line, "sockets: used 12", is about that namespace; of the lines for each
        protocol that follow, some are about the whole machine."""
        return int(os.pread(self._file, 64, 0).split(None, 3)[2])

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Watch:
    """Of one engine, as long as it lives."""

    def __init__(self, sandboxes: Collection[Watchable]) -> None:
        """`sandboxes`: those that the engine has at each moment."""
        self._sandboxes = sandboxes
        self._task: asyncio.Task[None] | None = None
        try:
            self._growth = locks.Growth()
        except (OSError, ValueError, IndexError) as error:
            raise EngineUnavailable(
                f"the kernel's memory cannot be watched: /proc/vmstat: {error}",
                hint="sandboxes need the kernel's own /proc",
            ) from error

    def begin(self) -> None:
        if self._task is None:
            self._task = asyncio.ensure_future(self._go_on())

    def close(self) -> None:
        if self._task:
            self._task.cancel()
        self._growth.close()

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            for sandbox in list(self._sandboxes):
                try:
                    flooded = sandbox.has_too_many_sockets()
                except Exception:  # a sandbox that cannot be watched must not go on
                    flooded = True
                if flooded:
                    sandbox.end_for_memory()
            if self._growth.seen():
                await self._limit_locks()

    async def _limit_locks(self) -> None:
        held = {pid: sandbox for sandbox in self._sandboxes if (pid := sandbox.pid())}
        if not held:
            return
        try:
            found = await threads.ENGINES.do_for(threads.OURS, locks.hoarders, held.keys())
        except (OSError, ValueError, IndexError):  # as above
            found = set(held)
        for pid in found:
            held[pid].end_for_memory()
