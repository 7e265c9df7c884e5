"""SOCKS5 (RFC 1928), as much of it as leads to a name: no authentication, CONNECT, domain names."""

from __future__ import annotations

import contextlib
import struct

from .asking import Wanted
from .ledger import Attempt
from .limits import Connection
from .outlet import Outlet
from .refusal import FAILED, Refusal, blocked, failed
from .relay import Way
from .streams import Begun, Stream
from .targets import authority

VERSION = 5
_NO_AUTHENTICATION, _NOT_ACCEPTABLE = 0, 0xFF
_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_GRANTED, _NOT_ALLOWED, _UNREACHABLE, _NO_COMMAND = 0, 2, 4, 7
_MOST_BYTES = 1024


class _Input:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._data = b""

    async def take(self, count: int) -> bytes:
        while len(self._data) < count:
            piece = await self._stream.read()
            if not piece:
                raise EOFError("the connection ended within SOCKS")
            self._data += piece
        taken, self._data = self._data[:count], self._data[count:]
        return taken

    @property
    def rest(self) -> bytes:
        return self._data


async def open_way(outlet: Outlet, connection: Connection, stream: Stream) -> Way | None:
    """The way that was asked for; None if it was refused, and told."""
    attempt = Attempt(outlet.ledger, scheme="socks")
    attempt.method = "CONNECT"
    given = _Input(stream)
    try:
        _, count = await given.take(2)
        methods = await given.take(count)
        if _NO_AUTHENTICATION not in methods:
            await stream.write(bytes((VERSION, _NOT_ACCEPTABLE)))
            raise blocked("SOCKS with a password; none is needed")
        await stream.write(bytes((VERSION, _NO_AUTHENTICATION)))
        version, command, _, kind = await given.take(4)
        if version != VERSION or command != _CONNECT:
            await _reply(stream, _NO_COMMAND)
            raise blocked("SOCKS asks for something else than a connection")
        if kind != _NAME:
            length = {_IPV4: 4, _IPV6: 16}.get(kind, 0)
            attempt.host = _shown(await given.take(length))
            await _reply(stream, _NOT_ALLOWED)
            raise blocked("addresses are not dialled, only names (socks5h, not socks5)")
        (length,) = await given.take(1)
        name = (await given.take(length)).decode("latin-1")
        (port,) = struct.unpack(">H", await given.take(2))
        attempt.host, attempt.port = name, port
        try:
            target = authority(f"{name}:{port}", None)
            attempt.host = target.host
            await outlet.pace.wait()
            wanted = connection.wanted = Wanted(target)
            attempt.rule = outlet.allow(wanted).rule
            attempt.begun()
            judged = await outlet.look_up(target)
        except Refusal as refusal:
            attempt.ended(refusal)
            await _reply(stream, _UNREACHABLE if refusal.verdict == FAILED else _NOT_ALLOWED)
            raise
        await _reply(stream, _GRANTED)
    except Refusal as refusal:
        attempt.ended(refusal)
        with contextlib.suppress(OSError):
            await stream.end()
        return None
    except BaseException:
        # Who hangs up early has tried, too.
        attempt.ended(connection.why_cut or failed("the connection broke"))
        raise
    finally:
        connection.wanted = None
    return Way(target, judged, Begun(given.rest, stream), attempt)


async def _reply(stream: Stream, code: int) -> None:
    await stream.write(struct.pack(">BBBBIH", VERSION, code, 0, _IPV4, 0, 0))


def _shown(packed: bytes) -> str:
    if len(packed) == 4:
        return ".".join(str(byte) for byte in packed)
    return packed.hex(":", 2)
