"""What is told while it happens: events as text for HTTP (server-sent events) and as JSON."""

from __future__ import annotations

import asyncio
import base64
import codecs
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from belljar.kept import events
from belljar.model import Output, Result
from belljar.server import writing
from belljar.server.errors import answer
from belljar.server.gate import Visit, visit_of
from belljar.server.server import Server

EVENTS = "text/event-stream"
BEFORE_EVENTS_S = 1.0
"""So long a refusal can still be an ordinary error; then the stream begins."""
PING_S = 15.0

Told = tuple[str, dict[str, Any] | Result]
"""The name of an event and what it says."""


def wanted(request: Request) -> bool:
    return EVENTS in request.headers.get("accept", "")


class Teller:
    """Turns what happens into events; text stays text where it is UTF-8."""

    def __init__(self) -> None:
        self._rest = {"stdout": b"", "stderr": b""}

    def tell(self, event: events.Event) -> list[Told]:
        match event:
            case events.Printed(stream=stream, data=data):
                return self._printed(stream, data)
            case events.Shown(output=output):
                return [("shown", shown(output))]
            case events.Used(usage=usage):
                return [("usage", dataclasses.asdict(usage))]
            case events.Progress(fraction=fraction, message=message):
                return [("progress", {"fraction": fraction, "message": message})]
            case events.Ended(result=result):
                return [*self.rest(), ("end", result)]

    def rest(self) -> list[Told]:
        """What began as a character and never became one."""
        found = [_raw(stream, rest) for stream, rest in self._rest.items() if rest]
        self._rest = dict.fromkeys(self._rest, b"")
        return found

    def _printed(self, stream: str, data: bytes) -> list[Told]:
        data = self._rest[stream] + data
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            text = decoder.decode(data)
        except UnicodeDecodeError:
            self._rest[stream] = b""
            return [_raw(stream, data)]
        self._rest[stream] = decoder.getstate()[0]
        return [("output", {"stream": stream, "text": text})] if text else []


def shown(output: Output) -> dict[str, Any]:
    data = {
        mime: content if isinstance(content, str) else {"base64": writing.Base64(content)}
        for mime, content in output.data.items()
    }
    return {"kind": output.kind, "data": data, "metadata": dict(output.metadata)}


def _raw(stream: str, data: bytes) -> Told:
    return "output", {"stream": stream, "base64": base64.b64encode(data).decode()}


def text_of(said: dict[str, Any] | Result, **more: Any) -> bytes | Iterator[bytes]:
    """As JSON, with `more`; what is large comes in pieces."""
    value = writing.of(said) if isinstance(said, Result) else said
    return writing.write({**more, **value})


def reply(request: Request, said: Any) -> Response:
    """`said` as JSON, whatever its size."""
    written = writing.write(said)
    if isinstance(written, bytes):
        return Response(written, media_type="application/json")
    server: Server = request.app.state.server
    return _Streamed(
        writing.in_turn(written, _turn(server, visit_of(request))),
        send_timeout_s=server.settings.send_timeout_s,
        gone=None,
        media_type="application/json",
    )


def _turn(server: Server, visit: Visit) -> asyncio.Lock:
    assert visit.tenant is not None  # the gate lets nobody else in
    return server.turns.of(visit.tenant.name)


async def event(server: Server, visit: Visit, told: Told) -> AsyncIterator[bytes]:
    """One server-sent event."""
    name, said = told
    written = text_of(said)
    if isinstance(written, bytes):
        yield b"event: %s\ndata: %s\n\n" % (name.encode(), written)
        return
    yield b"event: %s\ndata: " % name.encode()
    async for piece in writing.in_turn(written, _turn(server, visit)):
        yield piece
    yield b"\n\n"


async def respond(
    server: Server,
    request: Request,
    told: AsyncIterator[Told],
    *,
    gone: Callable[[], None] | None = None,
) -> StreamingResponse:
    """`told` as a response; what it raises at once is an ordinary error. `gone` is called when the
    client has gone, or everything is said."""
    coming = asyncio.ensure_future(anext(told))
    try:
        await asyncio.wait((coming,), timeout=BEFORE_EVENTS_S)
        if coming.done() and not isinstance(coming.exception(), StopAsyncIteration | None):
            coming.result()
    except BaseException:
        coming.cancel()
        if gone:
            gone()
        raise
    texts = _texts(server, visit_of(request), told, coming)
    return _Streamed(texts, send_timeout_s=server.settings.send_timeout_s, gone=gone)


async def _texts(
    server: Server, visit: Visit, told: AsyncIterator[Told], coming: asyncio.Future[Told]
) -> AsyncIterator[bytes]:
    try:
        while True:
            await asyncio.wait((coming,), timeout=PING_S)
            if not coming.done():
                yield b": waiting\n\n"
                continue
            try:
                one = coming.result()
            except StopAsyncIteration:
                return
            except Exception as error:
                yield b"event: error\ndata: " + bytes(answer(error, ran=visit.ran).body) + b"\n\n"
                return
            async for text in event(server, visit, one):
                yield text
            coming = asyncio.ensure_future(anext(told))
    finally:
        coming.cancel()


class _KeyGone(Exception):
    pass


class _Streamed(StreamingResponse):
    """A client that does not read is a client that has gone, and so is one whose key has."""

    _still_valid: Callable[[], bool]

    def __init__(
        self,
        texts: AsyncIterator[bytes],
        *,
        send_timeout_s: float,
        gone: Callable[[], None] | None,
        media_type: str = EVENTS,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(texts, media_type=media_type, headers=headers)
        self._send_timeout_s = send_timeout_s
        self._gone = gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._still_valid = scope["belljar"].still_valid
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self._gone:
                self._gone()

    async def stream_response(self, send: Send) -> None:
        async def patient(message: Any) -> None:
            if not self._still_valid():
                raise _KeyGone
            async with asyncio.timeout(self._send_timeout_s):
                await send(message)

        try:
            await super().stream_response(patient)
        except (TimeoutError, _KeyGone):
            return  # without its end: whoever reads on sees that it is not whole


def content(
    pieces: AsyncIterator[bytes], *, send_timeout_s: float, headers: dict[str, str]
) -> StreamingResponse:
    """Bytes of unknown length, for saving: no browser shows them as a page."""
    return _Streamed(
        pieces,
        send_timeout_s=send_timeout_s,
        gone=None,
        media_type="application/octet-stream",
        headers=headers,
    )
