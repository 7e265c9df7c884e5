"""API keys: `blj_<id>_<secret>`. The id finds the key, the secret proves it.

Only a hash of the secret is stored. The secret has 256 random bits, so a fast hash is enough:
there is nothing to guess from.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

PREFIX = "blj"
_KEY = re.compile(r"blj_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_NOBODY = bytes(32)
"""Compared with when there is no such id, so that both ways take as long."""

KEYS_LATE_S, KEYS_HOLD_S = 5.0, 60.0
"""When /ready says that keys cannot be read, and how long those that were read last are good."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key as it is stored."""

    id: str
    hash: bytes
    tenant: str
    operator: bool = False
    """May see every tenant's trail, and the metrics."""
    created: float = 0.0


def make(tenant: str, *, operator: bool = False, now: float) -> tuple[Key, str]:
    """A new key, and the text that is shown once."""
    identity, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    key = Key(id=identity, hash=_hash(secret), tenant=tenant, operator=operator, created=now)
    return key, f"{PREFIX}_{identity}_{secret}"


class Keyring:
    """The keys that are valid now, by id."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._keys = {key.id: key for key in keys}

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, given: str) -> Key | None:
        match = _KEY.fullmatch(given)
        identity, secret = match.groups() if match else ("", "")
        key = self._keys.get(identity)
        same = hmac.compare_digest(_hash(secret), key.hash if key else _NOBODY)
        return key if same else None


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
