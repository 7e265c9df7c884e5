"""Refusals that the trail has one by one, and those of which it has the number only.

A refusal costs a caller nothing and the trail two lines: whoever is told 429 a thousand times a
second would fill it. What is left out is counted, and told when the minute is over.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import NamedTuple

MOST_A_MINUTE = 2000
"""Of one tenant, each with a line of its own."""
MINUTE_S = 60.0


class Left(NamedTuple):
    """What was refused without a line of its own."""

    tenant: str
    reason: str
    number: int


class Refusals:
    def __init__(self) -> None:
        self._minutes: dict[str, _Minute] = {}

    def admit(self, tenant: str, reason: str) -> bool:
        """Whether this one gets a line; else it is counted."""
        minute = self._minutes.setdefault(tenant, _Minute())
        if minute.written >= MOST_A_MINUTE:
            minute.left[reason] += 1
            return False
        minute.written += 1
        return True

    def left(self, *, now: float | None = None, all_: bool = False) -> list[Left]:
        """Those whose minute is over, or all; they are forgotten here."""
        now = time.monotonic() if now is None else now
        over = [
            name for name, minute in self._minutes.items() if all_ or now - minute.began >= MINUTE_S
        ]
        return [
            Left(name, reason, count)
            for name in over
            for reason, count in self._minutes.pop(name).left.items()
        ]


class _Minute:
    def __init__(self) -> None:
        self.began = time.monotonic()
        self.written = 0
        self.left: Counter[str] = Counter()
