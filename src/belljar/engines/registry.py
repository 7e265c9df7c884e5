"""Which engines there are, by name."""

from __future__ import annotations

from belljar.engines.base import Engine
from belljar.errors import UnknownEngine
from belljar.settings import Settings

NAMES = ("jail",)


def create(settings: Settings) -> Engine:
    """The operator's engine; `auto` is the embedded one."""
    if settings.engine not in ("auto", *NAMES):
        raise UnknownEngine(
            f"settings.engine: {settings.engine!r} is unknown", hint=f"known: {', '.join(NAMES)}"
        )
    from belljar.engines.jail.engine import JailEngine

    return JailEngine(settings)
