"""One request and its answer, between the two sides of the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import NamedTuple

import h11

from . import tunnel
from .asking import Wanted
from .bodies import Outgoing
from .http import Event, Headers, Http, Odd, passed_on, values, without_quotes
from .ledger import Attempt
from .limits import Watched
from .outlet import Outlet
from .refusal import Refusal, blocked, failed
from .scrubbing import Incoming
from .streams import Begun, Tcp
from .targets import Target
from .tls import Tls

_FLUSH_BYTES = 65_536
_MOST_INTERIM = 16
_ANSWER_WHY = "its answer is not proper HTTP"


class Upstream(NamedTuple):
    """A connection to a host."""

    target: Target
    http: Http
    tcp: Tcp
    meter: Watched
    address: str

    def is_quiet(self) -> bool:
        """Whether the host has neither spoken nor gone since its last response."""
        stream = self.http.stream
        unread = isinstance(stream, Tls) and stream.has_unread()
        return not unread and self.tcp.is_quiet()


class Asked(NamedTuple):
    """A request as it goes on."""

    wanted: Wanted
    head: h11.Request
    body: Outgoing


class Exchange:
    def __init__(self, client: Http, upstream: Upstream, outlet: Outlet, attempt: Attempt) -> None:
        self._client = client
        self._upstream = upstream
        self._outlet = outlet
        self._attempt = attempt
        self._turns = outlet.turns
        self.has_begun_to_answer = False

    async def carry_out(self, asked: Asked) -> bool:
        """Returns whether it was switched to another protocol, which then has come to its end."""
        switched = await self._both_ways(asked)
        if switched:
            await self._switch()
        return switched

    async def _both_ways(self, asked: Asked) -> bool:
        """Request and answer, at the same time where there is a body."""
        upstream = self._upstream
        try:
            body = await self._next(self._client)
        except h11.RemoteProtocolError as error:
            raise _bad_body(error) from error
        first = upstream.http.state.send(asked.head) or b""
        self._outlet.check_again(asked.wanted)
        if isinstance(body, h11.EndOfMessage):
            await upstream.http.stream.write(first + _finish(upstream, asked.body, body))
            return await self._answer(asked.head.method)
        await upstream.http.stream.write(first)
        if self._client.state.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            await self._client.stream.write(self._client.state.send(go_on) or b"")
        upload = asyncio.create_task(self._upload(asked.body, body))
        answer = asyncio.create_task(self._answer(asked.head.method))
        try:
            await asyncio.wait({upload, answer}, return_when=asyncio.FIRST_COMPLETED)
            if upload.done() and not answer.done():
                with contextlib.suppress(OSError):  # the answer may say why it was not taken
                    upload.result()
            return await answer
        finally:
            upload.cancel()
            answer.cancel()
            await asyncio.gather(upload, answer, return_exceptions=True)

    async def _upload(self, body: Outgoing, event: Event | None) -> None:
        upstream, since = self._upstream, time.monotonic()
        try:
            while True:
                since = await self._turns.pass_on(since)
                if event is None:
                    event = await self._next(self._client)
                if event is None:
                    self._client.feed(await self._client.stream.read())
                elif isinstance(event, h11.Data):
                    async with self._turns:
                        data, event = self._client.gathered(event)
                        passed = body.feed(data)
                    if passed:
                        await upstream.http.stream.write(_data(upstream.http, passed))
                elif isinstance(event, h11.EndOfMessage):
                    async with self._turns:
                        rest = _finish(upstream, body, event)
                    await upstream.http.stream.write(rest)
                    return
                else:
                    raise blocked("the request broke off")
        except h11.RemoteProtocolError as error:
            raise _bad_body(error) from error

    async def _answer(self, method: bytes) -> bool:
        client, upstream, out = self._client, self._upstream, bytearray()
        incoming: Incoming | None = None
        host, interim = upstream.target.host, 0
        since, behind, has_read = time.monotonic(), None, False
        try:
            while True:
                since = await self._turns.pass_on(since)
                event, behind = behind, None
                if event is None and has_read:
                    event = await self._next(upstream.http)
                if event is None:
                    await self._flush(out)
                    upstream.http.feed(await upstream.http.stream.read())
                    has_read = True
                    continue
                if isinstance(event, h11.InformationalResponse):
                    interim += 1
                    if interim > _MOST_INTERIM:
                        raise failed(f"{host}: it announces an answer without end")
                    if event.status_code == 101:
                        if self._outlet.keeper.guards(host):  # it was not asked for one
                            raise blocked(f"{host} gets a secret, so there is no upgrade")
                        self._attempt.status = 101
                        upstream.meter.expect_silence()
                        out += client.state.send(_switching(event)) or b""
                        await self._flush(out)
                        return True
                elif isinstance(event, h11.Response):
                    self._attempt.status = event.status_code
                    if _is_of_events(event):
                        upstream.meter.expect_silence()
                    async with self._turns:
                        incoming = self._outlet.keeper.response(
                            host=host,
                            method=method,
                            status=event.status_code,
                            reason=event.reason,
                            headers=_answer_headers(event),
                        )
                        steps = incoming.read_head()
                        more = _goes_on(steps)
                        head = b"" if more else _head(client, event, incoming)
                    while more:
                        async with self._turns:
                            more = _goes_on(steps)
                            head = b"" if more else _head(client, event, incoming)
                    out += head
                    self.has_begun_to_answer = True
                elif incoming and isinstance(event, h11.Data):
                    data, behind = bytes(event.data), None
                    if upstream.http.at_lines:
                        async with self._turns:
                            data, behind = upstream.http.gathered(event)
                    pieces = incoming.feed(data)
                    while True:
                        async with self._turns:
                            piece = next(pieces, None)
                        if piece is None:
                            break
                        out += _data(client, piece) if piece else b""
                        if len(out) >= _FLUSH_BYTES:
                            await self._flush(out)
                elif incoming and isinstance(event, h11.EndOfMessage):
                    for piece in incoming.finish():
                        out += _data(client, piece)
                    # Without what may follow a body: hardly anybody reads it.
                    out += client.state.send(h11.EndOfMessage()) or b""
                    await self._flush(out)
                    return False
                else:
                    raise failed(f"{host}: it closed the connection without an answer")
        except Odd as error:
            raise failed(f"{host}: its answer has {error}") from error
        except (h11.RemoteProtocolError, h11.LocalProtocolError) as error:
            # Without h11's words: they quote the answer, which may echo a secret.
            raise failed(f"{host}: {_ANSWER_WHY}") from error

    async def _next(self, side: Http) -> Event | None:
        """The next event if it is here already."""
        if not side.at_lines:
            return side.ready()
        async with self._turns:
            return side.ready()

    async def _flush(self, out: bytearray) -> None:
        if out:
            data = bytes(out)
            out.clear()
            await self._client.stream.write(data)

    async def _switch(self) -> None:
        inside, outside = self._client, self._upstream.http
        await tunnel.carry(
            Begun(inside.state.trailing_data[0], inside.stream),
            Begun(outside.state.trailing_data[0], outside.stream),
            self._turns,
        )


def _bad_body(error: h11.RemoteProtocolError) -> Refusal:
    why = without_quotes(error)
    return blocked(f"the request's body is not proper HTTP ({why})", status=400)


def _switching(event: h11.InformationalResponse) -> h11.InformationalResponse:
    return h11.InformationalResponse(
        status_code=101, headers=list(event.headers.raw_items()), reason=event.reason
    )


def _answer_headers(event: h11.Response) -> Headers:
    named = values(event.headers, b"connection")
    lengths = values(event.headers, b"content-length")
    if lengths and values(event.headers, b"transfer-encoding"):
        raise failed("the answer has two lengths")
    return [
        (name, value)
        for name, value in passed_on(event.headers.raw_items(), named)
        if name.lower() != b"alt-svc"  # QUIC leads nowhere
    ]


def _is_of_events(event: h11.Response) -> bool:
    kinds = values(event.headers, b"content-type")
    return any(kind.lower().startswith(b"text/event-stream") for kind in kinds)


def _head(client: Http, event: h11.Response, incoming: Incoming) -> bytes:
    head = h11.Response(
        status_code=event.status_code, headers=incoming.headers, reason=incoming.reason
    )
    return client.state.send(head) or b""


def _goes_on(steps: Iterator[None]) -> bool:
    return next(steps, True) is None


def _data(side: Http, data: bytes) -> bytes:
    return side.state.send(h11.Data(data=data)) or b""


def _finish(upstream: Upstream, body: Outgoing, last: h11.EndOfMessage) -> bytes:
    """The end of a request. What may follow a body is looked at and not passed on."""
    body.trailers(list(last.headers.raw_items()))
    rest = body.finish()
    end = _data(upstream.http, rest) if rest else b""
    return end + (upstream.http.state.send(h11.EndOfMessage()) or b"")
