"""What a kept sandbox uses, where only pid 1 can tell: told while a run goes on, and the end of
whatever takes more memory than it may.

When it gets short the older checkpoints go, since they are only there for convenience. If that does
not help, everything is killed but the latest checkpoint: the state from before the run that went
too far.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .population import kill_all
from .watch import Watched, own_pids, reaped_cpu_ms

if TYPE_CHECKING:
    from .keeper import Keeper

IDLE_MS = 1000
"""Between looks while nothing was asked for."""
SHORT = 0.9
"""Of the limit."""
EXIT_S = 1.0
"""How long those that were killed have to give their memory back."""
LOOK_AGAIN_S = 0.02
_ROUNDS = 50


class Meter:
    def __init__(
        self, keeper: Keeper, make: Callable[[int, int], Watched] | None, disk: int
    ) -> None:
        self._keeper = keeper
        self._make = make
        self._disk = disk
        self._memory_bytes = 0
        self._cpus: float | None = None
        self._watched: Watched | None = None
        self._cpu_before_ms = 0
        self._spent = False
        """The run took too much."""
        self._until_s = -EXIT_S
        """Those that were killed may still hold memory until then."""

    def set_up(self, ask: dict) -> None:  # type: ignore[type-arg]
        self._memory_bytes = ask.get("watch_memory_bytes") or 0
        self._cpus = ask.get("cpus")
        self.begin()

    def begin(self) -> None:
        """A run: what was used before it is not its own."""
        if self._make is None or not self._memory_bytes:
            return
        self._watched = self._make(self._memory_bytes, self._disk)
        if self._cpus:
            self._watched.share(self._cpus)
        self._cpu_before_ms = self._watched.cpu_ms(reaped_cpu_ms())
        self._spent = False

    def due_ms(self) -> int | None:
        """When to look again; None where nobody has to."""
        if self._watched is None:
            return None
        due_ms = self._watched.due_ms()
        return due_ms if self._keeper.busy else max(due_ms, IDLE_MS)

    def look(self) -> None:
        if self._watched is None:
            return
        if self._watched.exceeded():
            self._too_much(self._watched)
        elif self._watched.held_bytes > SHORT * self._memory_bytes:
            self._keeper.checkpoints.drop_older()
        if self._watched.tell():
            self._keeper.runs.used(self.summary())

    def summary(self) -> dict[str, Any] | None:
        if self._watched is None:
            return None
        told = self._watched.summary()
        told["out_of_memory"] = told["out_of_memory"] or self._spent
        told["cpu_ms"] = max(0, self._watched.cpu_ms(reaped_cpu_ms()) - self._cpu_before_ms)
        return told

    def _too_much(self, watched: Watched) -> None:
        now_s = time.monotonic()
        if now_s >= self._until_s:
            first = now_s >= self._until_s + EXIT_S
            self._spent = True
            self._keeper.checkpoints.drop_older()  # nobody is to be sent back to what is killed
            _kill_others(self._keeper.checkpoints.latest_pid() if first else 0)
            self._until_s = now_s + EXIT_S
        watched.look_again(LOOK_AGAIN_S)


def _kill_others(spared: int) -> None:
    """Every process in the sandbox but this one and, if it is one, the one to be spared. Without
    one to be spared this goes past any fork, and takes the branches along: it is the second try."""
    if spared <= 1:
        kill_all()
        return
    killed = {1, spared}
    for _ in range(_ROUNDS):  # they may fork meanwhile
        fresh = own_pids() - killed
        if not fresh:
            return
        killed |= fresh
        for pid in fresh:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
