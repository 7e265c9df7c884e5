"""The jail, seen from the host: zygotes, and the sandboxes that come from them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import resource
import socket
from collections.abc import Mapping, Sequence

from belljar.engines.base import (
    Branch,
    Capabilities,
    Control,
    Doors,
    Ground,
    Mount,
    Wall,
)
from belljar.engines.linux import cgroups, uncounted
from belljar.engines.making import Making
from belljar.errors import EngineError, EngineUnavailable, Unsupported
from belljar.model import Limits
from belljar.runtimes.interpreter import base_interpreter
from belljar.settings import Settings

from . import launch
from .family import BUILDERS
from .lending import Lending
from .process import ROOM_HINT, Zygote
from .wall import AGENT_PROCESSES, JailWall

BY_GATEWAY = "named hosts, by the gateway (namespace)"
DESCRIPTORS = 65_536
_any_index = itertools.count(int.from_bytes(os.urandom(2), "little"))
_taken: set[int] = set()
"""Ids of the range that all zygotes of this process have, whichever engine they belong to."""


class JailEngine:
    name = "jail"
    capabilities = Capabilities(kept=True, branches=True, mounts=True, network=True, doors=True)

    def __init__(self, settings: Settings) -> None:
        self._required = settings.required
        self._zygotes: dict[str, asyncio.Task[Zygote]] = {}
        self._numbers = itertools.count(1)
        self._walls: set[JailWall] = set()
        self._making = Making[JailWall]()
        self._lending = Lending()
        self._watch = uncounted.Watch(self._walls)
        _room_for_descriptors()
        begun = launch.take()
        self._hierarchy = begun.hierarchy if begun else cgroups.claim_ours(ask_systemd=True)
        self._launched = {begun.launched.ground.key: begun.launched} if begun else {}
        self.interpreter = base_interpreter()

    def controls(self) -> list[Control]:
        from . import checks  # much to load, and only doctor asks

        return checks.controls()

    async def create(self, ground: Ground, limits: Limits, *, waiting: bool) -> JailWall:
        """Not to be cancelled half-way: the zygote's answer would be taken for the next one's."""
        return await self._making.make(self._make(ground, limits, (), waiting=waiting))

    async def create_with(
        self,
        ground: Ground,
        limits: Limits,
        mounts: Sequence[Mount],
        *,
        doors: Doors | None = None,
    ) -> JailWall:
        return await self._making.make(self._make(ground, limits, mounts, doors, waiting=False))

    async def _make(
        self,
        ground: Ground,
        limits: Limits,
        mounts: Sequence[Mount],
        doors: Doors | None = None,
        *,
        waiting: bool,
    ) -> JailWall:
        zygote = await self._zygote(ground)
        try:
            return await self._make_from(zygote, limits, mounts, doors, waiting=waiting)
        except EngineError:
            if zygote.alive:
                raise
        # Killed from outside, perhaps long ago. No code has run yet, so a new one may take over.
        zygote = await self._zygote(ground)
        return await self._make_from(zygote, limits, mounts, doors, waiting=waiting)

    async def _make_from(
        self,
        zygote: Zygote,
        limits: Limits,
        mounts: Sequence[Mount],
        doors: Doors | None,
        *,
        waiting: bool,
    ) -> JailWall:
        isolation = self._isolation(zygote)
        if doors:
            isolation["network"] = BY_GATEWAY
        self._check_required(isolation)
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as passed:
            try:
                group = self._group(limits)
                if group:
                    undo.callback(group.remove)
                index = self._take_id(zygote)
                undo.callback(_taken.discard, index)
                ours, theirs = socket.socketpair()
                undo.callback(ours.close)
            except OSError as error:
                raise EngineError(
                    f"the host has no room for another sandbox: {error}", hint=ROOM_HINT
                ) from error
            lent = []
            try:
                ids = zygote.ids
                reader = (ids.uid + index, ids.gid + index) if ids.has_range else None
                for mount in mounts:
                    lent.append((mount, await self._lending.lend(mount, reader)))
                    passed.callback(os.close, lent[-1][1])
            except BaseException:
                theirs.close()
                raise
            born = await zygote.spawn(
                theirs,
                group,
                index=index,
                disk_bytes=limits.disk_bytes,
                disk_files=limits.disk_files,
                cpus=self._cores(limits.cpus),
                rehearse=waiting,
                number=(number := next(self._numbers)),
                mounts=lent,
                doors=doors,
            )
            undo.pop_all()
        wall = JailWall(self._gone, ours, born, group, index, isolation, limits, zygote, number)
        if doors:
            wall.watch_strays()
        return self._stands(wall)

    async def attach(self, wall: Wall, mount: Mount) -> None:
        """Not to be cancelled half-way either. For what everybody may read."""
        assert isinstance(wall, JailWall)
        await asyncio.shield(asyncio.ensure_future(self._attach(wall, mount)))

    async def _attach(self, wall: JailWall, mount: Mount) -> None:
        lent = await self._lending.lend(mount, None)
        try:
            await wall.zygote.attach(wall.number, mount, lent)
        finally:
            os.close(lent)

    async def open_doors(self, wall: Wall, doors: Doors) -> None:
        """Not to be cancelled half-way either. For all copies of the sandbox, too."""
        assert isinstance(wall, JailWall)
        work = wall.zygote.open_doors(wall.number, doors)
        await asyncio.shield(asyncio.ensure_future(work))
        for one in self._walls:
            if one.family == wall.family:
                one.isolation["network"] = BY_GATEWAY
        wall.watch_strays()

    def strays(self, wall: Wall) -> int:
        assert isinstance(wall, JailWall)
        return wall.strays.count() if wall.strays else 0

    async def name_hosts(self, wall: Wall, hosts: Mapping[str, str]) -> None:
        assert isinstance(wall, JailWall)
        work = wall.zygote.name_hosts(wall.number, hosts)
        await asyncio.shield(asyncio.ensure_future(work))

    async def branch(self, parent: Wall, limits: Limits) -> Branch:
        """A wall inside `parent`'s for a copy of its interpreter to move into."""
        assert isinstance(parent, JailWall)
        if not parent.zygote.landlock_abi:
            # The new wall is built where the parent's code has every capability over it; nothing
            # else keeps that code from writing into the builder's memory.
            raise Unsupported(
                "a sandbox cannot be branched safely without Landlock",
                hint="add landlock to the kernel's lsm= parameter (Linux 5.13 or newer)",
            )
        with contextlib.ExitStack() as undo:
            try:
                group = self._group(limits, reserve=AGENT_PROCESSES + BUILDERS)
                if group:
                    undo.callback(group.remove)
                ours, theirs = socket.socketpair()
                undo.callback(ours.close)
                family, family_inside = socket.socketpair()
                undo.callback(family.close)
            except OSError as error:
                raise EngineError(
                    f"the host has no room for another sandbox: {error}", hint=ROOM_HINT
                ) from error
            with family_inside:
                born = await parent.zygote.spawn(
                    theirs,
                    group,
                    index=0,
                    disk_bytes=limits.disk_bytes,
                    disk_files=limits.disk_files,
                    cpus=self._cores(limits.cpus),
                    rehearse=False,
                    number=(number := next(self._numbers)),
                    parent=parent.number,
                    to_parent=family_inside,
                )
            undo.pop_all()
        isolation = dict(parent.isolation)
        wall = JailWall(self._gone, ours, born, group, 0, isolation, limits, parent.zygote, number)
        wall.family, wall.strays = parent.family, parent.strays
        wall.expect_move()
        return Branch(wall=self._stands(wall), family=family.detach())

    async def admit(self, wall: Wall, pid: int) -> None:
        """Not to be cancelled half-way either."""
        assert isinstance(wall, JailWall)
        if wall.group:
            work = wall.zygote.move(wall.number, pid, wall.group)
            await asyncio.shield(asyncio.ensure_future(work))

    async def empty(self, wall: Wall) -> bool | None:
        assert isinstance(wall, JailWall)
        return await wall.empty()

    def _stands(self, wall: JailWall) -> JailWall:
        wall.stream.setblocking(False)
        self._walls.add(wall)
        self._watch.begin()
        return wall

    def _gone(self, wall: JailWall) -> None:
        _taken.discard(wall.index)
        self._walls.discard(wall)

    def _cores(self, cpus: float) -> list[int] | None:
        """Where no cgroup limits the share of the processor: the cores to pin the sandbox to."""
        if self._hierarchy and self._hierarchy.limits_cpu:
            return None
        return _random_cores(cpus)

    def _group(self, limits: Limits, *, reserve: int = AGENT_PROCESSES) -> cgroups.Group | None:
        if not self._hierarchy:
            return None
        return cgroups.limited(self._hierarchy, limits, reserve=reserve)

    async def close(self) -> None:
        await self._making.settled()
        self._watch.close()
        walls = [wall.destroy() for wall in list(self._walls)]
        await asyncio.gather(*walls, return_exceptions=True)
        zygotes, self._zygotes = list(self._zygotes.values()), {}
        for task in zygotes:
            task.cancel()
            if task.done() and not task.cancelled() and not task.exception():
                task.result().close()
        for launched in self._launched.values():
            launched.abandon()
        self._launched.clear()
        self._lending.close()
        if self._hierarchy:
            self._hierarchy.close()

    async def _zygote(self, ground: Ground) -> Zygote:
        """The environment's zygote; a dead one is replaced, two callers never start two."""
        task = self._zygotes.get(ground.key)
        if task is None or (task.done() and (task.exception() or not task.result().alive)):
            task = asyncio.ensure_future(self._start(ground))
            self._zygotes[ground.key] = task
        return await asyncio.shield(task)

    async def _start(self, ground: Ground) -> Zygote:
        launched = self._launched.pop(ground.key, None)
        return await Zygote.start(launched or launch.launch(ground, self._hierarchy))

    def _take_id(self, zygote: Zygote) -> int:
        """A uid of the zygote's range that no living sandbox has; 0 where there is no range."""
        if zygote.ids.count == 1:
            return 0
        for _ in range(zygote.ids.count):
            index = next(_any_index) % (zygote.ids.count - 1) + 1
            if index not in _taken:
                _taken.add(index)
                return index
        raise EngineError("no uid is left for another sandbox")

    def _isolation(self, zygote: Zygote) -> dict[str, str]:
        isolation = {
            "user": "namespace, own uid" if zygote.ids.has_range else "namespace, shared uid",
            "processes_hidden": "pid namespace",
            "filesystem": "private read-only root",
            "network": "none (namespace)",
            "sockets": "short queues" if zygote.short_queues else "watched",
            "system_calls": "seccomp allowlist",
            "landlock": f"ABI {zygote.landlock_abi}" if zygote.landlock_abi else "absent",
            "disk": "tmpfs quota",
        }
        if self._hierarchy:
            isolation.update(self._hierarchy.describe())
        else:
            isolation.update(memory="watchdog", processes="rlimit", cpu="affinity")
        return isolation

    def _check_required(self, isolation: Mapping[str, str]) -> None:
        for control in self._required:
            if control not in isolation:
                raise EngineUnavailable(
                    f"the required control {control!r} is unknown",
                    hint=f"known: {', '.join(sorted(isolation))}",
                )
            weak = ("absent", "watchdog", "watched", "rlimit", "affinity", "namespace, shared uid")
            if isolation[control] in weak:
                raise EngineUnavailable(
                    f"the required control {control!r} is not in force here"
                    f" (there is only: {isolation[control]})",
                    hint="belljar doctor says what is missing",
                )


def _room_for_descriptors() -> None:
    """Each sandbox takes three. Also, descriptors that wait in a Unix socket are counted per user
    and against the sender's limit: at the usual 1024 one sandbox with the same uid could keep us
    from passing any."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, DESCRIPTORS) if hard != resource.RLIM_INFINITY else DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _random_cores(cpus: float) -> list[int]:
    """As many cores as the share needs, chosen at random to spread the load."""
    allowed = sorted(os.sched_getaffinity(0))
    count = min(len(allowed), max(1, round(cpus)))
    from random import SystemRandom  # loads a library of hashes that nothing else here needs

    return sorted(SystemRandom().sample(allowed, count))
