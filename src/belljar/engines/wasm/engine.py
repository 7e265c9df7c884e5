"""The wasm engine, seen from the host.

The wall is WebAssembly itself: an interpreter compiled to a module has no instruction with which
to reach anything but its own memory and the functions it was given. Each sandbox is one process
around one such module, forked from a warm one, behind a filter that leaves it hardly a system call.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from belljar import threads
from belljar.engines.base import Capabilities, Control, Ground, Inside, Seen
from belljar.engines.linux.pidfd import exited, kill
from belljar.engines.making import DestroyedOnce, Making
from belljar.errors import EngineError, EngineUnavailable
from belljar.model import GIB, MIB, Limits
from belljar.settings import Settings

from . import available, runtimes
from .process import ROOM_HINT, Zygote
from .runtimes import Runtime

MOST_MEMORY_BYTES = 4 * GIB
"""Addresses have 32 bits inside."""
LEAST_SPARE_BYTES = 8 * MIB
"""A memory limit must leave at least this much beyond what the interpreter itself takes."""


class WasmEngine:
    name = "wasm"
    capabilities = Capabilities(
        languages=frozenset({"python", "javascript"}),
        environments=frozenset(runtimes.BY_ENVIRONMENT),
        processes=False,
        fresh_exec=False,
        live_stdin=True,
        own_environments=True,
        terminals=False,
    )
    interpreter = "python3"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._zygotes: dict[str, asyncio.Task[Zygote]] = {}
        self._modules: asyncio.Task[Mapping[str, Path]] | None = None
        self._walls: set[WasmWall] = set()
        self._making = Making[WasmWall]()

    def controls(self) -> list[Control]:
        missing = available.why_not(self._settings)
        fetched = not runtimes.missing(self._settings)
        return [
            Control(
                name="wasmtime",
                mechanism="WebAssembly: a memory of its own, only linked functions",
                works=missing is None,
                hint=missing.hint if missing else "",
            ),
            Control(
                name="interpreters",
                mechanism=", ".join(f"{r.name} {r.version}" for r in runtimes.ALL),
                works=fetched,
                hint="" if fetched else "belljar image build --wasm",
                essential=False,
            ),
        ]

    async def create(self, ground: Ground, limits: Limits, *, waiting: bool) -> WasmWall:
        """Not to be cancelled half-way: the zygote's answer would be taken for the next one's."""
        return await self._making.make(self._make(ground, limits, waiting=waiting))

    async def _make(self, ground: Ground, limits: Limits, *, waiting: bool) -> WasmWall:
        runtime = runtimes.BY_ENVIRONMENT.get(ground.name)
        if runtime is None:
            raise EngineUnavailable(
                f"the engine 'wasm' has no environment {ground.name!r}",
                hint=f"it has {', '.join(runtimes.BY_ENVIRONMENT)}; take another engine",
            )
        zygote = await self._zygote(runtime)
        try:
            return await self._make_from(zygote, limits, waiting=waiting)
        except EngineError:
            if zygote.alive:
                raise
        # Killed from outside, perhaps long ago. No code has run yet, so a new one may take over.
        return await self._make_from(await self._zygote(runtime), limits, waiting=waiting)

    async def _make_from(self, zygote: Zygote, limits: Limits, *, waiting: bool) -> WasmWall:
        isolation = _isolation(zygote)
        self._check_required(isolation)
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise EngineError(
                f"the host has no room for another sandbox: {error}", hint=ROOM_HINT
            ) from error
        try:
            pidfd = await zygote.spawn(
                theirs,
                disk_bytes=limits.disk_bytes,
                disk_files=limits.disk_files,
                rehearse=waiting,
            )
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        wall = WasmWall(self, ours, pidfd, isolation, zygote.memory_bytes)
        self._walls.add(wall)
        return wall

    async def close(self) -> None:
        await self._making.settled()
        walls = [wall.destroy() for wall in list(self._walls)]
        await asyncio.gather(*walls, return_exceptions=True)
        zygotes, self._zygotes = list(self._zygotes.values()), {}
        for task in zygotes:
            task.cancel()
        await asyncio.gather(*zygotes, return_exceptions=True)
        for task in zygotes:
            if not task.cancelled() and not task.exception():
                task.result().close()

    async def _zygote(self, runtime: Runtime) -> Zygote:
        """The interpreter's zygote; a dead one is replaced, two callers never start two."""
        task = self._zygotes.get(runtime.name)
        if task is None or (task.done() and (task.exception() or not task.result().alive)):
            task = asyncio.ensure_future(self._start(runtime))
            self._zygotes[runtime.name] = task
        return await asyncio.shield(task)

    async def _start(self, runtime: Runtime) -> Zygote:
        if missing := available.why_not(self._settings):
            raise EngineUnavailable(
                f"the engine 'wasm' needs more: {missing.why}", hint=missing.hint
            )
        if self._modules is None or (self._modules.done() and self._modules.exception()):
            self._modules = asyncio.ensure_future(
                threads.ENGINES.do_for(threads.OURS, _modules, self._settings)
            )
        modules = await asyncio.shield(self._modules)
        return await Zygote.start(runtime, modules[runtime.name])

    def _check_required(self, isolation: Mapping[str, str]) -> None:
        for control in self._settings.required:
            if isolation.get(control, "absent") == "absent":
                raise EngineUnavailable(
                    f"the required control {control!r} is not in force behind this wall",
                    hint=f"it has {', '.join(sorted(isolation))}",
                )


