"""HTTP from a sandbox to the hosts that its rules name, one request after the other.

Both sides are HTTP of their own: what h11 read from one is written anew to the other, so there is
nothing that the gateway and the host could read differently.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import NamedTuple

import h11

from . import http, targets, tls, tunnel
from .addresses import Address
from .http import Http
from .ledger import Attempt
from .limits import Connection, Watched
from .outlet import Outlet
from .refusal import Refusal, blocked, failed
from .scrubbing import Incoming
from .secrets import Outgoing
from .streams import Begun, Stream, Tcp
from .targets import Target

_FLUSH_BYTES = 65_536
_MOST_INTERIM = 16
_LINGER_S = 2.0
_LINGER_BYTES = 1 << 20
_ANSWER_WHY = "its answer is not proper HTTP"


class Way(NamedTuple):
    """What CONNECT opened."""

    target: Target
    judged: list[Address]
    stream: Stream
    attempt: Attempt


class _Upstream(NamedTuple):
    target: Target
    http: Http
    tcp: Tcp
    meter: Watched
    address: str


class _Outgoing(NamedTuple):
    head: h11.Request
    body: Outgoing


class Relay:
    """`fixed`: the one host that requests go to; without it, `proxy` says that requests name it in
    their address, else their Host header does, for port 80."""

    def __init__(
        self,
        outlet: Outlet,
        connection: Connection,
        stream: Stream,
        *,
        proxy: bool = False,
        fixed: Target | None = None,
        judged: list[Address] | None = None,
        secure: bool = False,
    ) -> None:
        self._outlet = outlet
        self._connection = connection
        self._client = Http(stream, h11.SERVER)
        self._proxy = proxy
        self._fixed = fixed
        self._judged = judged
        self._secure = secure
        self._upstream: _Upstream | None = None
        self._answering = False
        self.requests = 0

    async def serve(self) -> Way | None:
        """Until the client has nothing more to ask, or opened a way with CONNECT."""
        try:
            while True:
                request = await self._next()
                if request is None:
                    return None
                self.requests += 1
                attempt = Attempt(self._outlet.ledger, scheme="https" if self._secure else "http")
                attempt.method = request.method.decode("ascii", "replace")
                try:
                    if self._proxy and request.method == b"CONNECT":
                        return await self._connect(request, attempt)
                    if not await self._one(request, attempt):
                        return None
                except Refusal as refusal:
                    attempt.ended(refusal)
                    await self._refuse(refusal)
                    return None
                except (OSError, EOFError):
                    attempt.ended(failed("the connection broke"))
                    return None
                except Exception as error:
                    attempt.ended(failed(f"the gateway failed ({type(error).__name__})"))
                    return None
                except asyncio.CancelledError:
                    attempt.ended(self._connection.why_cut or failed("the sandbox ended"))
                    raise
        except OSError:
            return None
        finally:
            self._drop_upstream()

    async def _next(self) -> h11.Request | None:
        client = self._client
        try:
            event = client.ready()
            if event is None:
                self._connection.is_resting = self.requests > 0
                client.feed(await client.stream.read())
                self._connection.is_resting = False
                self._connection.head_begins()
                event = await client.event()
        except h11.RemoteProtocolError as error:
            await self._garbled(error)
            return None
        finally:
            self._connection.is_resting = False
            self._connection.head_ends()
        return event if isinstance(event, h11.Request) else None

    async def _garbled(self, error: h11.RemoteProtocolError) -> None:
        attempt = Attempt(self._outlet.ledger, scheme="https" if self._secure else "http")
        if self._fixed:
            attempt.host, attempt.port = self._fixed
        self.requests += 1
        refusal = blocked(f"not a proper HTTP/1.1 request ({error})", status=400)
        attempt.ended(refusal)
        await self._refuse(refusal)

    # -- one request -----------------------------------------------------------------------------

    async def _connect(self, request: h11.Request, attempt: Attempt) -> Way:
        self._client.check_head(request)
        text = request.target.decode("ascii")
        attempt.host = text[:253]
        target = targets.authority(text, None)
        attempt.host, attempt.port = target
        hosts = http.values(request.headers, b"host")
        # Some clients name the host here without the port.
        if hosts and targets.authority(hosts[0].decode("latin-1"), target.port) != target:
            raise blocked(f"CONNECT to {target.host} with another Host header")
        await self._outlet.pace.wait()
        attempt.rule = self._outlet.permit(target).rule
        judged = await self._outlet.look_up(target)
        accepted = h11.Response(status_code=200, headers=[], reason=b"Connection established")
        await self._client.stream.write(self._client.state.send(accepted) or b"")
        rest = Begun(self._client.state.trailing_data[0], self._client.stream)
        return Way(target, judged, rest, attempt)

    async def _one(self, request: h11.Request, attempt: Attempt) -> bool:
        """Whether another request may follow."""
        target, path = self._read_target(request, attempt)
        attempt.host, attempt.port = target
        attempt.path = path.partition("?")[0]
        self._client.check_head(request)
        await self._outlet.pace.wait()
        given = self._outlet.rules
        attempt.rule = self._outlet.permit(target, attempt.method, attempt.path).rule
        if targets.has_path_rules(given, target):
            targets.clear_path(attempt.path)
        outgoing = self._outgoing(request, target, path)
        self._connection.target = target
        try:
            upstream = await self._reach(target, attempt)
            sent, received = upstream.meter.sent, upstream.meter.received
            try:
                switched = await self._exchange(upstream, outgoing, attempt)
                if switched:
                    await self._switch(upstream)
            finally:
                attempt.bytes_sent = upstream.meter.sent - sent
                attempt.bytes_received = upstream.meter.received - received
        finally:
            self._connection.target = None
        attempt.allowed()
        if switched:
            return False
        if upstream.http.reusable():
            upstream.http.state.start_next_cycle()
        else:
            self._drop_upstream()
        if not self._client.reusable():
            return False
        self._answering = False
        try:
            self._client.next_request()
        except h11.RemoteProtocolError as error:
            await self._garbled(error)
            return False
        return True

    def _read_target(self, request: h11.Request, attempt: Attempt) -> tuple[Target, str]:
        text = request.target.decode("ascii")
        hosts = [value.decode("latin-1") for value in http.values(request.headers, b"host")]
        if self._fixed:
            attempt.host, attempt.port = self._fixed
            path = targets.origin(text, attempt.method)
            target = self._fixed
        elif self._proxy:
            attempt.host = targets.claimed(text)
            target, path = targets.absolute(text)
        else:
            path = targets.origin(text, attempt.method)
            if not hosts:
                raise blocked("a request without a Host header", status=400)
            attempt.host = hosts[0][:253]
            target = targets.authority(hosts[0], 80)
            if target.port != 80:
                raise blocked(f"a request to port 80 for {target.host}:{target.port}")
        if hosts and targets.authority(hosts[0], 443 if self._secure else 80) != target:
            raise blocked(
                f"a request to {target.host}:{target.port} with the Host header {hosts[0][:80]!r}"
            )
        if request.method == b"CONNECT":
            raise blocked("CONNECT within a connection")
        return target, path

    def _outgoing(self, request: h11.Request, target: Target, path: str) -> _Outgoing:
        """The request as it goes on, with secrets in it where they belong."""
        upgrade = http.values(request.headers, b"upgrade")
        websocket = request.method == b"GET" and [one.lower() for one in upgrade] == [b"websocket"]
        if websocket and self._outlet.keeper.guards(target.host):
            raise blocked(f"{target.host} gets a secret, so there is no WebSocket to it")
        rewritten = self._outlet.keeper.request(
            host=target.host,
            tls=self._secure,
            method=request.method,
            target=path.encode("ascii"),
            headers=self._headers(request, target, websocket=websocket),
        )
        head = h11.Request(
            method=request.method, target=rewritten.target, headers=rewritten.headers
        )
        return _Outgoing(head, rewritten.body)

    def _headers(self, request: h11.Request, target: Target, *, websocket: bool) -> http.Headers:
        port = 443 if self._secure else 80
        name = target.host if target.port == port else f"{target.host}:{target.port}"
        headers = [(b"Host", name.encode())]
        named = http.values(request.headers, b"connection")
        headers += [
            (header, value)
            for header, value in http.passed_on(request.headers.raw_items(), named)
            if header.lower() not in (b"host", b"expect")
        ]
        if http.values(request.headers, b"transfer-encoding"):
            headers.append((b"Transfer-Encoding", b"chunked"))
        if websocket:
            headers += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
        return headers

    # -- the host's side -------------------------------------------------------------------------

    async def _reach(self, target: Target, attempt: Attempt) -> _Upstream:
        """The connection to it that is there, or a new one."""
        known = self._upstream
        if known and known.target == target and known.tcp.is_quiet():
            attempt.address = known.address
            return known
        self._drop_upstream()
        judged = self._judged or await self._outlet.look_up(target)
        tcp, address = await self._outlet.dial(target, judged)
        attempt.address = str(address)
        try:
            meter = Watched(tcp, self._connection, self._outlet.budget)
            stream: Stream = meter
            if self._secure:
                stream = await tls.ask(meter, self._outlet.trust, target.host)
        except BaseException:
            tcp.close()
            raise
        upstream = _Upstream(target, Http(stream, h11.CLIENT), tcp, meter, str(address))
        self._upstream = upstream
        return upstream

    def _drop_upstream(self) -> None:
        if self._upstream:
            self._upstream.http.stream.close()
            self._upstream = None

    async def _exchange(self, upstream: _Upstream, outgoing: _Outgoing, attempt: Attempt) -> bool:
        """Request and answer, at the same time where there is a body. Returns whether the
        protocol was switched."""
        try:
            body = self._client.ready()
        except h11.RemoteProtocolError as error:
            raise _bad_body(error) from error
        first = upstream.http.state.send(outgoing.head) or b""
        method = outgoing.head.method
        if isinstance(body, h11.EndOfMessage):
            await upstream.http.stream.write(first + _finish(upstream, outgoing.body, body))
            return await self._answer(upstream, method, attempt)
        await upstream.http.stream.write(first)
        if self._client.state.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            await self._client.stream.write(self._client.state.send(go_on) or b"")
        upload = asyncio.create_task(self._upload(upstream, outgoing.body, body))
        answer = asyncio.create_task(self._answer(upstream, method, attempt))
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

    async def _upload(self, upstream: _Upstream, body: Outgoing, event: http.Event | None) -> None:
        try:
            while True:
                event = event or await self._client.event()
                if isinstance(event, h11.Data):
                    if passed := body.feed(bytes(event.data)):
                        await upstream.http.stream.write(_data(upstream.http, passed))
                elif isinstance(event, h11.EndOfMessage):
                    await upstream.http.stream.write(_finish(upstream, body, event))
                    return
                else:
                    raise blocked("the request broke off")
                event = None
        except h11.RemoteProtocolError as error:
            raise _bad_body(error) from error

    async def _answer(self, upstream: _Upstream, method: bytes, attempt: Attempt) -> bool:
        client, out = self._client, bytearray()
        incoming: Incoming | None = None
        host, interim = upstream.target.host, 0
        try:
            while True:
                event = upstream.http.ready()
                if event is None:
                    await self._flush(out)
                    upstream.http.feed(await upstream.http.stream.read())
                    continue
                if isinstance(event, h11.InformationalResponse):
                    interim += 1
                    if interim > _MOST_INTERIM:
                        raise failed(f"{host}: it announces an answer without end")
                    if event.status_code == 101:
                        attempt.status = 101
                        out += client.state.send(_switching(event)) or b""
                        await self._flush(out)
                        return True
                elif isinstance(event, h11.Response):
                    attempt.status = event.status_code
                    incoming = self._outlet.keeper.response(
                        host=host,
                        method=method,
                        status=event.status_code,
                        reason=event.reason,
                        headers=_answer_headers(event),
                    )
                    head = h11.Response(
                        status_code=event.status_code,
                        headers=incoming.headers,
                        reason=incoming.reason,
                    )
                    out += client.state.send(head) or b""
                    self._answering = True
                elif incoming and isinstance(event, h11.Data):
                    for piece in incoming.feed(bytes(event.data)):
                        out += _data(client, piece)
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
        except (h11.RemoteProtocolError, h11.LocalProtocolError) as error:
            # Without h11's words: they quote the answer, which may echo a secret.
            raise failed(f"{host}: {_ANSWER_WHY}") from error

    async def _flush(self, out: bytearray) -> None:
        if out:
            data = bytes(out)
            out.clear()
            await self._client.stream.write(data)

    async def _switch(self, upstream: _Upstream) -> None:
        inside, outside = self._client, upstream.http
        await tunnel.carry(
            Begun(inside.state.trailing_data[0], inside.stream),
            Begun(outside.state.trailing_data[0], outside.stream),
        )

    # -- refusing --------------------------------------------------------------------------------

    async def _refuse(self, refusal: Refusal) -> None:
        """Says why if that can still be said. What the client is sending is read for a moment: an
        answer that meets unread bytes is thrown away by the kernel."""
        if self._answering:
            return
        response, body = http.refusal_answer(refusal)
        state = self._client.state
        try:
            data = state.send(response) or b""
            data += state.send(h11.Data(data=body)) or b""
            data += state.send(h11.EndOfMessage()) or b""
        except h11.LocalProtocolError:
            return
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                await self._client.stream.write(data)
                await self._client.stream.end()
                dropped = 0
                while dropped < _LINGER_BYTES and (piece := await self._client.stream.read()):
                    dropped += len(piece)


def _bad_body(error: h11.RemoteProtocolError) -> Refusal:
    return blocked(f"the request's body is not proper HTTP ({error})", status=400)


def _switching(event: h11.InformationalResponse) -> h11.InformationalResponse:
    return h11.InformationalResponse(
        status_code=101, headers=list(event.headers.raw_items()), reason=event.reason
    )


def _answer_headers(event: h11.Response) -> http.Headers:
    named = http.values(event.headers, b"connection")
    lengths = http.values(event.headers, b"content-length")
    if lengths and http.values(event.headers, b"transfer-encoding"):
        raise failed("the answer has two lengths")
    return [
        (name, value)
        for name, value in http.passed_on(event.headers.raw_items(), named)
        if name.lower() != b"alt-svc"  # QUIC leads nowhere
    ]


def _data(side: Http, data: bytes) -> bytes:
    return side.state.send(h11.Data(data=data)) or b""


def _finish(upstream: _Upstream, body: Outgoing, last: h11.EndOfMessage) -> bytes:
    """The end of a request. What may follow a body is looked at and not passed on."""
    body.trailers(list(last.headers.raw_items()))
    rest = body.finish()
    end = _data(upstream.http, rest) if rest else b""
    return end + (upstream.http.state.send(h11.EndOfMessage()) or b"")
