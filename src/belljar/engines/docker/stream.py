"""The connection to a container's standard streams, usable as a plain byte stream.

Docker cuts what comes out into pieces, each with a header: which stream it was, and how long it is.
This socket takes the headers off as it receives, so nothing is copied to and fro by a task of our
own, and a reader that stops reading holds up the container instead of filling our memory.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

_HEADER = struct.Struct(">BxxxI")
_STDOUT, _STDERR = 1, 2
_MOST_WORDS = 4096


class Attached(socket.socket):
    """Standard output is what is received; what the container says on standard error is kept."""

    def __init__(self, connection: socket.socket, first: bytes = b"") -> None:
        super().__init__(connection.family, connection.type, fileno=connection.detach())
        self.setblocking(False)
        self.words = b""
        """The end of what came on standard error: the last words of a Python that cannot start."""
        self.ended = False
        self.at_end: Callable[[], None] | None = None
        """Called when the container's output has ended, before the reader is told."""
        self._first = first
        self._header = b""
        self._kind = 0
        self._left = 0

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        while True:
            data, self._first = self._first or super().recv(size, flags), b""
            if not data:
                self._end()
                return b""
            if content := self._strip(data):
                return content

    def _end(self) -> None:
        if not self.ended:
            self.ended = True
            if self.at_end:
                self.at_end()

    def _strip(self, data: bytes) -> bytes:
        if self._kind == _STDOUT and len(data) <= self._left:
            self._left -= len(data)
            return data
        found: list[bytes] = []
        while data:
            if not self._left:
                missing = _HEADER.size - len(self._header)
                self._header, data = self._header + data[:missing], data[missing:]
                if len(self._header) < _HEADER.size:
                    break
                self._kind, self._left = _HEADER.unpack(self._header)
                self._header = b""
                continue
            piece, data = data[: self._left], data[self._left :]
            self._left -= len(piece)
            if self._kind == _STDOUT:
                found.append(piece)
            elif self._kind == _STDERR:
                self.words = (self.words + piece)[-_MOST_WORDS:]
        return b"".join(found)
