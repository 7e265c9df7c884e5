"""The host's side of a kept sandbox's stream: questions and answers, many at once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from belljar.engines.base import Doors, Wall
from belljar.errors import EngineError, SandboxLost
from belljar.hearing import Hearing, printable
from belljar.runtimes.guest import protocol

ANSWER_S = 60.0
"""An agent that takes longer to answer has been brought to a stop by the code: the wall falls."""

AHEAD_BYTES = 8 << 20
"""Of standard input that a program has not read: more is not sent to its agent."""

Receive = Callable[[int, bytes], None]
"""Gets (stream, bytes) of a channel."""
Hear = Callable[[Mapping[str, Any]], None]
"""Gets what happens on a channel."""


class Refusal(Exception):
    """The agent said no."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(eq=False)
class _Channel:
    receive: Receive | None
    hear: Hear | None
    ahead_bytes: int = 0
    """Of input that was sent, and not taken as far as the agent has told."""
    taken: asyncio.Event = field(default_factory=asyncio.Event)


class Conversation(Hearing):
    def __init__(self, wall: Wall) -> None:
        super().__init__(wall, protocol.Reader(protocol.KEPT_FROM_AGENT))
        self.hear: Hear | None = None
        """Gets what concerns no channel."""
        self._ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._channels: dict[int, _Channel] = {}
        self._unanswered = 0
        self._events = _Allowance(self._loop.time())
        self.last_use = self._loop.time()

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
            self._expect_answer()
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

    def begin(
        self, op: str, *, ask_id: int, receive: Receive, hear: Hear, **fields: Any
    ) -> asyncio.Future[dict[str, Any]]:
        """As `ask`, without a bound of time; the question is on its way when this returns."""
        if self.lost:
            raise SandboxLost(f"the sandbox is gone: {self.lost}")
        frame = protocol.message(protocol.ASK, {"id": ask_id, "op": op, **fields})
        answer: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._asked[ask_id] = answer
        self.listen(ask_id, receive, hear)

        def answered(_: object) -> None:
            self._asked.pop(ask_id, None)
            self.ignore(ask_id)
            if not answer.cancelled():
                answer.exception()  # seen, also when nobody waits for it any more

        answer.add_done_callback(answered)
        self.last_use = self._loop.time()
        self._expect_answer()
        try:
            self._sending.put(frame)
        except OSError as error:
            raise self._broken(error) from None
        return answer

    def listen(self, channel: int, receive: Receive | None, hear: Hear | None) -> None:
        """For channels that outlive the question that opened them."""
        self._channels[channel] = _Channel(receive, hear)

    def ignore(self, channel: int) -> None:
        if ended := self._channels.pop(channel, None):
            ended.taken.set()

    def room(self, channel: int) -> int:
        """How much input can be sent now without waiting for whoever reads it."""
        found = self._channels.get(channel)
        return AHEAD_BYTES - found.ahead_bytes if found else AHEAD_BYTES

    async def feed(self, channel: int, data: bytes) -> None:
        """Standard input, as fast as it is read; the rest is dropped when its reader has ended."""
        head = protocol.CHANNEL.pack(channel)
        for start in range(0, len(data), protocol.CHUNK):
            piece = data[start : start + protocol.CHUNK]
            while found := self._channels.get(channel):
                if found.ahead_bytes + len(piece) <= AHEAD_BYTES or self.lost:
                    break
                found.taken.clear()
                await found.taken.wait()
            else:
                return
            found.ahead_bytes += len(piece)
            await self._send(protocol.frame(protocol.TO, head + piece))

    async def send(self, channel: int, data: bytes) -> None:
        """Content of a file; no bytes mean its end, or that of standard input (see `feed`)."""
        head = protocol.CHANNEL.pack(channel)
        for start in range(0, len(data) or 1, protocol.CHUNK):
            piece = data[start : start + protocol.CHUNK]
            await self._send(protocol.frame(protocol.TO, head + piece))

    async def open_doors(self, doors: Doors) -> None:
        """A network from now on, through the agent; also a new one in place of one that has gone.
        For walls that have no doors of their own."""
        hosts = self._name_hosts(doors.hosts)
        self._connect(doors)
        await self._doors("open_doors", hosts)

    async def name_hosts(self, hosts: Mapping[str, str]) -> None:
        """Changes /etc/hosts of a sandbox that has a network, and nothing else."""
        if text := self._name_hosts(hosts):
            await self._doors("name_hosts", text)

    async def _doors(self, op: str, hosts: str) -> None:
        try:
            await self.ask(op, hosts=hosts)
        except Refusal as refusal:
            if op == "open_doors" and self._line:
                self._line.close()
            raise EngineError(
                f"the sandbox's network could not be set up: {printable(str(refusal))}",
                hint="does something inside listen on port 3128?",
            ) from None

    async def destroy(self) -> None:
        self._lose("it was closed")
        await super().destroy()

    # -- the stream ------------------------------------------------------------------------------

    def _expect_answer(self) -> None:
        self._unanswered += 1
        self._events.grow(_Allowance.EACH_QUESTION)

    async def _send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        self.last_use = self._loop.time()
        try:
            await self._sending.send(data, descriptors)
        except OSError as error:
            raise self._broken(error) from None

    def _broken(self, error: OSError) -> SandboxLost:
        if not self.lost:
            self._lose(f"the stream broke: {error}")
        return SandboxLost(f"the sandbox is gone: {self.lost}")

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
            if not self._unanswered:
                raise protocol.BadFrame("an answer to no question")
            self._unanswered -= 1
            self._answered(protocol.unpack(payload))
        elif kind == protocol.EVENT:
            self._events.take(len(payload), self._loop.time())
            event = protocol.unpack(payload)
            channel = self._channels.get(_whole(event.get("channel")))
            if channel and type(fed := event.get("fed")) is int:
                channel.ahead_bytes = max(0, channel.ahead_bytes - max(0, fed))
                channel.taken.set()
                return
            hear = channel.hear if channel else self.hear if not event.get("channel") else None
            if hear:
                hear(event)

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

    def _forget(self) -> None:
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(SandboxLost(f"the sandbox is gone: {self.lost}"))
        for channel in list(self._channels.values()):
            channel.taken.set()
            if channel.hear:
                channel.hear({"gone": self.lost})


class _Allowance:
    """How much the host parses of what a sandbox tells unasked. An honest agent stays far below."""

    MOST = 8 << 20
    EACH_QUESTION = 2 << 20
    EACH_S = 512 * 1024

    def __init__(self, now: float) -> None:
        self._left: float = self.MOST
        self._since = now

    def grow(self, by: float) -> None:
        self._left = min(self.MOST, self._left + by)

    def take(self, size: int, now: float) -> None:
        self.grow((now - self._since) * self.EACH_S)
        self._since = now
        self._left -= size
        if self._left < 0:
            raise protocol.BadFrame("more events than anybody asked for")


def _whole(value: object) -> int:
    return value if type(value) is int else -1
