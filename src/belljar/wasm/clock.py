"""How a module runs out of time: wasmtime interrupts it when its engine's epoch has moved on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import wasmtime

TICK_S = 0.01
"""How exactly time-outs are kept."""


class Clock:
    """Moves the epoch on while something runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0

    @contextlib.contextmanager
    def ticking(self, engine: wasmtime.Engine) -> Iterator[None]:
        with self._lock:
            self._running += 1
            if self._running == 1:
                self._over = over = threading.Event()
                threading.Thread(target=self._tick, args=(engine, over), daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if not self._running:
                    self._over.set()

    @staticmethod
    def _tick(engine: wasmtime.Engine, over: threading.Event) -> None:
        while not over.wait(TICK_S):
            engine.increment_epoch()
