"""A kept sandbox's end of the host's stream: questions in, answers, events and output out."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

from . import protocol
from .files import Refused
from .forking import write_all

_READ = 256 * 1024
_MOST_DESCRIPTORS = 16


class HostGone(Exception):
    pass


class HostLink:
    def __init__(self, incoming: int, outgoing: int) -> None:
        self.descriptor = incoming
        self._out = outgoing
        self._reader = protocol.Reader(protocol.KEPT_FROM_HOST)
        self._descriptors: list[int] = []
        self._socket: socket.socket | None = None
        try:
            self._socket = socket.socket(fileno=os.dup(incoming))
        except OSError:  # a pipe or a serial line
            pass
        self.pending = b""
        """What has not been sent yet."""

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """What one read brings."""
        data = self._read()
        if not data:
            raise HostGone
        yield from self._reader.feed(data)

    def _read(self) -> bytes:
        if self._socket is None:
            return os.read(self.descriptor, _READ)
        data, descriptors, _, _ = socket.recv_fds(self._socket, _READ, _MOST_DESCRIPTORS)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        self._descriptors += descriptors
        return data

    def take(self, count: int) -> list[int]:
        """The descriptors that came with a question."""
        taken, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        if len(taken) < count:
            for descriptor in taken:
                os.close(descriptor)
            raise Refused("unsupported", "this wall cannot pass descriptors")
        return taken

    def send(self, data: bytes = b"") -> None:
        data, self.pending = self.pending + data, b""
        try:
            write_all(self._out, data)
        except (BrokenPipeError, ConnectionResetError):
            raise HostGone from None

    def ready(self) -> None:
        self.send(protocol.message(protocol.READY, {}))

    def fault(self, step: str, message: str) -> None:
        self.send(protocol.message(protocol.FAULT, {"step": step, "message": message, "hint": ""}))

    def answer(self, ask_id: int, **content: Any) -> None:
        self.send(protocol.message(protocol.ANSWER, {"id": ask_id, **content}))

    def event(self, channel: int, **content: Any) -> None:
        self._soon(protocol.message(protocol.EVENT, {"channel": channel, **content}))

    def put_out(self, channel: int, stream: int, data: bytes) -> None:
        for start in range(0, len(data), protocol.CHUNK):
            head = protocol.OUTPUT.pack(channel, stream)
            piece = data[start : start + protocol.CHUNK]
            self._soon(protocol.frame(protocol.FROM, head + piece))

    def _soon(self, message: bytes) -> None:
        """What a short run shows, and its end, reach the host as one."""
        self.pending += message
        if len(self.pending) > protocol.CHUNK:
            self.send()
