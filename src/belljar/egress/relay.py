"""HTTP from a sandbox to the hosts that its rules name, one request after the other.

Both sides are HTTP of their own: what h11 read from one is written anew to the other, so there is
nothing that the gateway and the host could read differently.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import NamedTuple

import h11

from . import http, targets, tls
from .addresses import Address
from .asking import Wanted
from .exchange import Asked, Exchange, Upstream
from .http import Http
from .ledger import Attempt
from .limits import Connection, Watched
from .outlet import Outlet
from .refusal import Refusal, blocked, failed
from .streams import Begun, Stream
from .targets import Target

_LINGER_S = 2.0
_LINGER_BYTES = 1 << 20
_TOO_LATE = 504
_NO_HTTP2 = (
    "the gateway speaks HTTP/1.1 with code, not HTTP/2; clients that speak nothing else, such as "
    "gRPC, need a rule with inspect=False"
)


class Way(NamedTuple):
    """What CONNECT opened."""

    target: Target
    judged: list[Address]
    stream: Stream
    attempt: Attempt


class Relay:
    """`fixed`: the one host that requests go to; without it, `proxy` says that requests name it in
    their address, else their Host header does, for port 80. `way`: what opened the way there. Each
    request has a record of its own, and then there is none of the way."""

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
        way: Attempt | None = None,
    ) -> None:
        self._outlet = outlet
        self._connection = connection
        self._client = Http(stream, h11.SERVER)
        self._proxy = proxy
        self._fixed = fixed
        self._judged = judged
        self._secure = secure
        self._way = way
        self._upstream: Upstream | None = None
        self._exchange: Exchange | None = None
        self.requests = 0

    async def serve(self) -> Way | None:
        """Until the client has nothing more to ask, or opened a way with CONNECT."""
        try:
            while True:
                request = await self._next()
                if request is None:
                    return None
                self._count()
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
                    why = self._connection.why_cut or failed("the sandbox ended")
                    attempt.ended(why)
                    if why.status == _TOO_LATE:
                        await self._answer_refusal(why)
                    raise
        except OSError:
            return None
        finally:
            self._drop_upstream()

    async def _next(self) -> h11.Request | None:
        client = self._client
        try:
            if not client.has_begun():
                self._connection.is_resting = self.requests > 0
                client.feed(await client.stream.read())
                self._connection.is_resting = False
            self._connection.head_begins()
            while True:
                async with self._outlet.turns:
                    event = client.ready()
                if event is not None:
                    break
                client.feed(await client.stream.read())
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
        self._count()
        with contextlib.suppress(Refusal):
            await self._outlet.pace.wait()
        if self._client.begins_http2():
            refusal = blocked(_NO_HTTP2, status=505)
            attempt.ended(refusal)
            await self._say(http.http2_refusal(refusal))
            await self._linger()
            return
        why = http.without_quotes(error)
        refusal = blocked(f"not a proper HTTP/1.1 request ({why})", status=400)
        attempt.ended(refusal)
        await self._refuse(refusal)

    def _count(self) -> None:
        self.requests += 1
        if self._way:
            self._way.replaced()

    # -- one request -----------------------------------------------------------------------------

    async def _connect(self, request: h11.Request, attempt: Attempt) -> Way:
        self._client.check_head(request)
        text = request.target.decode("ascii")
        attempt.host = targets.claimed(text)
        target = targets.authority(text, None)
        attempt.host, attempt.port = target
        hosts = http.values(request.headers, b"host")
        # Some clients name the host here without the port.
        if hosts and targets.authority(hosts[0].decode("latin-1"), target.port) != target:
            raise blocked(f"CONNECT to {target.host} with another Host header")
        await self._outlet.pace.wait()
        wanted = self._connection.wanted = Wanted(target)
        try:
            attempt.rule = self._outlet.allow(wanted).rule
            attempt.begun()
            judged = await self._outlet.look_up(target)
        finally:
            self._connection.wanted = None
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
        wanted = Wanted(target, attempt.method, attempt.path, request.headers)
        try:
            async with self._outlet.turns:
                attempt.rule = self._outlet.allow(wanted).rule
                # In the same step, so that a change of rules finds it whenever it comes.
                self._connection.wanted = wanted
                outgoing = self._outgoing(request, wanted, path)
            attempt.begun()
            upstream = await self._reach(wanted, attempt)
            sent, received = upstream.meter.sent, upstream.meter.received
            try:
                self._exchange = Exchange(self._client, upstream, self._outlet, attempt)
                switched = await self._exchange.carry_out(outgoing)
            finally:
                attempt.bytes_sent = upstream.meter.sent - sent
                attempt.bytes_received = upstream.meter.received - received
        finally:
            self._connection.wanted = None
            self._connection.is_open_ended = False
        attempt.allowed()
        if switched:
            return False
        if upstream.http.reusable() and not upstream.http.state.trailing_data[0]:
            upstream.http.state.start_next_cycle()
        else:
            self._drop_upstream()
        if not self._client.reusable():
            if self._client.state.their_state is h11.SEND_BODY:
                await self._linger()  # answered before it was asked to the end
            return False
        self._exchange = None
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
            attempt.host = targets.claimed(hosts[0])
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

    def _outgoing(self, request: h11.Request, wanted: Wanted, path: str) -> Asked:
        """The request as it goes on, with secrets in it where they belong."""
        target = wanted.target
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
        return Asked(wanted, head, rewritten.body)

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

    async def _reach(self, wanted: Wanted, attempt: Attempt) -> Upstream:
        """The connection to it that is there, or a new one."""
        known, target = self._upstream, wanted.target
        if known and known.target == target and known.is_quiet():
            attempt.address = known.address
            return known
        self._drop_upstream()
        judged = self._judged or await self._outlet.look_up(target)
        tcp, address = await self._outlet.dial(wanted, judged)
        attempt.address = str(address)
        try:
            meter = Watched(tcp, self._connection, self._outlet.budget)
            stream: Stream = meter
            if self._secure:
                stream = await tls.ask(meter, self._outlet.trust, target.host)
        except BaseException:
            tcp.close()
            raise
        upstream = Upstream(target, Http(stream, h11.CLIENT), tcp, meter, str(address))
        self._upstream = upstream
        return upstream

    def _drop_upstream(self) -> None:
        if self._upstream:
            self._upstream.http.stream.close()
            self._upstream = None

    # -- refusing --------------------------------------------------------------------------------

    async def _refuse(self, refusal: Refusal) -> None:
        """Says why if that can still be said."""
        if await self._answer_refusal(refusal):
            await self._linger()

    async def _answer_refusal(self, refusal: Refusal) -> bool:
        if self._exchange and self._exchange.has_begun_to_answer:
            return False
        response, body = http.refusal_answer(refusal)
        state = self._client.state
        try:
            data = state.send(response) or b""
            data += state.send(h11.Data(data=body)) or b""
            data += state.send(h11.EndOfMessage()) or b""
        except h11.LocalProtocolError:
            return False
        await self._say(data)
        return True

    async def _say(self, data: bytes) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                await self._client.stream.write(data)

    async def _linger(self) -> None:
        """What the client is sending is read for a moment: an answer that meets unread bytes is
        thrown away by the kernel."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                await self._client.stream.end()
                dropped = 0
                while dropped < _LINGER_BYTES and (piece := await self._client.stream.read()):
                    dropped += len(piece)
