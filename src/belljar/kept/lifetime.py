"""When a kept sandbox ends: it is closed, its time is over, or nothing is asked of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from belljar.kept.options import Options


class Lifetime:
    """Ends once, however many ask for it."""

    def __init__(self) -> None:
        self.ended = ""
        """Why no run can start any more, if so."""
        self._destroy: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._timers: list[asyncio.TimerHandle] = []

    def begin(self, destroy: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """From now on there is something to destroy."""
        self._destroy = destroy

    def count(self, options: Options, quiet_s: Callable[[], float]) -> None:
        """From now on its time runs. `quiet_s`: for how long nothing was asked of it."""
        loop = asyncio.get_running_loop()
        lifetime_s, idle_s = options.lifetime_s, options.idle_s
        self._timers = [
            loop.call_later(lifetime_s, self.end, f"it has lived for its {lifetime_s:g} s"),
            loop.call_later(idle_s, self._idle, idle_s, quiet_s),
        ]

    def end(self, why: str) -> None:
        """Begins the end, if nobody has."""
        if self._ending or self._destroy is None:
            self.ended = self.ended or why
            return
        self.ended = why
        for timer in self._timers:
            timer.cancel()
        self._ending = asyncio.ensure_future(self._destroy())

    async def over(self) -> None:
        """Nothing of it is left."""
        if self._ending:
            await asyncio.shield(self._ending)

    def _idle(self, idle_s: float, quiet_s: Callable[[], float]) -> None:
        """Ends the sandbox, or looks again when it could be time."""
        left_s = idle_s - quiet_s()
        if left_s <= 0:
            self.end(f"nothing was asked of it for {idle_s:g} s")
        else:
            loop = asyncio.get_running_loop()
            self._timers[1] = loop.call_later(left_s, self._idle, idle_s, quiet_s)
