"""The host's end of the stream to an agent: until it is ready, and until it is lost.

Whatever the guest sends is bounded and strictly read; it can at worst lie about itself.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from belljar.engines.base import Doors, Wall, hosts_file
from belljar.errors import EngineError
from belljar.netline import Line
from belljar.runtimes.guest import protocol
from belljar.sending import Sending

READY_S = 60.0
_RECEIVE = 256 * 1024
BY_GATEWAY = "named hosts, by the gateway (in the agent's stream)"


class Hearing:
    """What one-shot and kept sandboxes have in common."""

    def __init__(self, wall: Wall, frames: protocol.Reader) -> None:
        self.wall = wall
        self.isolation = wall.isolation
        self.lost = ""
        """Why nothing can be had from here any more, if so."""
        self._loop = asyncio.get_running_loop()
        self._frames = frames
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._sending = Sending(self._loop, wall.stream)
        self._line: Line | None = None
        self._loop.add_reader(wall.stream, self._readable)

    async def ready(self) -> None:
        """Returns when the agent is behind the wall and waits; raises if a step failed."""
        try:
            async with asyncio.timeout(READY_S):
                await asyncio.shield(self._ready)
        except TimeoutError:
            raise EngineError(
                f"the agent was not ready within {READY_S:.0f} s", hint="is the machine overloaded?"
            ) from None

    def gone(self) -> bool:
        """Asked of the stream itself: the loop may not have come to reading its end yet."""
        if not self.lost:
            try:
                if not self.wall.stream.recv(1, socket.MSG_PEEK):
                    self._lose(self._verdict())
            except BlockingIOError:
                pass
            except OSError as error:
                self._lose(f"the stream broke: {error}")
        return bool(self.lost)

    async def destroy(self) -> None:
        self._stop_listening()
        if not self._ready.done():
            self._ready.cancel()
        await self.wall.destroy()

    def _settle(self) -> None:
        """The agent is ready: what it took until here is not the user's usage."""
        self.wall.settle()

    def _connect(self, doors: Doors) -> None:
        """From here on the agent's word goes to the gateway, and the other way round."""
        if self._line:
            self._line.close()
        self._line = Line(self._loop, doors.wire(), self._sending)
        self.isolation = {**self.isolation, "network": BY_GATEWAY}

    def _name_hosts(self, hosts: Mapping[str, str]) -> str:
        """What /etc/hosts is to say, unless it is a file of the host, which is then written."""
        text = hosts_file(hosts)
        path: Path | None = getattr(self.wall, "hosts", None)
        if path is None:
            return text
        try:
            path.write_text(text)  # in its place: this file is mounted, not whatever has its name
        except OSError as error:
            raise EngineError(
                f"/etc/hosts could not be written: {error.strerror}", hint="is the disk full?"
            ) from error
        return ""

    def _take(self, kind: int, payload: bytes) -> None:
        """A frame that is none of READY, FAULT and NET."""
        raise NotImplementedError

    def _forget(self) -> None:
        """It is lost: whoever waits for something is told."""
        raise NotImplementedError

    def _verdict(self) -> str:
        """Why the stream has ended."""
        raise NotImplementedError

    def _readable(self) -> None:
        try:
            data = self.wall.stream.recv(_RECEIVE)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(f"the stream broke: {error}")
            return
        if not data:
            self._lose(self._verdict())
            return
        try:
            for kind, payload in self._frames.feed(data):
                if kind == protocol.READY:
                    if not self._ready.done():
                        self._settle()
                        self._ready.set_result(None)
                elif kind == protocol.FAULT:
                    self._fault(protocol.unpack(payload))
                elif kind == protocol.NET:
                    self._net(payload)
                else:
                    self._take(kind, payload)
        except protocol.BadFrame as problem:
            self.wall.kill()
            self._lose(f"the sandbox sent {problem}")
        except Exception as slip:  # ours: whoever waits must not wait for ever
            self.wall.kill()
            self._lose(f"the host could not take what the sandbox sent: {slip!r}")

    def _net(self, data: bytes) -> None:
        if self._line is None:
            raise protocol.BadFrame("something for a network that it does not have")
        self._line.take(data)

    def _fault(self, fault: Mapping[str, Any]) -> None:
        text, hint = (printable(str(fault.get(key, ""))[:500]) for key in ("message", "hint"))
        if not self._ready.done():
            self._ready.set_exception(
                EngineError(f"the wall could not be built: {text}", hint=hint)
            )
        self._lose(f"{text} ({hint})" if hint else text)

    def _lose(self, why: str) -> None:
        self.lost = self.lost or why
        self._stop_listening()
        if not self._ready.done():
            self._ready.set_exception(EngineError(self.lost))
            self._ready.exception()  # not everybody waits for it
        self._forget()

    def _stop_listening(self) -> None:
        if self._line:
            self._line.close()
        self._sending.stop()
        if self.wall.stream.fileno() >= 0:
            self._loop.remove_reader(self.wall.stream)


def printable(text: str) -> str:
    """Names that are not UTF-8, and worse: lone surrogates would make the result unencodable."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
