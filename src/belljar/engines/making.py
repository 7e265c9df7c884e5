"""How a wall comes and goes, whoever waits for it: it is made to the end, and destroyed once."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar


class DestroyedOnce(ABC):
    """A wall that any number of callers may destroy, and none of them stops half-way."""

    _destroyed: asyncio.Task[None] | None = None

    async def destroy(self) -> None:
        self.destroy_later()
        assert self._destroyed is not None
        await asyncio.shield(self._destroyed)

    def destroy_later(self) -> None:
        if self._destroyed is None:
            self._destroyed = asyncio.ensure_future(self._destroy())

    @abstractmethod
    async def _destroy(self) -> None: ...


W = TypeVar("W", bound=DestroyedOnce)


class Making(Generic[W]):
    """The walls that an engine is making. What would be left of a wall given up half-way nobody
    could remove: it is finished first, and then destroyed."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[W]] = set()

    async def make(self, work: Coroutine[Any, Any, W]) -> W:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_unwanted)
            raise

    async def settled(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _unwanted(making: asyncio.Task[W]) -> None:
    """Whoever asked for this sandbox has gone."""
    if not making.cancelled() and not making.exception():
        making.result().destroy_later()
