"""What clients send is read in small slices, and whoever sent it rests after what that took.

A frame of a WebSocket can have six bytes, and so can a chunk of a body. All that arrives at once
would be read at once: tens of thousands of them, each of which takes as long as a small request,
and no quota counts them.
"""

from __future__ import annotations

import time
from asyncio import TimerHandle
from typing import Any

from belljar.server.reading import Reading

SMALL_BYTES, LARGE_BYTES = 1024, 8192
"""Of a slice: the larger one behind one that took little."""
LITTLE_S = 0.0001
WORK_S, REST = 0.001, 4
"""After so much work comes a rest, so many times as long."""
MOST_REST_S = 2.0
_HEAD_ENDS = b"\r\n\r\n"
_STRANGERS = ""


class Sliced(Reading):
    """For a protocol of uvicorn, before its own class."""

    resting_until: dict[str, float]
    """By tenant, and of all strangers together; the same one for all connections of a server."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._arrived = bytearray()
        self._slice_bytes = SMALL_BYTES
        self._later: TimerHandle | None = None
        self._resting_as = ""
        self._is_pausing = False
        self._head_left = LARGE_BYTES
        """Of a head that begins, or is about to: read at once, for nobody knows yet whose it is."""

    def whose(self) -> str:
        """The tenant's name; empty before it is known."""
        raise NotImplementedError

    def is_held_up(self) -> bool:
        """Whether what was read waits for the application."""
        raise NotImplementedError

    def read(self, data: bytes) -> None:
        """One slice."""
        super().data_received(data)

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        self.go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._later:
            self._later.cancel()
        self._arrived.clear()
        super().connection_lost(exc)

    def go_on(self) -> None:
        """With what has come: as far as it is wanted, and may be read now."""
        if self._later:
            if self._resting_as == self.whose():
                self.wait()
                return
            self._later.cancel()  # meanwhile it is known whose this is
            self._later = None
        in_head, worked_s = self._head_left > 0, 0.0
        while self._arrived and not self.is_held_up() and not self.transport.is_closing():
            if worked_s >= WORK_S or (not self._head_left and self.rest_s()):
                break
            size = self._next_bytes()
            piece = bytes(self._arrived[:size])
            del self._arrived[:size]
            began = time.perf_counter()
            self.read(piece)
            took_s = time.perf_counter() - began
            self._slice_bytes = LARGE_BYTES if took_s < LITTLE_S else SMALL_BYTES
            worked_s += took_s
            if self.whose() == _STRANGERS:
                break  # first the gate looks who that is
        self.has_worked(worked_s)
        if self.transport.is_closing():
            return
        if self._arrived:
            self.wait()
            if not self.is_held_up():
                # Behind a head only until the gate has looked whose it is.
                rest_s = 0.0 if in_head else self.rest_s()
                self._resting_as = self.whose()
                self._later = self.loop.call_later(rest_s, self._look_again)
        elif self._is_pausing:
            self._is_pausing = False
            if not self.is_held_up():
                self.transport.resume_reading()

    def wait(self) -> bool:
        """Lets no more arrive before what is there was read. To be called again when it was let,
        which is how whoever was held up goes on."""
        if self._arrived:
            self._is_pausing = True
            if not self.transport.is_closing():
                self.transport.pause_reading()
        return bool(self._arrived)

    def expect_head(self, most_bytes: int = LARGE_BYTES) -> None:
        """Of the next request, which may be somebody else's: a proxy's connections are."""
        self._head_left = most_bytes

    def _next_bytes(self) -> int:
        if not self._head_left:
            return self._slice_bytes
        head = self._arrived.find(_HEAD_ENDS, 0, self._head_left)
        if head >= 0:
            self._head_left = 0
            return head + len(_HEAD_ENDS)
        size = min(len(self._arrived), SMALL_BYTES, self._head_left)
        self._head_left -= size
        return size

    def _look_again(self) -> None:
        self._later = None
        self.go_on()

    def has_worked(self, worked_s: float) -> None:
        now, whose = self.loop.time(), self.whose()
        until = max(now, self.resting_until.get(whose, now)) + REST * worked_s
        self.resting_until[whose] = min(now + MOST_REST_S, until)

    def rest_s(self) -> float:
        """How long it still rests. Little is not worth a timer."""
        rest_s = self.resting_until.get(self.whose(), 0.0) - self.loop.time()
        return rest_s if rest_s > WORK_S else 0.0
