"""TLS on any stream, at both ends of the gateway; and who a handshake is for."""

from __future__ import annotations

import asyncio
import ssl
import struct
from typing import Any
from weakref import WeakKeyDictionary

from belljar.errors import InvalidRequest
from belljar.network import host_name

from .refusal import blocked, failed
from .streams import PIECE_BYTES, Stream

HANDSHAKE = 0x16
"""The first byte of TLS; no HTTP request begins with it."""
_LONGEST_HELLO = 32_768
_ENCRYPTED_HELLO = 0xFE0D


class Tls:
    """Made by `answer` or `ask`."""

    def __init__(self, under: Stream, context: ssl.SSLContext, **options: Any) -> None:
        self._under = under
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, **options)
        self._writing = asyncio.Lock()

    async def handshake(self) -> None:
        try:
            while True:
                try:
                    self._tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    await self._flush()
                    await self._fill()
        finally:
            await self._flush()  # an alert says what was wrong

    async def read(self) -> bytes:
        while True:
            try:
                return self._tls.read(PIECE_BYTES)
            except ssl.SSLWantReadError:
                await self._flush()
                try:
                    await self._fill()
                except EOFError:
                    return b""
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    def has_unread(self) -> bool:
        """Whether something came that nobody has read yet."""
        return bool(self._in.pending or self._tls.pending())

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            count = self._tls.write(view[:PIECE_BYTES])
            view = view[count:]
            await self._flush()

    async def end(self) -> None:
        try:
            self._tls.unwrap()
        except ssl.SSLError:  # the other side has not said goodbye yet, and need not
            pass
        await self._flush()
        await self._under.end()

    def close(self) -> None:
        self._under.close()

    async def _fill(self) -> None:
        data = await self._under.read()
        if not data:
            raise EOFError("the connection ended within TLS")
        self._in.write(data)

    async def _flush(self) -> None:
        if self._out.pending:
            async with self._writing:  # a reader flushes, too
                if data := self._out.read():
                    await self._under.write(data)


async def answer(under: Stream, context: ssl.SSLContext) -> Tls:
    """As the server that code believes it talks to."""
    stream = Tls(under, context, server_side=True)
    try:
        await stream.handshake()
    except (ssl.SSLError, EOFError) as error:
        raise failed(
            "the code broke off TLS with the gateway: does its client trust the certificates in "
            f"SSL_CERT_FILE? ({_reason(error)})"
        ) from error
    return stream


async def ask(under: Stream, context: ssl.SSLContext, host: str) -> Tls:
    """As a client that checks who answers."""
    stream = Tls(under, context, server_hostname=host)
    try:
        await stream.handshake()
    except ssl.SSLCertVerificationError as error:
        raise failed(f"{host}: its certificate is not valid ({error.verify_message})") from error
    except (ssl.SSLError, EOFError) as error:
        raise failed(f"{host}: TLS failed ({_reason(error)})") from error
    return stream


_seen_names: WeakKeyDictionary[ssl.SSLObject, list[str | None]] = WeakKeyDictionary()


def _looking() -> ssl.SSLContext:
    def stop(tls: ssl.SSLObject, name: str | None, _context: object) -> int:
        _seen_names[tls].append(name)
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = stop
    return context


_LOOKING = _looking()


async def hello(stream: Stream, first: bytes) -> tuple[str, bytes]:
    """The name that a TLS handshake is for, and the bytes that were read to know it.

    OpenSSL reads it: a server without a certificate, which stops once the name is known."""
    incoming = ssl.MemoryBIO()
    looking = _LOOKING.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
    names = _seen_names[looking] = []
    seen = bytearray()
    piece = first
    while True:
        if not piece:
            raise failed("the connection ended within TLS")
        seen += piece
        incoming.write(piece)
        try:
            looking.do_handshake()
        except ssl.SSLWantReadError:
            if len(seen) > _LONGEST_HELLO:
                raise blocked("a TLS handshake that has no end") from None
            piece = await stream.read()
            continue
        except ssl.SSLError as error:
            if not names:
                raise blocked(f"not a TLS handshake ({_reason(error)})") from error
        break
    return _name(names), bytes(seen)


def _name(names: list[str | None]) -> str:
    if not names or not names[0]:
        raise blocked("a TLS handshake that does not say which host it is for")
    try:
        return host_name(names[0])
    except InvalidRequest:
        raise blocked(f"a TLS handshake for {names[0][:80]!r}, which is no host's name") from None


def check_unhidden(seen: bytes) -> None:
    """Of a handshake that is carried unopened. With ECH the name that counts is encrypted in it,
    and the one that was read is only the outer one."""
    try:
        hidden = _ENCRYPTED_HELLO in _extensions(seen)
    except (IndexError, struct.error):
        hidden = True
    if hidden:
        raise blocked("a TLS handshake that hides the name it is for (ECH)")


def _extensions(seen: bytes) -> set[int]:
    """Their numbers, in a hello that OpenSSL has found to be well-formed."""
    message = bytearray()
    at = 0
    while at < len(seen):  # one message may come in several records
        (length,) = struct.unpack_from(">H", seen, at + 3)
        message += seen[at + 5 : at + 5 + length]
        at += 5 + length
    at = 4 + 2 + 32
    at += 1 + message[at]
    at += 2 + struct.unpack_from(">H", message, at)[0]
    at += 1 + message[at]
    (length,) = struct.unpack_from(">H", message, at)
    at, end = at + 2, at + 2 + length
    found = set()
    while at < end:
        kind, length = struct.unpack_from(">HH", message, at)
        found.add(kind)
        at += 4 + length
    return found


def check_name(name: str, host: str) -> None:
    if name != host:
        raise blocked(f"TLS for {name} through a connection to {host}")


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or str(error)
    return str(reason).replace("_", " ").lower()
