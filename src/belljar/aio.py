"""The asynchronous face."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Unpack

from belljar.core import Belljar
from belljar.jar import shared
from belljar.model import Result
from belljar.options import PlacedOptions

if TYPE_CHECKING:
    from belljar.fetching import Page
    from belljar.kept.sandbox import Sandbox

__all__ = ["Belljar", "Sandbox", "fetch", "run"]


async def run(code: str, **options: Unpack[PlacedOptions]) -> Result:
    """As `belljar.run`, with the same shared pools, without blocking the caller's loop."""
    here = shared(options.pop("url", ""), options.pop("key", ""))
    return await asyncio.wrap_future(here.submit(code, **options))  # type: ignore[misc]


async def fetch(address: str, /, **options: Any) -> Page:
    """As `belljar.fetch`, without blocking the caller's loop."""
    here = shared(options.pop("url", ""), options.pop("key", ""))
    return await asyncio.wrap_future(
        here.portal().submit(here.asynchronous.fetch(address, **options))
    )


def __getattr__(name: str) -> object:
    """Loaded when it is first used: most programs run code and keep nothing."""
    if name == "Sandbox":
        from belljar.kept.sandbox import Sandbox

        return Sandbox
    raise AttributeError(f"module 'belljar.aio' has no attribute {name!r}")
