"""The agent's words to the host."""

from __future__ import annotations

from . import protocol
from .forking import write_all


class HostGone(Exception):
    pass


class Outgoing:
    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.pending = b""
        """What has not been sent yet."""

    def send(self, data: bytes = b"") -> None:
        data, self.pending = self.pending + data, b""
        try:
            write_all(self.descriptor, data)
        except (BrokenPipeError, ConnectionResetError):
            raise HostGone from None

    def post(self, data: bytes) -> None:
        """Sends soon: a short program's output and its end then reach the host as one."""
        self.pending += data
        if len(self.pending) > protocol.CHUNK:
            self.send()

    def flush(self) -> None:
        if self.pending:
            self.send()

    def fault(self, step: str, text: str, hint: str) -> None:
        self.send(protocol.message(protocol.FAULT, {"step": step, "message": text, "hint": hint}))
