"""Clients that do not read what they asked for: cut off, with all that is held for them."""

from __future__ import annotations

import asyncio
import socket
import struct
from asyncio import TimerHandle
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from belljar.server.server import Server

SLOWEST_BYTES_S = 64 * 1024
"""A client that reads slower than this in the long run is cut off as if it did not read at all:
what is kept for its answer is missing elsewhere."""


class Reading(asyncio.Protocol):
    """For a protocol of uvicorn, before its own class."""

    belljar: Server
    closing: dict[Reading, None]
    """That were closed and not yet read to their end, as last looked at; the same one for all
    connections of a server."""
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    patience = 1
    """In send_timeout_s."""
    _unread: tuple[TimerHandle, float, int] | None = None
    """When to look again; since when there has been how much to read."""
    _behind_s = 0.0
    """How much longer it took to read than it may."""
    _closing_since: float | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_read()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing.pop(self, None)
        self._is_read()
        super().connection_lost(exc)

    def look_at_close(self) -> None:
        """A transport that was closed stays until what is left in it is read, however little that
        is, and nobody else waits for that."""
        if self.transport.is_closing():
            now = self.loop.time()
            if self._closing_since is None:
                self._closing_since = now
                self.closing[self] = None
            elif now - self._closing_since >= self.belljar.settings.send_timeout_s:
                self.cut()

    def _wait_for_reader(self) -> None:
        """Nothing is added while what is unread waits: it should become less."""
        patience_s = self.patience * self.belljar.settings.send_timeout_s
        clock = self.loop.call_later(max(0.0, patience_s - self._behind_s), self._look_at_reader)
        self._unread = (clock, self.loop.time(), self.transport.get_write_buffer_size())

    def _look_at_reader(self) -> None:
        self._is_read()
        if self._behind_s >= self.patience * self.belljar.settings.send_timeout_s:
            self.cut()
        else:
            self._wait_for_reader()

    def cut(self) -> None:
        """Also what the kernel holds for it: else that would stay until somebody reads it."""
        connection = self.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _is_read(self) -> None:
        """All of it, or some."""
        if self._unread is not None:
            clock, since, size = self._unread
            clock.cancel()
            self._unread = None
            read = size - self.transport.get_write_buffer_size()
            took_s = self.loop.time() - since
            self._behind_s = max(0.0, self._behind_s + took_s - read / SLOWEST_BYTES_S)
