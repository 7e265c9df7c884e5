"""Builds of environments and of sets of packages that somebody waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from belljar import threads
from belljar.environments import stopping
from belljar.errors import Closed, EnvironmentUnavailable

T = TypeVar("T")


class Builds:
    """Each in a thread for builders, of one tenant few at once. A build ends when whoever waits for
    it is cancelled, and with all others in `close`."""

    def __init__(self) -> None:
        self._stops: set[threading.Event] = set()
        self._closed = False

    async def do(self, work: Callable[[], T], *, whose: str) -> T:
        stop = threading.Event()

        def build() -> T:
            with stopping.when(stop):
                stopping.check()
                return work()

        self._stops.add(stop)
        try:
            if self._closed:
                stop.set()
            return await threads.BUILDS.do_for(whose, build)
        except EnvironmentUnavailable:
            if self._closed:
                raise Closed("this Belljar was closed before the build was done") from None
            raise
        finally:
            stop.set()
            self._stops.discard(stop)

    def close(self) -> None:
        self._closed = True
        for stop in self._stops:
            stop.set()
