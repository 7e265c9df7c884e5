"""What is told of every attempt (N1), also of floods of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from belljar.network import Egress

from .refusal import ALLOWED, Refusal

TOLD_ONE_BY_ONE = 1_000
"""Of one lease; then refusals that are alike are counted together."""
_MOST_KINDS = 200
_LONGEST = 500
_LONGEST_NAME = 253


class Ledger:
    """The records of one lease. `send` gets them as they are told to the host."""

    def __init__(self, send: Callable[[list[dict[str, Any]]], None]) -> None:
        self._send = send
        self._told = 0
        self._alike: dict[tuple[object, ...], dict[str, Any]] = {}

    def add(self, record: Egress) -> None:
        self._told += 1
        data = asdict(record)
        if self._told <= TOLD_ONE_BY_ONE or record.verdict == ALLOWED:
            self._send([data])
            return
        key: tuple[object, ...] = (record.verdict, record.host, record.port, record.why)
        if key not in self._alike and len(self._alike) >= _MOST_KINDS:
            key = (record.verdict,)
            data |= {"host": "", "port": 0, "rule": "", "address": "", "method": "", "path": ""}
            data["why"] = "many attempts that differ, counted together"
        if known := self._alike.get(key):
            for name in ("count", "bytes_sent", "bytes_received"):
                known[name] += data[name]
        else:
            self._alike[key] = data

    def flush(self) -> None:
        """What was counted together so far."""
        gathered, self._alike = list(self._alike.values()), {}
        for first in range(0, len(gathered), 20):
            self._send(gathered[first : first + 20])


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

    def allowed(self) -> None:
        self._tell(ALLOWED, "")

    def ended(self, refusal: Refusal) -> None:
        self._tell(refusal.verdict, refusal.why)

    def _tell(self, verdict: str, why: str) -> None:
        if self.is_told:
            return
        self.is_told = True
        self._ledger.add(
            Egress(
                at=round(self.at, 3),
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
        )
