"""The three doors of a lease: a proxy (HTTP and SOCKS5), and what clients dial that know of none.

All lead the same way: a name, the rules, an address, HTTP that is read (or TLS that is carried).
"""

from __future__ import annotations

import asyncio
import contextlib

from . import socks, tls, tunnel
from .addresses import Address
from .asking import Wanted
from .ledger import Attempt
from .limits import Connection, Watched
from .outlet import Door, Outlet
from .refusal import Refusal, failed
from .relay import Relay, Way
from .streams import Begun, Stream
from .targets import Target

_ALERT = b"\x15\x03\x03\x00\x02\x02\x31"
"""A record of TLS: fatal, access denied."""
HTTPS = 443


async def proxy(outlet: Outlet, connection: Connection, stream: Stream) -> None:
    first = await _first(connection, stream)
    if not first:
        return
    if first[0] == socks.VERSION:
        way = await socks.open_way(outlet, connection, Begun(first, stream))
    else:
        way = await Relay(outlet, connection, Begun(first, stream), proxy=True).serve()
    if way:
        await _beyond(outlet, connection, way)


async def http(outlet: Outlet, connection: Connection, stream: Stream) -> None:
    await Relay(outlet, connection, stream).serve()


async def https(outlet: Outlet, connection: Connection, stream: Stream) -> None:
    attempt = Attempt(outlet.ledger, scheme="https")
    attempt.port = HTTPS
    first = await _first(connection, stream)
    if not first:
        return
    async with _told(connection, attempt, stream):
        name, seen = await tls.hello(stream, first)
        attempt.host = name
        target = Target(name, HTTPS)
        await outlet.pace.wait()
        attempt.rule = outlet.permit(target).rule
        attempt.begun()
        await _secure(outlet, connection, seen, stream, target, None, attempt)


DOORS: tuple[Door, ...] = (proxy, http, https)
"""In the order in which a sandbox hands over its listeners."""


async def _first(connection: Connection, stream: Stream) -> bytes:
    """What follows must be a whole request, or handshake, within the time for one."""
    connection.head_begins()
    return await stream.read()


async def _beyond(outlet: Outlet, connection: Connection, way: Way) -> None:
    """After CONNECT: the first byte tells TLS from HTTP; nothing else is carried."""
    target, judged, stream, attempt = way
    async with _told(connection, attempt, stream):
        first = await _first(connection, stream)
        if not first:
            pass
        elif first[0] == tls.HANDSHAKE:
            name, seen = await tls.hello(stream, first)
            tls.check_name(name, target.host)
            await _secure(outlet, connection, seen, stream, target, judged, attempt)
        else:
            inner = Begun(first, stream)
            await Relay(outlet, connection, inner, fixed=target, judged=judged, way=attempt).serve()


async def _secure(
    outlet: Outlet,
    connection: Connection,
    seen: bytes,
    rest: Stream,
    target: Target,
    judged: list[Address] | None,
    attempt: Attempt,
) -> None:
    stream = Begun(seen, rest)
    if not outlet.permit(target).inspect:
        tls.check_unhidden(seen)
        await _carry(outlet, connection, stream, target, judged, attempt)
        return
    inner = await tls.answer(stream, outlet.certificate(target.host))
    connection.head_ends()
    await Relay(
        outlet, connection, inner, fixed=target, judged=judged, secure=True, way=attempt
    ).serve()
    with contextlib.suppress(OSError):
        await inner.end()


async def _carry(
    outlet: Outlet,
    connection: Connection,
    stream: Stream,
    target: Target,
    judged: list[Address] | None,
    attempt: Attempt,
) -> None:
    attempt.scheme, attempt.method = "tunnel", ""
    connection.head_ends()
    wanted = Wanted(target)
    connection.wanted, connection.is_tunnel = wanted, True
    try:
        tcp, address = await outlet.dial(wanted, judged or await outlet.look_up(target))
        attempt.address = str(address)
        meter = Watched(tcp, connection, outlet.budget)
        try:
            await tunnel.carry(stream, meter, outlet.turns)
        finally:
            attempt.bytes_sent, attempt.bytes_received = meter.sent, meter.received
            meter.close()
    finally:
        connection.wanted, connection.is_tunnel = None, False


class _told:
    """However it ends, the attempt is told; a refusal is said in TLS's words."""

    def __init__(self, connection: Connection, attempt: Attempt, stream: Stream) -> None:
        self._connection = connection
        self._attempt = attempt
        self._stream = stream

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if error is None:
            self._attempt.allowed()
        elif isinstance(error, Refusal):
            self._attempt.ended(error)
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._stream.write(_ALERT)
        elif isinstance(error, (OSError, EOFError)):
            if self._attempt.bytes_received:
                self._attempt.allowed()
            self._attempt.ended(failed("the connection broke"))
        elif isinstance(error, asyncio.CancelledError):
            self._attempt.ended(self._connection.why_cut or failed("the sandbox ended"))
            return False
        elif isinstance(error, Exception):
            self._attempt.ended(failed(f"the gateway failed ({type(error).__name__})"))
        else:
            return False
        return True
