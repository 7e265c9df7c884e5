"""One sandbox of gVisor as the host sees it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from belljar import threads
from belljar.engines.base import Inside, Seen
from belljar.engines.linux import cgroups
from belljar.engines.linux.cgroups.removal import removed
from belljar.engines.linux.pidfd import exited, kill
from belljar.engines.making import DestroyedOnce
from belljar.model import Limits, Usage

from . import group as groups
from .folder import kill_users


class GvisorWall(DestroyedOnce):
    def __init__(
        self,
        *,
        stream: socket.socket,
        folder: Path,
        group: cgroups.Group | None,
        isolation: Mapping[str, str],
        limits: Limits,
        gone: Callable[[GvisorWall], None],
    ) -> None:
        self.stream = stream
        self.isolation = isolation
        self.inputs: Path | None = folder / "inputs"
        self.folder = folder
        self._group = group
        self._limits = limits
        self._gone = gone
        self._pid = int((folder / "pid").read_text())
        self._pidfd = _pidfd(self._pid)
        self._held_bytes = 0
        self._killed = False

    def settle(self) -> None:
        """What is held at the first time was there before any code; later on it is the code's."""
        if self._group:
            self._group.baseline()
            if not self._held_bytes:
                self._held_bytes = self._group.usage().peak_memory_bytes
                groups.apply(self._group, self._limits, held_bytes=self._held_bytes)

    def apply(self, limits: Limits) -> Inside:
        if self._group:
            self._group.begin()
            if limits != self._limits:
                groups.apply(self._group, limits, held_bytes=self._held_bytes)
                self._limits = limits
        # gVisor counts a process for the user who started it: the code's first one is the agent's.
        # Randomness needs no word from here: gVisor asks the host for it, and each copy of the
        # snapshot takes new seeds before it says that it is ready.
        return Inside(
            rlimits={"RLIMIT_NOFILE": limits.open_files, "RLIMIT_NPROC": limits.processes - 1},
            watch_memory_bytes=limits.memory_bytes,
        )

    def look(self) -> Seen | None:
        """The processor time and the memory of the host that the run cost; how many processes there
        are inside only the agent can tell."""
        if self._group is None:
            return None
        try:
            used, killed = self._group.usage(), self._group.oom_kills() > 0
        except (FileNotFoundError, KeyError):  # destroyed meanwhile
            return None
        usage = Usage(
            cpu_ms=used.cpu_ms,
            peak_memory_bytes=max(0, used.peak_memory_bytes - self._held_bytes),
            peak_processes=0,
        )
        return Seen(usage=usage, out_of_memory=killed)

    def kill(self) -> None:
        if self._pidfd >= 0:
            kill(self._pidfd)
        if self._group:
            self._group.kill()
        elif not self._killed:
            kill_users(self.folder)
        self._killed = True

    async def _destroy(self) -> None:
        try:
            self.kill()
            self.stream.close()
            if self._pidfd >= 0:
                await exited(self._pidfd)
                os.close(self._pidfd)
                self._pidfd = -1
                with contextlib.suppress(ChildProcessError):  # ours only if orphans come to us
                    os.waitpid(self._pid, os.WNOHANG)
            if self._group:
                await removed(self._group, pauses_s=groups.PAUSES_S)
            await threads.REMOVALS.do_for(
                threads.OURS, shutil.rmtree, self.folder, ignore_errors=True
            )
        finally:
            self._gone(self)


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:  # it has ended already, which the stream will tell
        return -1
