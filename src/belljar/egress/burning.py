"""What leases take of the gateway's CPU time; and the end of one that blocks the event loop.

All leases of a gateway share one event loop. A kernel timer that counts the process's own CPU time
looks which lease the loop works for, so that the accounts cost those that do not burn it nothing.
A lease that took more than its share for a while is `heavy`, and waits for the others (`limits`).
A turn that takes too long is ended by an exception raised in it, together with its lease. Time that
the machine gave to others, or that the process was stopped for, does not count.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from contextvars import ContextVar
from types import FrameType

from .refusal import Refusal, refused

LONGEST_TURN_S = 2.0
_LOOK_S = 0.05
SHARE = 0.02
"""Of the time; who takes more, and beyond that `_FREE_S` at once, is heavy."""
_FREE_S = 0.25
_MOST_S = 2.0
"""More is forgotten: it is heavy for a minute and a half after a burst, and not for hours."""


class Account:
    """What one lease took. `end` ends it."""

    def __init__(self, end: Callable[[Refusal], None]) -> None:
        self.end = end
        self.ended: Refusal | None = None
        """Why it took its last turn."""
        self.spent_s = 0.0
        """Beyond its share, which runs down all the time."""
        self._counted_at = 0.0
        self._owed_s = 0.0

    def charge(self, cpu_s: float) -> None:
        self._run_down()
        self.spent_s = min(_MOST_S, self.spent_s + cpu_s)
        self._owed_s += cpu_s

    @property
    def is_heavy(self) -> bool:
        if self.spent_s <= _FREE_S:  # all that is asked of nearly everybody
            return False
        self._run_down()
        return self.spent_s > _FREE_S

    def owed(self) -> float:
        """What it took since it was last asked."""
        owed, self._owed_s = self._owed_s, 0.0
        return owed

    def _run_down(self) -> None:
        now = time.monotonic()
        self.spent_s = max(0.0, self.spent_s - (now - self._counted_at) * SHARE)
        self._counted_at = now


blamed: ContextVar[Account | None] = ContextVar("blamed", default=None)
"""The lease that the current task works for. None: it works for none, and is not ended."""


class Watch:
    """Make it before system calls are given up, then `start` it on the loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn_s: dict[Account, float] = {}
        """Of each lease that was seen at work in this turn."""
        self._waiting = False
        self._seen_s = time.process_time()
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, _LOOK_S, _LOOK_S)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def _look(self, _signal: int, _frame: FrameType | None) -> None:
        # More than one look's where it came late: after a long call into a library.
        before, self._seen_s = self._seen_s, time.process_time()
        cpu_s = self._seen_s - before
        loop, account = self._loop, blamed.get()
        if loop is None or account is None:
            return
        account.charge(cpu_s)
        if asyncio.current_task(loop) is None:
            return
        if not self._waiting:  # for the loop to come round
            self._waiting = True
            self._turn_s.clear()
            loop.call_soon(self._came_round)
        self._turn_s[account] = self._turn_s.get(account, 0.0) + cpu_s
        if self._turn_s[account] < LONGEST_TURN_S:
            return
        del self._turn_s[account]
        why = refused(
            f"this took more than {LONGEST_TURN_S:g} s of the gateway's CPU time at once, so this "
            "sandbox has lost its network",
            status=503,
        )
        # At once: its other connections are ready in this same turn of the loop, perhaps.
        account.ended = why
        loop.call_soon(account.end, why)
        raise why

    def _came_round(self) -> None:
        self._waiting = False
