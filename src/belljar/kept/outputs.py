"""From what the guest calls an output to one that is safe to hold: bounded, inert, or dropped."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from belljar.model import MIB, Output

MOST_OUTPUTS = 200
OUTPUT_BYTES = 8 * MIB
ALL_BYTES = 32 * MIB
_MIME = re.compile(r"[a-z]+/[a-zA-Z0-9.+_-]{1,100}")
_MOST_TYPES = 20
_MOST_BRACKETS = 500


def read(told: object) -> Output | None:
    """None for what is no output."""
    if not isinstance(told, dict) or told.get("kind") not in ("display", "result"):
        return None
    content = told.get("data")
    if not isinstance(content, dict) or len(content) > _MOST_TYPES:
        return None
    data: dict[str, str | bytes] = {}
    for mime, value in content.items():
        if not _MIME.fullmatch(mime):
            return None
        piece = _piece(value)
        if piece is None:
            return None
        data[mime] = piece
    metadata = told.get("metadata")
    return Output(
        kind=told["kind"],
        data=data,
        metadata=metadata if isinstance(metadata, dict) and _small(metadata) else {},
    )


def size(output: Output) -> int:
    return sum(len(piece) for piece in output.data.values())


def _piece(value: object) -> str | bytes | None:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    if isinstance(value, dict) and isinstance(value.get("base64"), str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError):
            return None
    return None


def _small(metadata: Mapping[str, Any]) -> bool:
    """Also not so deep that whoever writes it as JSON fails, and without numbers that are none."""
    try:
        text = json.dumps(metadata, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return len(text) <= 65536 and text.count("[") + text.count("{") <= _MOST_BRACKETS


def fraction(value: object) -> float:
    if isinstance(value, (int, float)) and math.isfinite(value):
        return min(1.0, max(0.0, float(value)))
    return 0.0
