"""What an interpreter tells of its run, put together anew from the fields that are known.

The code can speak in the interpreter's place, so a line may hold anything. It is taken apart in
here, at the sandbox's own cost: what the host gets to parse is small, and the rest are bytes.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from typing import Any

from . import protocol

MOST_OUTPUT_BYTES = 8 << 20
MOST_CONTENT_BYTES = 32 << 20
"""Of all outputs of a run: the host holds no more."""
MOST_TEXT_BYTES = 64 * 1024
"""Of an error's name, message and traceback, each."""
_MOST_TYPES = 20
_MOST_NAME = 200
_MOST_METADATA_BYTES = 16 * 1024


def shown(told: object, room: int) -> tuple[dict[str, Any], bytes] | None:
    """An output: what is announced, and the content that follows. None: it is none, or too large
    for the `room` that its run has left."""
    if not isinstance(told, dict) or told.get("kind") not in ("display", "result"):
        return None
    data = told.get("data")
    if not isinstance(data, dict) or len(data) > _MOST_TYPES:
        return None
    described: list[list[Any]] = []
    pieces: list[bytes] = []
    for name, value in data.items():
        kind, piece = _piece(value)
        if piece is None or len(name) > _MOST_NAME:
            return None
        described.append([name, kind, len(piece)])
        pieces.append(piece)
    metadata = _metadata(told.get("metadata"))
    content = b"".join((*pieces, metadata))
    if len(content) > min(room, MOST_OUTPUT_BYTES):
        return None
    return {"kind": told["kind"], "data": described, "metadata": len(metadata)}, content


def progress(told: object) -> dict[str, Any]:
    fields = told if isinstance(told, dict) else {}
    return {
        "fraction": _number(fields.get("fraction")),
        "message": str(fields.get("message", ""))[:1000],
    }


def extension(told: object) -> float:
    return _number(told)


def ending(told: dict[str, Any]) -> tuple[dict[str, Any], dict[int, bytes]]:
    """How a run ended: what is told of it, and the texts that go before."""
    error = told.get("error")
    fields: dict[str, Any] = {
        "status": str(told.get("status", ""))[:20],
        "error": isinstance(error, dict),
    }
    for name in ("exit_code", "signal"):
        if type(told.get(name)) is int and 0 <= told[name] < 256:
            fields[name] = told[name]
    texts: dict[int, bytes] = {}
    if isinstance(error, dict):
        for stream, name in protocol.ERROR_TEXTS.items():
            texts[stream] = _bytes(str(error.get(name, "")))[:MOST_TEXT_BYTES]
    if isinstance(told.get("value"), str):
        fields["valued"] = True
        texts[protocol.Stream.VALUE] = _bytes(told["value"])[:MOST_OUTPUT_BYTES]
    return fields, texts


def _piece(value: object) -> tuple[str, bytes | None]:
    if isinstance(value, str):
        return "text", _bytes(value)
    if isinstance(value, dict) and isinstance(value.get("base64"), str):
        try:
            return "bytes", base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError):
            pass
    return "", None


def _metadata(told: object) -> bytes:
    if not isinstance(told, dict) or not told:
        return b""
    try:
        text = json.dumps(told, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return b""
    return text if len(text) <= _MOST_METADATA_BYTES else b""


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _number(value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return number if math.isfinite(number) else 0.0
