"""Ends a lease that blocks the gateway's event loop, and no other.

All leases of a gateway share one event loop. A kernel timer that counts the process's own CPU time
looks which lease the loop works for: a turn that takes too long is ended by an exception raised in
it. Time that the machine gave to others, or that the process was stopped for, does not count.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextvars import ContextVar
from types import FrameType

from .refusal import Refusal, refused

LONGEST_TURN_S = 2.0
_LOOK_S = 0.25
_MOST_LOOKS = int(LONGEST_TURN_S / _LOOK_S)

blamed: ContextVar[Callable[[Refusal], None] | None] = ContextVar("blamed", default=None)
"""Ends the lease that the current task works for. None: it works for no lease, and is not ended."""


class Watch:
    """Make it before system calls are given up, then `start` it on the loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looks: dict[Callable[[Refusal], None], int] = {}
        """Of each lease, at which it was at work in this turn."""
        self._waiting = False
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, _LOOK_S, _LOOK_S)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def _look(self, _signal: int, _frame: FrameType | None) -> None:
        loop = self._loop
        if loop is None or asyncio.current_task(loop) is None:
            return
        if not self._waiting:  # for the loop to come round
            self._waiting = True
            self._looks.clear()
            loop.call_soon(self._came_round)
        if (end := blamed.get()) is None:
            return
        self._looks[end] = self._looks.get(end, 0) + 1
        if self._looks[end] < _MOST_LOOKS:
            return
        del self._looks[end]
        why = refused(
            f"this took more than {LONGEST_TURN_S:g} s of the gateway's CPU time at once, so this "
            "sandbox has lost its network",
            status=503,
        )
        loop.call_soon(end, why)
        raise why

    def _came_round(self) -> None:
        self._waiting = False
