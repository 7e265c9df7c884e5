"""The code's output passed on as it comes, by a thread of its own.

A reader who does not read must not stop the event loop, which holds the time-out. The queue is
bounded by what the run may print (`output_bytes`).
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable

from belljar.cli.terminal import Filter

DESCRIPTORS = {"stdout": 1, "stderr": 2}


class Live:
    """Raw bytes where the output is a pipe or a file; made harmless where it is a terminal."""

    def __init__(self) -> None:
        self.broken = False
        """Nobody reads any more: the other end of our output was closed."""
        self.on_broken: Callable[[], object] = lambda: None
        self._queue: queue.SimpleQueue[tuple[str, bytes] | None] = queue.SimpleQueue()
        self._filters = {name: Filter() for name, fd in DESCRIPTORS.items() if os.isatty(fd)}
        self._thread = threading.Thread(target=self._work, name="belljar-output", daemon=True)
        self._thread.start()

    def put(self, stream: str, data: bytes) -> None:
        self._queue.put((stream, data))

    def close(self, *, wait_s: float | None = None) -> None:
        """Returns when everything has been written, or after `wait_s`."""
        self._queue.put(None)
        self._thread.join(wait_s)

    def _work(self) -> None:
        while item := self._queue.get():
            stream, data = item
            cleaner = self._filters.get(stream)
            self._write(stream, cleaner.feed(data) if cleaner else data)
        for stream, cleaner in self._filters.items():
            self._write(stream, cleaner.end())

    def _write(self, stream: str, data: bytes) -> None:
        while data and not self.broken:
            try:
                data = data[os.write(DESCRIPTORS[stream], data) :]
            except BlockingIOError:
                _wait_writable(DESCRIPTORS[stream])
            except OSError:
                self.broken = True
                self.on_broken()


def _wait_writable(descriptor: int) -> None:
    import select

    select.select([], [descriptor], [])
