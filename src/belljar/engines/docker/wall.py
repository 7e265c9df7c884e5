"""One container, as the host sees it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from belljar import threads
from belljar.engines.base import Inside, Seen
from belljar.engines.linux import uncounted
from belljar.engines.linux.pidfd import kill
from belljar.engines.making import DestroyedOnce
from belljar.errors import BelljarError, EngineError
from belljar.model import GIB, Limits, Usage

from . import plan
from .daemon import Refused, Silent
from .groups import ContainerGroup
from .stream import Attached

if TYPE_CHECKING:
    from .engine import DockerEngine

log = logging.getLogger("belljar")
UPDATE_S = 5.0
UNUSED_BYTES = GIB
"""Memory that a process may reserve beyond its limit where only the agent watches what it really
uses: thread stacks are mostly never touched."""


class DockerWall(DestroyedOnce):
    """Killed by a descriptor of its first process where that can be had: it works also while the
    daemon does not answer, and hits no other process by mistake."""

    def __init__(
        self,
        engine: DockerEngine,
        container: str,
        stream: Attached,
        *,
        isolation: Mapping[str, str],
        inputs: Path | None,
        hosts: Path | None,
        limits: Limits,
        reserve: plan.Reserve,
        uid: int,
    ) -> None:
        self.stream = stream
        self.isolation = isolation
        self.inputs = inputs
        self.hosts = hosts
        """Its /etc/hosts, on the host."""
        self.container = container
        self.uid = uid
        self._engine = engine
        self._limits = limits
        self._reserve = reserve
        self._group: ContainerGroup | None = None
        self._in_force = limits
        self._held: int | None = None
        """Memory that was in use before the code came, where that is not the code's."""
        self._pidfd = -1
        self._pid: int | None = None
        self._sockets: uncounted.Sockets | None = None
        self._used = False
        self._flooded = False
        self._last: Seen | None = None
        self._killed = False
        stream.at_end = self._ended

    def started(self, pid: int) -> None:
        """Takes hold of the first process and its group, if it is on this machine and ours to."""
        try:
            pidfd = os.pidfd_open(pid)
        except (AttributeError, OSError):
            pidfd = -1
        try:
            self._sockets = uncounted.Sockets(os.open(f"/proc/{pid}/net/sockstat", os.O_RDONLY))
            self._pid = pid
        except OSError:  # over already; or not ours to look at, as a rootless daemon's can be
            pass
        self._group = self._engine.groups.of(pid, self.container)
        if self._group and pidfd >= 0 and os.geteuid() == 0:
            self._pidfd = pidfd
        elif pidfd >= 0:
            os.close(pidfd)
        self._in_force = self._exactly(self._limits)
        if self._group:
            self._group.assume(self._in_force)

    def settle(self) -> None:
        if self._group is None:
            return
        try:
            self._group.baseline()
            if self._reserve.memory_bytes and self._held is None:  # later on it is the code's
                self._held = self._group.memory()
                self._apply_exactly(self._limits)
        except FileNotFoundError:  # it ended meanwhile; the stream will say so
            self._group = None

    def apply(self, limits: Limits) -> Inside:
        changed = plan.resources(limits, self._reserve) != plan.resources(
            self._limits, self._reserve
        )
        self._limits = limits
        self._used = True
        if not self._apply_exactly(limits) and changed:
            path = f"/containers/{self.container}/update"
            body = plan.resources(limits, self._reserve)
            self._engine.daemon.call_now("POST", path, body=body, wait_s=UPDATE_S)
        rlimits = {"RLIMIT_NOFILE": limits.open_files}
        if self._reserve.processes > plan.AGENT_PROCESSES:  # the group counts the runtime's own
            rlimits["RLIMIT_NPROC"] = limits.processes + plan.AGENT_PROCESSES
        if self._group:
            return Inside(rlimits=rlimits)
        rlimits["RLIMIT_DATA"] = limits.memory_bytes + UNUSED_BYTES
        return Inside(rlimits=rlimits, watch_memory_bytes=limits.memory_bytes)

    def _apply_exactly(self, limits: Limits) -> bool:
        """Docker would run a program to write the same files, fifty times slower, and knows not
        what was held before the code came."""
        if self._group is None or self._pidfd < 0:
            return False
        wanted = self._exactly(limits)
        if wanted != self._in_force:
            self._group.apply(wanted, reserve=self._reserve.processes)
            self._in_force = wanted
        return True

    def _exactly(self, limits: Limits) -> Limits:
        """With what is not the code's on top: as far as it is known, else as it was planned."""
        held = self._reserve.memory_bytes if self._held is None else self._held
        return dataclasses.replace(limits, memory_bytes=limits.memory_bytes + held)

    def look(self) -> Seen | None:
        seen = self._read() or self._last
        if self._flooded:
            seen = Seen(usage=seen.usage if seen else Usage(), out_of_memory=True)
        if self._killed:
            if not self.stream.ended and self._engine.is_silent():
                raise Silent(
                    "Docker stopped answering while the code ran",
                    hint="look at the daemon's log, or restart it",
                )
        elif self.stream.ended and not (seen and seen.out_of_memory):
            # Nothing inside can end the first process of a container but a lack of memory.
            raise EngineError(
                "the container was lost while its code ran",
                hint="was it removed (docker rm, docker system prune), or the daemon stopped?",
            )
        return seen

    def has_too_many_sockets(self) -> bool:
        if not self._used or self._flooded or self._sockets is None:
            return False
        return self._sockets.too_many(self._limits.memory_bytes)

    def end_for_memory(self) -> None:
        self._flooded = True
        self.kill()

    def pid(self) -> int | None:
        return self._pid if self._used else None

    def kill(self) -> None:
        if self._killed:
            return
        self._killed = True
        if self._pidfd >= 0:
            kill(self._pidfd)
        else:
            self._engine.later(self._ask_to_kill())

    async def _ask_to_kill(self) -> None:
        try:
            await self._engine.daemon.call("POST", f"/containers/{self.container}/kill")
        except BelljarError:
            pass  # gone already, or `destroy` will meet the same

    async def _destroy(self) -> None:
        if self._pidfd >= 0:
            self.kill()
        self._killed = True
        self._pid = None
        if self._sockets:
            self._sockets.close()
            self._sockets = None
        self.stream.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        try:
            await self._engine.remove(self.container)
        finally:
            if self.inputs:
                await threads.REMOVALS.do_for(
                    threads.OURS, shutil.rmtree, self.inputs, ignore_errors=True
                )
            if self.hosts:
                self.hosts.unlink(missing_ok=True)
            self._engine.uids.discard(self.uid)
            self._engine.walls.discard(self)

    def _ended(self) -> None:
        """The last moment at which the group is still there, if it is."""
        self._last = self._read() or self._last
        if not self._killed and not (self._last and self._last.out_of_memory) and self._group:
            self._last = self._from_history()
        if self.stream.words and not self._killed:
            words = self.stream.words.decode("utf-8", "replace").strip()
            log.warning("a container ended: %s", words[-500:])

    def _from_history(self) -> Seen | None:
        """gVisor's kernel dies as a whole, and its group with it; the daemon has noted why."""
        try:
            events = self._engine.daemon.history(self.container)
        except BelljarError:
            return self._last
        usage = self._last.usage if self._last else Usage()
        return Seen(usage=usage, out_of_memory="oom" in events)

    def _read(self) -> Seen | None:
        if self._group is None:
            return None
        try:
            used, kills = self._group.usage(), self._group.oom_kills()
        except OSError:
            return None
        processes = used.processes if used.peak_processes is None else used.peak_processes
        usage = Usage(
            cpu_ms=used.cpu_ms,
            peak_memory_bytes=max(0, used.peak_memory_bytes - (self._held or 0)),
            peak_processes=max(0, processes - plan.AGENT_PROCESSES),
        )
        return Seen(usage=usage, out_of_memory=kills > 0)


async def gone(engine: DockerEngine, container: str) -> None:
    """Returns when the daemon knows nothing of it any more. It removes containers by itself, too,
    and refuses to while it does."""
    path = f"/containers/{container}"
    for pause_s in (0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0):
        await asyncio.sleep(pause_s)
        try:
            await engine.daemon.call("DELETE", path, query={"force": "1", "v": "1"})
            return
        except Refused as error:
            if error.status == 404:
                return
            refusal = error
    raise refusal
