"""The engines of one Belljar, each with its pool, made when a run first needs them."""

from __future__ import annotations

import asyncio

from belljar.engines import choice, registry
from belljar.engines.base import Capabilities
from belljar.engines.choice import Choice, Wanted
from belljar.errors import EngineUnavailable, InvalidRequest, UnknownEngine
from belljar.model import Request
from belljar.pool import Pool
from belljar.settings import Settings


class Walls:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pools: dict[str, Pool] = {}
        self._found: dict[tuple[str, Wanted], tuple[Pool, str]] = {}

    def wanted(
        self, request: Request, environment: str, *, live_stdin: bool = False, kept: bool = False
    ) -> Wanted:
        """What a request asks of its wall, beyond what the operator gives to all."""
        usual, most = self._settings.defaults, self._settings.maxima
        return Wanted(
            tuple(request.need),
            request.language,
            environment,
            request.fresh_exec,
            live_stdin,
            request.limits.processes != min(usual.processes, most.processes),
            bool(request.files or request.inputs),
            request.limits.disk_files != min(usual.disk_files, most.disk_files),
            kept,
            bool(request.network),
        )

    def find(self, engine: str, wanted: Wanted) -> tuple[Pool, str]:
        """The pool of the engine that is named, or of the one that is best ("auto"), and why it is.

        An answer is kept: looking at what a machine has takes longer than a run."""
        key = (engine, wanted)
        found = self._found.get(key)
        if found is None:
            chosen = self._choose(engine, wanted)
            found = self._found[key] = (self._pool(chosen.engine), chosen.reason)
        return found

    def forget(self) -> None:
        """A wall failed: perhaps the machine has changed, so the next run looks again."""
        self._found.clear()

    def waiting(self) -> dict[str, dict[str, int]]:
        """How many sandboxes wait, by engine and environment."""
        return {name: pool.waiting() for name, pool in self._pools.items()}

    async def close(self) -> None:
        pools = list(self._pools.values())
        await asyncio.gather(*(pool.close() for pool in pools))
        await asyncio.gather(*(pool.engine.close() for pool in pools))

    def _choose(self, engine: str, wanted: Wanted) -> Choice:
        settings = self._settings
        reason = ""
        if engine == "auto" and not wanted.needs and settings.engine != "auto":
            engine, reason = settings.engine, "the operator's setting"
            if engine not in registry.known(engine):
                raise UnknownEngine(
                    f"settings.engine: {engine!r} is unknown",
                    hint=f"known: {', '.join(registry.names())}",
                )
        elif engine == "auto":
            return choice.choose(
                wanted,
                capabilities=registry.capabilities,
                why_not=lambda name: registry.why_not(name, settings),
                allowed=lambda name: not settings.engines or name in settings.engines,
                docker_runtime=settings.docker_runtime,
            )
        elif settings.engines and engine not in settings.engines:
            raise InvalidRequest(
                f"engine: the operator does not allow {engine}",
                hint=f"allowed: {', '.join(settings.engines)}",
            )
        choice.check(engine, registry.capabilities(engine), wanted, others=_ours)
        return Choice(engine, reason)

    def _pool(self, engine: str) -> Pool:
        pool = self._pools.get(engine)
        if pool is None:
            if missing := registry.why_not(engine, self._settings):
                raise EngineUnavailable(
                    f"the engine {engine!r} does not work here: {missing.why}", hint=missing.hint
                )
            pool = Pool(registry.create(engine, self._settings), self._settings)
            self._pools[engine] = pool
        return pool


def _ours() -> list[tuple[str, Capabilities]]:
    return [(name, registry.capabilities(name)) for name in registry.BUILT_IN]
