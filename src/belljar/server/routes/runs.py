"""`POST /v1/runs`: as `belljar.run`, answered as JSON, or as events while the code runs."""

from __future__ import annotations

import asyncio
import codecs
import dataclasses
import json
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from belljar.model import Result, Usage
from belljar.server import running, streams, writing
from belljar.server.bodies import StrictRoute
from belljar.server.errors import answer
from belljar.server.gate import Visit, visit_of
from belljar.server.openapi import responses
from belljar.server.schemas import RunAnswer, RunRequest
from belljar.server.server import Server
from belljar.server.streams import EVENTS

router = APIRouter(prefix="/v1", route_class=StrictRoute, tags=["runs"])

MOST_PIECES = 64
"""Of output that wait for a client."""
PIECE_BYTES = 1 << 16
"""Of one event."""

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
    if streams.wanted(request):
        return await _streamed(server, request, asked.code, options)
    result = await running.while_client_waits(
        server, request, lambda: running.run(server, request, asked.code, options)
    )
    return streams.reply(request, writing.of(result))


class Ahead:
    """What a run has said and its client has not read: no more than the run may print, in few
    pieces, whatever the pieces were that it printed."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self._printed: deque[tuple[str, bytearray]] = deque()
        self._usage: Usage | None = None
        self._decoders = {
            name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")
        }

    def __bool__(self) -> bool:
        return bool(self._printed or self._usage)

    def on_output(self, stream: str, content: bytes) -> None:
        """A client that is far behind sees stdout and stderr less finely interleaved."""
        waiting = self._printed  # no two of one stream follow each other
        if waiting and waiting[-1][0] == stream:
            waiting[-1][1].extend(content)
        elif len(waiting) >= MOST_PIECES:
            waiting[-2][1].extend(content)
        else:
            waiting.append((stream, bytearray(content)))
        self.news.set()

    def on_usage(self, usage: Usage) -> None:
        self._usage = usage
        self.news.set()

    def take(self) -> bytes:
        """The next event, or nothing."""
        if self._printed:
            stream, piece = self._printed[0]
            text = self._decoders[stream].decode(bytes(piece[:PIECE_BYTES]))
            del piece[:PIECE_BYTES]
            if not piece:
                self._printed.popleft()
            return _event("output", {"stream": stream, "text": text}) if text else b""
        usage, self._usage = self._usage, None
        return _event("usage", dataclasses.asdict(usage)) if usage else b""


async def _streamed(
    server: Server, request: Request, code: str, options: dict[str, Any]
) -> Response:
    ahead = Ahead()
    work = asyncio.ensure_future(
        running.run(
            *(server, request, code, options),
            on_output=ahead.on_output,
            on_usage=ahead.on_usage,
        )
    )
    work.add_done_callback(lambda done: done.cancelled() or done.exception())
    work.add_done_callback(lambda _: ahead.news.set())

    def gone() -> None:
        """A client that goes, or does not read, takes its run along."""
        if not work.done():
            server.metrics.gone.inc()
            work.cancel()

    try:
        async with asyncio.timeout(streams.BEFORE_EVENTS_S):
            await ahead.news.wait()
    except TimeoutError:
        pass
    except BaseException:
        work.cancel()
        raise
    if work.done():
        work.result()  # may raise: an ordinary error
    timeout_s = server.settings.send_timeout_s
    told = _told(server, visit_of(request), work, ahead)
    return streams._Streamed(told, send_timeout_s=timeout_s, gone=gone)


async def _told(
    server: Server, visit: Visit, work: asyncio.Future[Result], ahead: Ahead
) -> AsyncIterator[bytes]:
    """Until the run has ended and everything is said."""
    while ahead or not work.done():
        ahead.news.clear()
        while ahead:
            if event := ahead.take():
                yield event
        if work.done():
            continue
        try:
            async with asyncio.timeout(streams.PING_S):
                await ahead.news.wait()
        except TimeoutError:
            yield b": waiting\n\n"
    if (error := work.exception()) is not None:
        yield b"event: error\ndata: " + bytes(answer(error, ran=visit.ran).body) + b"\n\n"
        return
    async for text in streams.event(server, visit, ("end", work.result())):
        yield text


def _event(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