class WasmWall(DestroyedOnce):
    """One sandbox: one process, known by a descriptor."""

    def __init__(
        self,
        engine: WasmEngine,
        stream: socket.socket,
        pidfd: int,
        isolation: Mapping[str, str],
        interpreter_bytes: int,
    ) -> None:
        self.stream = stream
        self.isolation = isolation
        self.inputs: Path | None = None
        self._engine = engine
        self._pidfd = pidfd
        self._interpreter_bytes = interpreter_bytes

    def settle(self) -> None:
        pass

    def apply(self, limits: Limits) -> Inside:
        least = self._interpreter_bytes + LEAST_SPARE_BYTES
        if limits.memory_bytes < least:
            raise EngineUnavailable(
                f"the interpreter alone takes {self._interpreter_bytes // MIB} MiB here",
                hint=f"memory_bytes must be at least {least}",
            )
        return Inside(
            rlimits={"RLIMIT_NOFILE": limits.open_files},
            watch_memory_bytes=min(limits.memory_bytes, MOST_MEMORY_BYTES),
        )

    def look(self) -> Seen | None:
        """The process around the module tells: it is ours."""
        return None

    def kill(self) -> None:
        kill(self._pidfd)

    async def _destroy(self) -> None:
        self.kill()
        await exited(self._pidfd)
        self.stream.close()
        os.close(self._pidfd)
        self._pidfd = -1
        self._engine._walls.discard(self)


def _modules(settings: Settings) -> Mapping[str, Path]:
    """Each interpreter, compiled. Takes seconds the first time in an installation's life."""
    from . import compiled, fetch  # needed once per engine

    folder = runtimes.folder(settings)
    if runtimes.missing(settings):
        fetch.build(settings)
    return {r.name: compiled.compile_module(r, folder) for r in runtimes.ALL}


def _isolation(zygote: Zygote) -> dict[str, str]:
    return {
        "user": zygote.identity,
        "processes_hidden": "no such function",
        "filesystem": "in memory, none of the host's",
        "network": "none (no such function)",
        "system_calls": "WebAssembly, then a seccomp allowlist",
        "disk": "counted in memory",
        "memory": "module limit, then rlimit",
        "processes": "none can be started",
        "cpu": "one thread",
    }
