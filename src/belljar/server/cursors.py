"""Where a list of the trail goes on, as tenants are told it: a text that says nothing.

The number of a line would say how much all tenants have done, and two of them how much the others
did in between.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any

from belljar.server.errors import ApiError

HIDDEN = frozenset({"seq", "attempt", "owner"})
"""Fields of a line that count for the whole trail: its number, that of its attempt, which process
wrote it."""
_NONCE = _NUMBER = _PROOF = 8


class Cursors:
    """Those of one server, for as long as it runs."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def make(self, seq: int) -> str:
        nonce = secrets.token_bytes(_NONCE)
        hidden = self._masked(nonce, seq.to_bytes(_NUMBER, "big"))
        sealed = nonce + hidden
        return base64.urlsafe_b64encode(sealed + self._proof(sealed)).decode()

    def read(self, text: str) -> int:
        try:
            given = base64.b64decode(text, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            given = b""
        sealed, proof = given[:-_PROOF], given[-_PROOF:]
        if len(sealed) != _NONCE + _NUMBER or not hmac.compare_digest(proof, self._proof(sealed)):
            raise ApiError(
                "invalid_request",
                "before: not a cursor of this server, or from before it was restarted",
                hint="start without `before`; the `next` of each page leads to the one after it",
            )
        return int.from_bytes(self._masked(sealed[:_NONCE], sealed[_NONCE:]), "big")

    def _masked(self, nonce: bytes, number: bytes) -> bytes:
        mask = hmac.digest(self._key, b"mask" + nonce, hashlib.sha256)
        return bytes(a ^ b for a, b in zip(number, mask, strict=False))

    def _proof(self, sealed: bytes) -> bytes:
        return hmac.digest(self._key, b"proof" + sealed, hashlib.sha256)[:_PROOF]


def shown(line: Mapping[str, Any] | None, *, operator: bool) -> Mapping[str, Any] | None:
    """A line as this key may see it."""
    if line is None or operator:
        return line
    return {name: value for name, value in line.items() if name not in HIDDEN}
