"""What this machine offers, looked at now and then: looking takes longer than a run."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import Any

from belljar.engines import choice, registry
from belljar.environments import build, catalogue
from belljar.errors import Unavailable
from belljar.extras import without_paths
from belljar.runtimes import languages
from belljar.settings import Settings

FRESH_S = 30.0
_found: dict[str, tuple[float, list[dict[str, Any]]]] = {}


async def engines(settings: Settings) -> list[dict[str, Any]]:
    return await _kept("engines", _engines, settings)


async def environments(settings: Settings) -> list[dict[str, Any]]:
    return await _kept("environments", _environments, settings)


async def _kept(name: str, look: Any, settings: Settings) -> list[dict[str, Any]]:
    key = f"{name} {settings.home}"
    if key not in _found or _found[key][0] + FRESH_S < time.monotonic():
        _found[key] = (time.monotonic(), await asyncio.to_thread(look, settings))
    return _found[key][1]


def _engines(settings: Settings) -> list[dict[str, Any]]:
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


def _environments(settings: Settings) -> list[dict[str, Any]]:
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
