"""What goes between a sandbox's agent and the gateway, in the agent's stream: the host only carries
it, bounded, and looks at none of it. For walls that have no doors of their own."""

from __future__ import annotations

import asyncio
import socket

from belljar.runtimes.guest import protocol
from belljar.sending import Sending

MOST_WAITING = 32 << 20
"""More than an agent sends that keeps to its windows: one that does not loses its network."""
_RECEIVE = 64 * 1024
_FRAME = 64
"""What a frame without content costs, in bytes of one with."""
_MULTIPLEXED = b"M"


class Line:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, wire: socket.socket, sending: Sending
    ) -> None:
        """Owns the wire from now on."""
        self._loop = loop
        self._wire = wire
        self._sending = sending
        self._waiting = bytearray(_MULTIPLEXED)
        self._writing = False
        self._ignored = 0
        self.closed = False
        wire.setblocking(False)
        loop.add_reader(wire, self._from_gateway)
        self._push()

    def take(self, data: bytes) -> None:
        """From the agent, which is listened to on, whatever becomes of this."""
        if self.closed:
            self._ignored += len(data) + _FRAME
            if self._ignored > MOST_WAITING:
                raise protocol.BadFrame("a flood for a network that has ended")
        elif not data:
            self.close()
        elif len(self._waiting) + len(data) > MOST_WAITING:
            self._lost()
        else:
            self._waiting += data
            self._push()

    def close(self) -> None:
        """The gateway sees the end of the wire."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._wire)
        if self._writing:
            self._loop.remove_writer(self._wire)
        self._wire.close()
        self._waiting.clear()

    def _push(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: self._wire.send(self._waiting[:_RECEIVE])]
        except BlockingIOError:
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._wire, self._push)
            return
        except OSError:
            self._lost()
            return
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._wire)

    def _from_gateway(self) -> None:
        try:
            data = self._wire.recv(_RECEIVE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        self._tell(data)

    def _tell(self, data: bytes) -> None:
        """One piece at a time: while the agent takes none, the gateway is not read from."""
        try:
            sent = self._sending.put(protocol.frame(protocol.NET, data))
        except OSError:  # the sandbox is gone, and whoever listens to it will see
            self.close()
            return
        if sent and not self.closed:
            self._loop.remove_reader(self._wire)
            sent.add_done_callback(self._taken)

    def _taken(self, sent: asyncio.Future[None]) -> None:
        if self.closed:
            return
        if sent.cancelled() or sent.exception():
            self.close()
        else:
            self._loop.add_reader(self._wire, self._from_gateway)

    def _lost(self) -> None:
        """There is no way any more: who dials inside is refused at once, and does not wait."""
        self.close()
        self._tell(b"")
