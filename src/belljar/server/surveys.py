"""What this machine offers, looked at now and then: looking takes longer than a run."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from typing import Any

from belljar import threads
from belljar.engines import choice, registry
from belljar.environments import build, catalogue
from belljar.errors import Unavailable
from belljar.extras import without_paths
from belljar.runtimes import languages
from belljar.settings import Settings

FRESH_S = 30.0
Rows = list[dict[str, Any]]


class Surveys:
    """Of one server. However many ask at once, one looks, and all get what it finds."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._found: dict[str, tuple[float, asyncio.Task[Rows]]] = {}

    async def engines(self) -> Rows:
        return await self._kept("engines", _engines)

    async def environments(self) -> Rows:
        return await self._kept("environments", _environments)

    async def _kept(self, name: str, look: Callable[[Settings], Rows]) -> Rows:
        now = time.monotonic()
        at, task = self._found.get(name, (0.0, None))
        if task is None or (task.done() and (_failed(task) or at + FRESH_S < now)):
            task = asyncio.ensure_future(threads.ENGINES.do_for(threads.OURS, look, self._settings))
            self._found[name] = (now, task)
        return await asyncio.shield(task)  # whoever asked first may go


def _failed(task: asyncio.Task[Rows]) -> bool:
    return task.cancelled() or task.exception() is not None


def _engines(settings: Settings) -> Rows:
    rows = []
    for name in settings.engines or registry.names():
        missing = registry.why_not(name, settings)
        try:
            capabilities = {
                field.name: sorted(value) if isinstance(value, frozenset) else value
                for field in dataclasses.fields(registry.capabilities(name))
                for value in [getattr(registry.capabilities(name), field.name)]
            }
        except Unavailable:
            capabilities = {}
        rows.append(
            {
                "name": name,
                "purpose": choice.PURPOSES.get(name, "an engine of another package"),
                "available": missing is None,
                "why_not": without_paths(missing.why) if missing else "",
                "hint": without_paths(missing.hint) if missing else "",
                "capabilities": capabilities,
            }
        )
    return rows


def _environments(settings: Settings) -> Rows:
    return [
        {
            "name": environment.name,
            "ready": not environment.needs_build or build.locate(environment, settings) is not None,
            "packages": list(environment.packages),
            "languages": [
                language.name
                for language in languages.BUILT_IN
                if language.environment == environment.name
            ],
        }
        for environment in catalogue.BUILT_IN
    ]
