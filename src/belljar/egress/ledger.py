"""What is told of every attempt (N1), also of floods of them."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from belljar.network import Egress

from . import burning
from .refusal import ALLOWED, Refusal
from .underway import UnderWay

TOLD_ONE_BY_ONE = 1_000
"""Of one lease; then refusals that are alike are counted together. Whatever may have gone out is
always told by itself."""
_MOST_KINDS = 200
_OWN = ("scheme", "method", "path", "rule", "address")
_LONGEST = 500
_LONGEST_NAME = 253


Send = Callable[[list[dict[str, Any]], int | None], None]
"""Tells the host; the slot is over once the host is sure to hear it."""
_MOST_UNDER_WAY = 100
_UNDER_WAY = "still under way when this run ended"


class Ledger:
    """The records of one lease. `send` gets them as they are told to the host."""

    def __init__(self, send: Send, under_way: UnderWay, lease: int = 0) -> None:
        self._send = send
        self._under_way = under_way
        self._lease = lease
        self._told = 0
        self._begun: dict[int, Attempt] = {}
        """By their slots."""
        self._alike: dict[tuple[object, ...], dict[str, Any]] = {}

    def begin(self, attempt: Attempt) -> int:
        slot = self._under_way.begin(
            self._lease,
            attempt.at,
            attempt.port,
            attempt.scheme,
            attempt.method,
            attempt.host,
            attempt.rule,
            attempt.path,
        )
        self._begun[slot] = attempt
        return slot

    def under_way(self) -> list[tuple[int, int, dict[str, Any]]]:
        """What has begun and is not told yet, as it looks now, with slots and numbers."""
        return [
            (slot, self._under_way.number(slot), asdict(one.record(ALLOWED, _UNDER_WAY)))
            for slot, one in itertools.islice(reversed(self._begun.items()), _MOST_UNDER_WAY)
        ]

    def over(self, slot: int | None) -> None:
        """It needs no record of its own any more."""
        if slot is not None:
            del self._begun[slot]
            self._under_way.over(slot)

    def add(self, record: Egress, slot: int | None = None) -> None:
        self._told += 1
        data = asdict(record)
        is_begun = slot is not None or record.verdict == ALLOWED
        if is_begun or self._told <= TOLD_ONE_BY_ONE:
            if slot is not None:
                del self._begun[slot]
            self._send([data], slot)
            return
        key: tuple[object, ...] = (record.verdict, record.host, record.port, record.why)
        if key not in self._alike and len(self._alike) >= _MOST_KINDS:
            key = (record.verdict,)
            data |= {"host": "", "port": 0, "rule": "", "address": "", "method": "", "path": ""}
            data["why"] = "many attempts that differ, counted together"
        if known := self._alike.get(key):
            for name in ("count", "bytes_sent", "bytes_received"):
                known[name] += data[name]
            # None of them is shown with another's.
            known.update({name: "" for name in _OWN if known[name] != data[name]})
        else:
            self._alike[key] = data

    def flush(self) -> None:
        """What was counted together so far."""
        gathered, self._alike = list(self._alike.values()), {}
        for first in range(0, len(gathered), 20):
            self._send(gathered[first : first + 20], None)


def dated(at: float) -> float:
    """To the millisecond, and never later than it was: what began in the last moment of a run would
    be dated after its end."""
    return math.floor(at * 1000) / 1000


class Attempt:
    """A record in the making. Told once, whatever happens."""

    def __init__(self, ledger: Ledger, *, scheme: str) -> None:
        self._ledger = ledger
        self.at = time.time()
        self.scheme = scheme
        self.host = ""
        self.port = 0
        self.method = ""
        self.path = ""
        self.rule = ""
        self.address = ""
        self.status = 0
        self.bytes_sent = 0
        self.bytes_received = 0
        self.is_told = False
        self._slot: int | None = None

    def begun(self) -> None:
        """To be called once it is allowed, before anything goes out."""
        if self._slot is None and not self.is_told:
            self.at = time.time()  # it may have waited for its pace, and belongs to the run of now
            self._slot = self._ledger.begin(self)

    def replaced(self) -> None:
        """By records of what it led to."""
        self.is_told = True
        slot, self._slot = self._slot, None
        self._ledger.over(slot)

    def allowed(self) -> None:
        self._tell(ALLOWED, "")

    def ended(self, refusal: Refusal) -> None:
        self._tell(refusal.verdict, refusal.why)

    def record(self, verdict: str, why: str) -> Egress:
        return Egress(
            at=dated(self.at),
            host=self.host[:_LONGEST_NAME],
            port=self.port,
            verdict=verdict,
            rule=self.rule,
            why=why[:_LONGEST],
            address=self.address,
            scheme=self.scheme,
            method=self.method[:40],
            path=self.path[:_LONGEST],
            status=self.status,
            bytes_sent=self.bytes_sent,
            bytes_received=self.bytes_received,
        )

    def _tell(self, verdict: str, why: str) -> None:
        if self.is_told:
            return
        # A lease that burns time is not ended half-way through this: it is told once, and whole.
        working = burning.blamed.set(None)
        try:
            self.is_told = True
            slot, self._slot = self._slot, None
            self._ledger.add(self.record(verdict, why), slot)
        finally:
            burning.blamed.reset(working)
