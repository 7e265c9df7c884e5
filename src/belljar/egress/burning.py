"""A lease that takes the gateway's time from others is ended, alone.

Everything in the gateway's process happens in turns on one loop. A kernel timer that counts the
process's own CPU time looks who is at it: a turn that goes on and on is ended by an exception in
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
"""What ends the lease that the present task works for. None: nobody's, which is never ended."""


class Watch:
    """To be made before system calls are given up; then `start` it on the loop."""

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
            f"it took the gateway more than {LONGEST_TURN_S:g} s of CPU time at once, so this "
            "sandbox's way to the network was ended",
            status=503,
        )
        loop.call_soon(end, why)
        raise why

    def _came_round(self) -> None:
        self._waiting = False
