"""Clients that do not read what they asked for: cut off, with all that is held for them."""

from __future__ import annotations

import asyncio
import socket
import struct
from asyncio import TimerHandle
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from belljar.server.server import Server


class Reading(asyncio.Protocol):
    """For a protocol of uvicorn, before its own class."""

    belljar: Server
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    patience = 1
    """In send_timeout_s."""
    _unread: tuple[TimerHandle, int] | None = None
    """When to look again, and how much there was to read."""

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_read()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_read()
        super().connection_lost(exc)

    def _wait_for_reader(self) -> None:
        """Nothing is added while what is unread waits: unless it becomes less nobody reads."""
        patience_s = self.patience * self.belljar.settings.send_timeout_s
        clock = self.loop.call_later(patience_s, self._look_at_reader)
        self._unread = (clock, self.transport.get_write_buffer_size())

    def _look_at_reader(self) -> None:
        assert self._unread is not None
        if self.transport.get_write_buffer_size() < self._unread[1]:
            self._wait_for_reader()
        else:
            self.cut()

    def cut(self) -> None:
        """Also what the kernel holds for it: else that would stay until somebody reads it."""
        connection = self.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _is_read(self) -> None:
        if self._unread is not None:
            self._unread[0].cancel()
            self._unread = None
