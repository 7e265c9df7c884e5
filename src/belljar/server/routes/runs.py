"""`POST /v1/runs`: as `belljar.run`, answered as JSON, or as events while the code runs."""

from __future__ import annotations

import asyncio
import codecs
import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from belljar.model import Result, Usage
from belljar.server import running
from belljar.server.bodies import StrictRoute
from belljar.server.errors import answer
from belljar.server.openapi import responses
from belljar.server.schemas import RunAnswer, RunRequest
from belljar.server.server import Server

router = APIRouter(prefix="/v1", route_class=StrictRoute, tags=["runs"])

EVENTS = "text/event-stream"
BEFORE_EVENTS_S = 1.0
"""So long a refusal can still be an ordinary error; then the stream begins."""
PING_S = 15.0

_EXAMPLE = """\
event: output
data: {"stream": "stdout", "text": "42\\n"}

event: usage
data: {"cpu_ms": 3.1, "peak_memory_bytes": 9000000, "peak_processes": 1}

event: end
data: {"status": "ok", "exit_code": 0}

"""


@router.post(
    "/runs",
    summary="Run code in a fresh sandbox, with every option",
    description="With `Accept: text/event-stream`: events `output`, `usage`, then one `end` with "
    "the whole result, or `error`.",
    operation_id="run",
    response_class=Response,
    responses=responses(
        RunAnswer,
        *(400, 401, 403, 408, 409, 413, 415, 429, 503),
        content={EVENTS: {"schema": {"type": "string"}, "example": _EXAMPLE}},
    ),
)
async def run(asked: RunRequest, request: Request) -> Response:
    server: Server = request.app.state.server
    options = asked.options()
    if EVENTS in request.headers.get("accept", ""):
        return await _streamed(server, request, asked.code, options)
    result = await running.while_client_waits(
        server, request, lambda: running.run(server, request, asked.code, options)
    )
    return Response(result.to_json().encode(), media_type="application/json")


async def _streamed(
    server: Server, request: Request, code: str, options: dict[str, Any]
) -> Response:
    # Not bounded here: what a run may print is, by its output_bytes.
    events: asyncio.Queue[bytes] = asyncio.Queue()
    decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in _STREAMS}

    def on_output(stream: str, content: bytes) -> None:
        if text := decoders[stream].decode(content):
            events.put_nowait(_event("output", {"stream": stream, "text": text}))

    def on_usage(usage: Usage) -> None:
        events.put_nowait(_event("usage", dataclasses.asdict(usage)))

    work = asyncio.ensure_future(
        running.run(server, request, code, options, on_output=on_output, on_usage=on_usage)
    )
    first = asyncio.ensure_future(events.get())
    try:
        await asyncio.wait(
            (work, first), timeout=BEFORE_EVENTS_S, return_when=asyncio.FIRST_COMPLETED
        )
    except BaseException:
        first.cancel()
        work.cancel()
        raise
    if work.done() and work.exception() is not None:
        first.cancel()
        work.result()  # raises: an ordinary error
    return StreamingResponse(_told(work, first, events), media_type=EVENTS)


async def _told(
    work: asyncio.Future[Result], first: asyncio.Future[bytes], events: asyncio.Queue[bytes]
) -> AsyncIterator[bytes]:
    """Until the run has ended and everything is said; a client that goes takes its run along."""
    coming = first
    try:
        while True:
            await asyncio.wait((work, coming), timeout=PING_S, return_when=asyncio.FIRST_COMPLETED)
            if coming.done():
                yield coming.result()
                coming = asyncio.ensure_future(events.get())
            elif work.done():
                break
            else:
                yield b": waiting\n\n"
        if (error := work.exception()) is not None:
            yield b"event: error\ndata: " + bytes(answer(error).body) + b"\n\n"
        else:
            yield b"event: end\ndata: " + work.result().to_json().encode() + b"\n\n"
    finally:
        coming.cancel()
        work.cancel()
        await asyncio.wait((work,))


def _event(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


_STREAMS = ("stdout", "stderr")
