"""Byte streams as the gateway uses them: a TCP socket, one connection of a wire, TLS on top.

None of them holds more than a piece: who writes waits until it is taken.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from typing import Protocol

PIECE_BYTES = 65_536
_SEND_BUFFER_BYTES = 262_144
_PIECES_IN_A_ROW = 4
_KEEPALIVE_S = 120
_RESERVED = 256
_HUNG_UP = frozenset((7, 8, 9, 11))
"""Of the kernel's states of TCP: CLOSE, CLOSE_WAIT, LAST_ACK, CLOSING."""


def is_reserved(made: socket.socket) -> bool:
    """Whether it has one of the last descriptors of this process, which are for what the host sends
    and for sandboxes to come. The kernel always gives the lowest that is free."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return made.fileno() >= most - min(_RESERVED, most // 8)


class Stream(Protocol):
    async def read(self) -> bytes:
        """The next piece; empty at the end. OSError when it breaks."""

    async def write(self, data: bytes) -> None:
        """Returns when it is taken."""

    async def end(self) -> None:
        """Nothing more will be written; reading goes on."""

    def close(self) -> None:
        """At once, in both directions."""


class ClientStream(Stream, Protocol):
    """As the code has it, with nothing on top."""

    def has_hung_up(self) -> bool:
        """Whether the code has closed its side; there may be more to read."""


class Tcp:
    """A connected socket, closed by `close`."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        # The kernel would let a slow reader's grow to megabytes.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A stream may be silent for hours, and the machine behind it be gone meanwhile.
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
        self.socket = connected
        self._loop = asyncio.get_running_loop()
        self._pieces = 0

    async def read(self) -> bytes:
        self._pieces += 1
        if self._pieces % _PIECES_IN_A_ROW == 0:
            await asyncio.sleep(0)  # what is there already is read without a pause for others
        return await self._loop.sock_recv(self.socket, PIECE_BYTES)

    async def write(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.socket, data)

    async def end(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.socket.close()

    def has_hung_up(self) -> bool:
        # Not by looking for the end: what was sent before it may still be unread, and with TLS
        # something always is.
        try:
            state = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        except OSError:
            return False
        return state in _HUNG_UP

    def is_quiet(self) -> bool:
        """Whether the other side has neither spoken nor gone."""
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False


class Begun:
    """A stream of which something was read already."""

    def __init__(self, first: bytes, rest: Stream) -> None:
        self._first = first
        self._rest = rest
        self.write = rest.write
        self.end = rest.end
        self.close = rest.close

    async def read(self) -> bytes:
        if self._first:
            first, self._first = self._first, b""
            return first
        return await self._rest.read()
