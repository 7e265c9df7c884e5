"""The host's side of a kept sandbox's stream: questions and answers, many at once.

Whatever the guest sends is bounded and strictly read; it can at worst lie about itself.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from belljar.engines.base import Wall
from belljar.errors import EngineError, SandboxLost
from belljar.runtimes.guest import protocol

READY_S = 60.0
ANSWER_S = 60.0
"""An agent that takes longer to answer has been brought to a stop by the code: the wall falls."""
_RECEIVE = 256 * 1024

Receive = Callable[[int, bytes], None]
"""Gets (stream, bytes) of a channel."""
Hear = Callable[[Mapping[str, Any]], None]
"""Gets what happens on a channel."""


class Refusal(Exception):
    """The agent said no."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class _Channel:
    receive: Receive | None
    hear: Hear | None


class Conversation:
    def __init__(self, wall: Wall) -> None:
        self.wall = wall
        self.isolation = wall.isolation
        self.lost = ""
        """Why nothing can be asked here any more, if so."""
        self.hear: Hear | None = None
        """Gets what concerns no channel."""
        self._loop = asyncio.get_running_loop()
        self._frames = protocol.Reader(protocol.KEPT_FROM_AGENT, most=protocol.KEPT_PAYLOAD)
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._channels: dict[int, _Channel] = {}
        self._sending = asyncio.Lock()
        self.last_use = self._loop.time()
        self._loop.add_reader(wall.stream, self._readable)

    async def ready(self) -> None:
        """Returns when the agent is behind the wall and listens; raises if a step failed."""
        try:
            async with asyncio.timeout(READY_S):
                await asyncio.shield(self._ready)
        except TimeoutError:
            raise EngineError(
                f"the agent was not ready within {READY_S:.0f} s", hint="is the machine overloaded?"
            ) from None

    def next_id(self) -> int:
        return next(self._ids)

    async def ask(
        self,
        op: str,
        *,
        ask_id: int | None = None,
        receive: Receive | None = None,
        hear: Hear | None = None,
        descriptors: Sequence[int] = (),
        within_s: float | None = ANSWER_S,
        **fields: Any,
    ) -> dict[str, Any]:
        """The agent's answer; Refusal when it says no, SandboxLost when it is gone, or does not
        answer within `within_s` and is therefore ended.

        `receive` and `hear` get what arrives on the question's channel until it is answered."""
        if self.lost:
            raise SandboxLost(f"the sandbox is gone: {self.lost}")
        number = self.next_id() if ask_id is None else ask_id
        answer: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._asked[number] = answer
        if receive or hear:
            self.listen(number, receive, hear)
        try:
            frame = protocol.message(protocol.ASK, {"id": number, "op": op, **fields})
            async with asyncio.timeout(within_s):
                await self._send(frame, descriptors)
                return await answer
        except TimeoutError:
            self.wall.kill()
            self._lose(f"it did not answer within {within_s:g} s")
            raise SandboxLost(f"the sandbox is gone: {self.lost}") from None
        finally:
            self._asked.pop(number, None)
            answer.cancel()
            if answer.done() and not answer.cancelled():
                answer.exception()  # seen, also when the question could not be sent
            if receive or hear:
                self.ignore(number)

    def listen(self, channel: int, receive: Receive | None, hear: Hear | None) -> None:
        """For channels that outlive the question that opened them."""
        self._channels[channel] = _Channel(receive, hear)

    def ignore(self, channel: int) -> None:
        self._channels.pop(channel, None)

    async def send(self, channel: int, data: bytes) -> None:
        """Input of a process or content of a file; no bytes mean its end."""
        head = protocol.CHANNEL.pack(channel)
        for start in range(0, len(data) or 1, protocol.CHUNK):
            piece = data[start : start + protocol.CHUNK]
            await self._send(protocol.frame(protocol.TO, head + piece))

    async def destroy(self) -> None:
        self._lose("it was closed")
        if not self._ready.done():
            self._ready.cancel()
        await self.wall.destroy()

    # -- the stream ------------------------------------------------------------------------------

    async def _send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """A frame goes out whole, even if whoever sends it is cancelled: half of one would be the
        end of the conversation."""
        self.last_use = self._loop.time()
        await self._sending.acquire()
        work = asyncio.ensure_future(self._send_all(data, descriptors))
        work.add_done_callback(lambda _: self._sending.release())
        await asyncio.shield(work)

    async def _send_all(self, data: bytes, descriptors: Sequence[int]) -> None:
        try:
            if descriptors:
                data = data[await self._send_descriptors(data, descriptors) :]
            await self._loop.sock_sendall(self.wall.stream, data)
        except (BrokenPipeError, ConnectionResetError, OSError) as error:
            self._lose(f"the stream broke: {error}")
            raise SandboxLost(f"the sandbox is gone: {self.lost}") from None

    async def _send_descriptors(self, data: bytes, descriptors: Sequence[int]) -> int:
        while True:
            try:
                return socket.send_fds(self.wall.stream, [data], list(descriptors))
            except BlockingIOError:
                await asyncio.sleep(0.001)

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
                self._take(kind, payload)
        except protocol.BadFrame as problem:
            self.wall.kill()
            self._lose(f"it sent {problem}")
        except Exception as slip:  # ours: whoever waits must not wait for ever
            self.wall.kill()
            self._lose(f"what it sent could not be read: {slip!r}")

    def _verdict(self) -> str:
        try:
            seen = self.wall.look()
        except EngineError as error:
            return error.message
        if seen and seen.out_of_memory:
            return "its memory ran out and the kernel ended it"
        return "it ended"

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == protocol.FROM:
            number, stream = protocol.OUTPUT.unpack_from(payload)
            channel = self._channels.get(number)
            if channel and channel.receive:
                channel.receive(stream, payload[protocol.OUTPUT.size :])
        elif kind == protocol.ANSWER:
            self._answered(protocol.unpack(payload))
        elif kind == protocol.EVENT:
            event = protocol.unpack(payload)
            channel = self._channels.get(_whole(event.get("channel")))
            hear = channel.hear if channel else self.hear if not event.get("channel") else None
            if hear:
                hear(event)
        elif kind == protocol.READY:
            if not self._ready.done():
                self.wall.settle()
                self._ready.set_result(None)
        elif kind == protocol.FAULT:
            self._fault(protocol.unpack(payload))

    def _answered(self, content: Mapping[str, Any]) -> None:
        waiting = self._asked.get(_whole(content.get("id")))
        if waiting is None or waiting.done():
            return
        ok, error = content.get("ok"), content.get("error")
        if isinstance(ok, dict):
            waiting.set_result(ok)
        elif isinstance(error, dict):
            refusal = Refusal(str(error.get("kind"))[:40], str(error.get("message"))[:1000])
            waiting.set_exception(refusal)
        else:
            raise protocol.BadFrame("an answer without content")

    def _fault(self, fault: Mapping[str, Any]) -> None:
        message, hint = str(fault.get("message"))[:1000], str(fault.get("hint"))[:1000]
        self._lose(message)
        if not self._ready.done():
            self._ready.set_exception(
                EngineError(f"the wall could not be built: {message}", hint=hint)
            )

    def _lose(self, why: str) -> None:
        if not self.lost:
            self.lost = why
            self._loop.remove_reader(self.wall.stream)
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(SandboxLost(f"the sandbox is gone: {self.lost}"))
        for channel in list(self._channels.values()):
            if channel.hear:
                channel.hear({"gone": self.lost})
        if not self._ready.done():
            self._ready.set_exception(EngineError(f"the sandbox did not start: {self.lost}"))
            self._ready.exception()  # not everybody waits for it


def _whole(value: object) -> int:
    return value if type(value) is int else -1
