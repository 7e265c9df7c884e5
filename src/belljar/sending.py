"""Frames to an agent: each goes out whole and in its turn, whoever sends it and whatever becomes of
him. Half a frame would be the end of all that is said to that agent."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Sequence


class _Waiting:
    def __init__(
        self, data: memoryview, descriptors: Sequence[int], sent: asyncio.Future[None]
    ) -> None:
        self.data = data
        self.descriptors = descriptors
        self.sent = sent


class Sending:
    def __init__(self, loop: asyncio.AbstractEventLoop, stream: socket.socket) -> None:
        self._loop = loop
        self._stream = stream
        self._queue: deque[_Waiting] = deque()

    def put(self, data: bytes, descriptors: Sequence[int] = ()) -> asyncio.Future[None] | None:
        """Most frames find room at once: then None. Else a future, which may be left alone, and
        which has the stream's OSError if it broke. Raises that if it is broken already."""
        count = 0
        if not self._queue and not descriptors:
            with contextlib.suppress(BlockingIOError):
                count = self._stream.send(data)
            if count == len(data):
                return None
        sent: asyncio.Future[None] = self._loop.create_future()
        self._queue.append(_Waiting(memoryview(data)[count:], descriptors, sent))
        if len(self._queue) == 1:
            self._loop.add_writer(self._stream, self._writable)
        return sent

    async def send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        sent = self.put(data, descriptors)
        if sent:
            await asyncio.shield(sent)

    def stop(self, why: OSError | None = None) -> None:
        """Nothing more goes out."""
        if self._queue and self._stream.fileno() >= 0:
            self._loop.remove_writer(self._stream)
        for waiting in self._queue:
            if not waiting.sent.done():
                waiting.sent.set_exception(why or BrokenPipeError("the sandbox was destroyed"))
                waiting.sent.exception()  # not everybody waits for it
        self._queue.clear()

    def _writable(self) -> None:
        while self._queue:
            first = self._queue[0]
            try:
                if first.descriptors:
                    count = socket.send_fds(self._stream, [first.data], list(first.descriptors))
                    first.descriptors = ()
                else:
                    count = self._stream.send(first.data)
            except BlockingIOError:
                return
            except OSError as error:
                self.stop(error)
                return
            first.data = first.data[count:]
            if first.data:
                return
            self._queue.popleft()
            if not first.sent.done():
                first.sent.set_result(None)
        self._loop.remove_writer(self._stream)
