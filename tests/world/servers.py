"""What answers at every address: pages, echoes, redirects, WebSockets and scripted nonsense.

It takes whatever comes, as the careless servers do that request smuggling is aimed at, and keeps
the bytes of every connection for tests to look at.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import re
import socket
import ssl
import urllib.parse
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

Answer = Callable[["Visit"], AsyncIterator[bytes]]
MOST_KEPT = 1 << 20


@dataclass
class Visit:
    """One connection, as a server saw it."""

    address: str
    """Where it was dialled."""
    port: int
    name: str = ""
    """What the handshake was for (SNI)."""
    handshake: str = ""
    """Why TLS came to nothing."""
    raw: bytearray = field(default_factory=bytearray)
    """What was sent, decrypted; the beginning."""
    heads: list[bytes] = field(default_factory=list)
    """Of the requests found in it."""
    bodies: list[bytes] = field(default_factory=list)
    received_bytes: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def target(self) -> str:
        """Of the latest request."""
        return self.heads[-1].split(b" ")[1].decode("latin-1")


class Servers:
    def __init__(self, contexts: Callable[[str], ssl.SSLContext]) -> None:
        self.visits: list[Visit] = []
        self.raw: dict[str, bytes | Answer] = {}
        """What GET /raw/NAME answers; the connection is closed behind it."""
        self._contexts = contexts
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def plain(self, listening: socket.socket) -> None:
        self._servers.append(await asyncio.start_server(self._http, sock=listening, limit=1 << 20))

    async def echo(self, listening: socket.socket) -> None:
        self._servers.append(await asyncio.start_server(self._echo, sock=listening))

    async def secure(self, listening: socket.socket) -> None:
        """TLS by hand, so that a handshake that fails is told as well."""
        self._servers.append(await asyncio.start_server(self._https, sock=listening, limit=1 << 20))

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._visited(reader, writer, self._visit(writer))

    async def _https(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = self._visit(writer)

        def named(tls: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
            visit.name = name or ""
            tls.context = self._contexts(visit.name)

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sni_callback = named
        try:
            await writer.start_tls(context)
        except (OSError, ssl.SSLError) as error:
            visit.handshake = str(error)
            visit.ended.set()
            writer.close()
            return
        await self._visited(reader, writer, visit)

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = self._visit(writer)
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                _keep(visit, data)
                writer.write(data)
                await writer.drain()
        visit.ended.set()
        writer.close()

    def _visit(self, writer: asyncio.StreamWriter) -> Visit:
        if task := asyncio.current_task():
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        address, port, *_ = writer.get_extra_info("sockname")
        visit = Visit(address.removeprefix("::ffff:"), port)
        self.visits.append(visit)
        return visit

    async def _visited(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, visit: Visit
    ) -> None:
        try:
            while await self._one(reader, writer, visit):
                pass
        except (OSError, ssl.SSLError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        except (ValueError, IndexError):
            with contextlib.suppress(OSError):
                writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        finally:
            visit.ended.set()
            writer.close()

    async def _one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, visit: Visit
    ) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        _keep(visit, head)
        visit.heads.append(head)
        visit.bodies.append(b"")
        path = urllib.parse.urlsplit(visit.target).path
        if b"upgrade: websocket" in head.lower() and not path.startswith("/raw/"):
            await self._websocket(reader, writer, visit)
            return False
        if path != "/deaf":
            await _body(reader, visit)
        if path == "/redirect":
            to = urllib.parse.parse_qs(urllib.parse.urlsplit(visit.target).query)["to"][0]
            writer.write(f"HTTP/1.1 302 Found\r\nLocation: {to}\r\n".encode())
            writer.write(b"Content-Length: 0\r\n\r\n")
        elif path.startswith("/raw/"):
            answer = self.raw[path.removeprefix("/raw/")]
            if isinstance(answer, bytes):
                writer.write(answer)
            else:
                async for piece in answer(visit):
                    writer.write(piece)
                    await writer.drain()
            await writer.drain()
            return False
        elif path == "/deaf":  # neither reads nor answers
            await asyncio.sleep(3600)
        elif path == "/big":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")
            for _ in range(1 << 14):
                writer.write(b"x" * 65536)
                await writer.drain()
        else:
            content = visit.heads[-1] + visit.bodies[-1] if path == "/echo" else b"hello\n"
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n" % len(content))
            if not head.startswith(b"HEAD "):
                writer.write(content)
        await writer.drain()
        return b"\r\nconnection: close" not in head.lower()

    async def _websocket(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, visit: Visit
    ) -> None:
        """The handshake, then every byte back as it came: frames are the business of the ends."""
        found = re.search(rb"sec-websocket-key: *(\S+)", visit.heads[-1], re.IGNORECASE)
        key = (found[1] if found else b"") + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key).digest())
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n")
        writer.write(b"Connection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
        while data := await reader.read(65536):
            _keep(visit, data)
            writer.write(data)
            await writer.drain()


async def _body(reader: asyncio.StreamReader, visit: Visit) -> None:
    """As a careless server has it: chunks if chunks are spoken of, else the first length."""
    head = visit.heads[-1]
    if re.search(rb"\r\ntransfer-encoding:[^\r]*chunked", head, re.IGNORECASE):
        while True:
            line = await reader.readuntil(b"\n")
            size = int(line.split(b";")[0], 16)
            piece = await reader.readexactly(size) if size else b""
            visit.bodies[-1] += piece[: MOST_KEPT - len(visit.bodies[-1])]
            _keep(visit, line + piece)
            _keep(visit, await reader.readuntil(b"\n"))
            if not size:
                return
    length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    left = int(length[1]) if length else 0
    while left:
        data = await reader.read(min(left, 65536))
        if not data:
            raise asyncio.IncompleteReadError(b"", left)
        left -= len(data)
        visit.bodies[-1] += data[: MOST_KEPT - len(visit.bodies[-1])]
        _keep(visit, data)


def _keep(visit: Visit, data: bytes) -> None:
    visit.received_bytes += len(data)
    visit.raw += data[: MOST_KEPT - len(visit.raw)]
