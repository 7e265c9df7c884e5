"""Bodies that are not JSON: taken piece by piece, never held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request

from belljar.server.errors import ApiError
from belljar.server.server import Server

BATCH = 1 << 20
SLOWEST_BYTES_S = 16 * 1024
"""Who sends slower than that in the long run holds a connection, not an upload."""
BINARY = "application/octet-stream"
BODY = {
    "requestBody": {
        "required": False,
        "content": {BINARY: {"schema": {"type": "string", "format": "binary"}}},
    }
}
"""For the description of a route that takes one."""


def declared_bytes(request: Request) -> int | None:
    """What the client says it will send."""
    text = request.headers.get("content-length", "")
    return int(text) if text.isdigit() and len(text) < 19 else None


def check(request: Request) -> None:
    kind = request.headers.get("content-type", BINARY).partition(";")[0].strip().lower()
    if kind != BINARY:
        raise ApiError(
            "unsupported_media_type",
            "the body must be the content itself",
            hint=f"send Content-Type: {BINARY}",
        )
    if "content-encoding" in request.headers:
        raise ApiError(
            "unsupported_media_type",
            "the body must not be compressed",
            hint="send no Content-Encoding",
        )


async def arriving(server: Server, request: Request) -> AsyncIterator[bytes]:
    """Batches of about a megabyte: each costs whoever takes it a turn."""
    patience_s = server.settings.body_timeout_s
    clock = asyncio.get_running_loop().time
    began, total = clock(), 0
    batch = bytearray()
    stream = request.stream()
    waited = 0.0
    """Time that we took ourselves is not the client's."""
    try:
        while True:
            left_s = began + waited + patience_s + total / SLOWEST_BYTES_S - clock()
            async with asyncio.timeout(min(patience_s, max(0.0, left_s))):
                part = await anext(stream, b"")
            if not part:
                break
            total += len(part)
            batch += part
            if len(batch) >= BATCH:
                paused = clock()
                yield bytes(batch)
                waited += clock() - paused
                batch.clear()
        if batch:
            yield bytes(batch)
    except TimeoutError:
        raise ApiError(
            "too_slow", "the body took too long to arrive", hint="send it faster"
        ) from None
    except ClientDisconnect:
        raise ApiError("client_gone", "the client has gone") from None
