"""From what the guest calls an output to one that is safe to hold: bounded, inert, or dropped."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Literal

from belljar.model import MIB, Output

Kind = Literal["display", "result"]

MOST_OUTPUTS = 200
OUTPUT_BYTES = 8 * MIB
ALL_BYTES = 32 * MIB
_MIME = re.compile(r"[a-z]+/[a-zA-Z0-9.+_-]{1,100}")
_MOST_TYPES = 20
_MOST_BRACKETS = 500
METADATA_BYTES = 16 * 1024


class Announced:
    """An output whose content is coming: bounded before its first byte."""

    def __init__(self, kind: Kind, parts: list[tuple[str, bool, int]], metadata_bytes: int) -> None:
        self._kind = kind
        self._parts = parts
        self.bytes = sum(size for _, _, size in parts) + metadata_bytes
        self._content = bytearray()

    def take(self, data: bytes) -> None:
        self._content += data[: self.bytes - len(self._content)]

    def complete(self) -> Output | None:
        """None as long as something is missing."""
        if len(self._content) < self.bytes:
            return None
        data: dict[str, str | bytes] = {}
        at = 0
        for mime, is_text, size in self._parts:
            piece = bytes(self._content[at : at + size])
            data[mime] = decoded(piece) if is_text else piece
            at += size
        return Output(kind=self._kind, data=data, metadata=_metadata(bytes(self._content[at:])))


def announced(told: object) -> Announced | None:
    """None for what is no output, or a larger one than is held."""
    if not isinstance(told, dict) or told.get("kind") not in ("display", "result"):
        return None
    described, metadata_bytes = told.get("data"), told.get("metadata")
    if not isinstance(described, list) or len(described) > _MOST_TYPES:
        return None
    parts = []
    for part in described:
        if not isinstance(part, list) or len(part) != 3:
            return None
        mime, kind, size = part
        if not isinstance(mime, str) or not _MIME.fullmatch(mime):
            return None
        if kind not in ("text", "bytes") or type(size) is not int or size < 0:
            return None
        parts.append((mime, kind == "text", size))
    if type(metadata_bytes) is not int or not 0 <= metadata_bytes <= METADATA_BYTES:
        return None
    found = Announced(told["kind"], parts, metadata_bytes)
    return found if found.bytes <= OUTPUT_BYTES else None


def decoded(text: bytes) -> str:
    """Half of a surrogate pair, as a guest may send it, cannot be encoded by anybody later."""
    return text.decode("utf-8", "replace")


def _metadata(text: bytes) -> Mapping[str, Any]:
    """Not so deep that whoever writes it as JSON fails, and without numbers that are none."""
    if not text or text.count(b"[") + text.count(b"{") > _MOST_BRACKETS:
        return {}
    try:
        found = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _no_number(name: str) -> None:
    raise ValueError(name)


def fraction(value: object) -> float:
    if isinstance(value, (int, float)) and math.isfinite(value):
        return min(1.0, max(0.0, float(value)))
    return 0.0
