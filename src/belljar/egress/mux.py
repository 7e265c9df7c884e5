"""Connections of a sandbox that share one stream (`M` wires): the gateway's end.

    frame        >BII kind, connection, length; then the payload
    OPEN    1    guest → gateway only; payload: one byte, the door (0 proxy, 1 http, 2 https).
                 Numbers are the guest's choice, and free again once both sides are done with one
    DATA    2    1 to 16,384 bytes
    CREDIT  3    payload >I: so many more bytes may be sent to me; both begin with 65,536
    CLOSE   4    no payload: I send nothing more on it; the other direction goes on. When both have
                 said so the connection is over
    RESET   5    no payload: it is over, at once, in both directions

Frames for a connection that the receiver has reset or does not know are dropped (they may have
crossed a RESET on the way), except OPEN. Anything else that breaks the rules ends the wire: a kind,
length or door that does not exist, OPEN of a number in use, a 257th connection, DATA beyond the
window or after CLOSE, credit beyond 65,536, more than 10,000 frames within a second that are
dropped or give no credit. The guest is hostile.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Awaitable, Callable

from .limits import Turns
from .refusal import Refusal

OPEN, DATA, CREDIT, CLOSE, RESET = 1, 2, 3, 4, 5
WINDOW_BYTES = 65_536
DATA_BYTES = 16_384
MOST_CONNECTIONS = 256
_HEADER = struct.Struct(">BII")
_CREDIT = struct.Struct(">I")
_MOST_WAITING_BYTES = 262_144
"""On their way to the guest; connections that have more to say wait."""
_MOST_UNREAD_BYTES = 8 << 20
"""More than all connections together may have to say: who lets so much lie never reads."""
_READ_BYTES = 65_536
_FRAMES_IN_A_STEP = 1_024
_MOST_FOR_NOTHING = 10_000
_NO_CREDIT = _CREDIT.pack(0)


class Broken(Exception):
    """The guest does not keep to the rules."""


class Lane:
    """One connection of the wire: a `Stream`."""

    def __init__(self, wire: Wire, number: int) -> None:
        self._wire = wire
        self._number = number
        self._came = bytearray()
        self._room = WINDOW_BYTES
        """So much may still be sent to the guest."""
        self._window = WINDOW_BYTES
        """So much may the guest still send."""
        self._changed = asyncio.Event()
        self.last_came = False
        self.last_went = False
        self.is_over = False
        self._abandoned = False

    async def read(self) -> bytes:
        while not self._came:
            if self.is_over:
                raise ConnectionResetError("the sandbox reset the connection")
            if self.last_came:
                return b""
            await self._change()
        data = bytes(self._came)
        self._came.clear()
        if not (self.last_came or self.is_over):
            self._window += len(data)
            self._wire.post(CREDIT, self._number, _CREDIT.pack(len(data)))
        return data

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if self.is_over or self.last_went:
                raise BrokenPipeError("the connection of the sandbox is over")
            count = min(len(view), self._room, DATA_BYTES)
            if not count:
                await self._change()
                continue
            self._room -= count
            self._wire.post(DATA, self._number, bytes(view[:count]))
            view = view[count:]
            await self._wire.drained()

    async def end(self) -> None:
        if not (self.last_went or self.is_over):
            self.last_went = True
            self._wire.post(CLOSE, self._number)
            self._settle()

    def has_hung_up(self) -> bool:
        return self.last_came or self.is_over

    def close(self) -> None:
        """What was written still arrives. A guest that goes on sending is reset."""
        self._abandoned = True
        if not (self.last_went or self.is_over):
            self.last_went = True
            self._wire.post(CLOSE, self._number)
        self._settle()

    # -- from the guest --------------------------------------------------------------------------

    def take(self, kind: int, payload: bytes) -> None:
        if kind == DATA:
            self._window -= len(payload)
            if self._window < 0 or self.last_came:
                raise Broken("more bytes than there is room for")
            if self._abandoned:
                self._wire.post(RESET, self._number)
                self.over()
            self._came += payload
        elif kind == CREDIT:
            self._room += _CREDIT.unpack(payload)[0]
            if self._room > WINDOW_BYTES:
                raise Broken("more room than there can be")
        elif kind == CLOSE:
            if self.last_came:
                raise Broken("closed twice")
            self.last_came = True
            self._settle()
        else:
            self.over()
        self._changed.set()

    def over(self) -> None:
        self.is_over = True
        self._wire.forget(self._number, self)
        self._changed.set()

    def _settle(self) -> None:
        if self.last_came and self.last_went and not self.is_over:
            self._wire.forget(self._number, self)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class Wire:
    """The stream that they share. `opened` is told of a new connection and its door; it may take
    its time, and meanwhile nothing more is read."""

    def __init__(
        self,
        shared: socket.socket,
        *,
        doors: int,
        opened: Callable[[Lane, int], Awaitable[None]],
        turns: Turns,
    ) -> None:
        self._socket = shared
        self._doors = doors
        self._opened = opened
        self._turns = turns
        self._for_nothing = 0
        self._counted_since = time.monotonic()
        self._lanes: dict[int, Lane] = {}
        self._out = bytearray()
        self._more = asyncio.Event()
        self._less = asyncio.Event()

    async def live(self, first: bytes) -> None:
        """Until the guest has gone or breaks the rules; closes the socket."""
        writing = asyncio.create_task(self._write())
        try:
            await self._read(first)
        except (Broken, OSError, Refusal):
            pass
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            for lane in list(self._lanes.values()):
                lane.over()
            self._less.set()
            self._socket.close()

    def post(self, kind: int, number: int, payload: bytes = b"") -> None:
        self._out += _HEADER.pack(kind, number, len(payload)) + payload
        self._more.set()
        if len(self._out) > _MOST_UNREAD_BYTES:
            self._out.clear()
            self._cut()

    async def drained(self) -> None:
        while len(self._out) > _MOST_WAITING_BYTES and self._socket.fileno() >= 0:
            self._less.clear()
            await self._less.wait()

    def forget(self, number: int, lane: Lane) -> None:
        """Unless the number is another connection's by now: the guest may use it again as soon as
        both sides have said their last, and whoever served the first may close it later still."""
        if self._lanes.get(number) is lane:
            del self._lanes[number]

    def _cut(self) -> None:
        """Wakes whoever reads, who then ends everything."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._out:
                self._more.clear()
                await self._more.wait()
            data = bytes(self._out)
            self._out.clear()
            self._less.set()
            try:
                await loop.sock_sendall(self._socket, data)
            except OSError:
                self._cut()
                return

    async def _read(self, first: bytes) -> None:
        loop = asyncio.get_running_loop()
        data, since = bytearray(first), time.monotonic()
        while True:
            more = True
            while more:
                async with self._turns:
                    more, opened = self._take_some(data)
                if opened:
                    await self._opened(*opened)
            since = await self._turns.pass_on(since)  # more may be here already, without a wait
            piece = await loop.sock_recv(self._socket, _READ_BYTES)
            if not piece:
                return
            data += piece

    def _take_some(self, data: bytearray) -> tuple[bool, tuple[Lane, int] | None]:
        """Takes frames off it, so many that others need not wait for long. Whether there may be
        another one, and what the last one opened."""
        position = 0
        try:
            for _ in range(_FRAMES_IN_A_STEP):
                if len(data) - position < _HEADER.size:
                    return False, None
                kind, number, length = _HEADER.unpack_from(data, position)
                _check(kind, length)
                end = position + _HEADER.size + length
                if end > len(data):
                    return False, None
                payload = bytes(data[position + _HEADER.size : end])
                position = end
                if kind == OPEN:
                    return True, self._open(number, payload[0])
                lane = self._lanes.get(number)
                if lane is None or (kind == CREDIT and payload == _NO_CREDIT):
                    self._count_for_nothing()
                if lane:
                    lane.take(kind, payload)
            return True, None
        finally:
            del data[:position]

    def _open(self, number: int, door: int) -> tuple[Lane, int]:
        if number in self._lanes or len(self._lanes) >= MOST_CONNECTIONS or door >= self._doors:
            raise Broken("a connection that cannot be opened")
        lane = self._lanes[number] = Lane(self, number)
        return lane, door

    def _count_for_nothing(self) -> None:
        now = time.monotonic()
        if now - self._counted_since >= 1.0:
            self._counted_since, self._for_nothing = now, 0
        self._for_nothing += 1
        if self._for_nothing > _MOST_FOR_NOTHING:
            raise Broken("too many frames that do nothing")


def _check(kind: int, length: int) -> None:
    """Before the payload is waited for."""
    least, most = {
        OPEN: (1, 1),
        DATA: (1, DATA_BYTES),
        CREDIT: (4, 4),
        CLOSE: (0, 0),
        RESET: (0, 0),
    }.get(kind, (1, 0))
    if not least <= length <= most:
        raise Broken("no such frame")
