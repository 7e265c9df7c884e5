"""Top-level await: one event loop that lives from run to run.

It turns only while a run awaits something; tasks left over go on in the next run that does.
"""

from __future__ import annotations

import os
import types
from collections.abc import Coroutine
from typing import Any

from .imports import library


class Loop:
    def __init__(self) -> None:
        self._loop: Any = None
        self._asyncio: Any = None

    def begin(self) -> None:
        """Makes it the loop that `asyncio.get_event_loop` finds: asyncio.run() takes it away."""
        if self._loop is not None:
            self.adopt(self._asyncio)

    def adopt(self, asyncio: Any) -> None:
        """Called when the code has imported asyncio."""
        if self._asyncio is None:
            # Only now, to be called after asyncio's own hook: since 3.12 that forgets the loop.
            os.register_at_fork(after_in_child=self._forked)
        self._asyncio = asyncio
        if self._loop is None or self._loop.is_closed():
            # poll keeps nothing in the kernel that a fork would share with its parent
            selector = library("selectors").PollSelector()
            self._loop = asyncio.SelectorEventLoop(selector)
        asyncio.set_event_loop(self._loop)

    def run(self, coroutine: Coroutine[Any, Any, object]) -> None:
        asyncio = library("asyncio")
        self.adopt(asyncio)
        if self._loop.is_running():
            coroutine.close()
            raise RuntimeError("this run awaits already: await cannot be used in a magic here")
        task = self._loop.create_task(coroutine)
        try:
            self._loop.run_until_complete(task)
        except KeyboardInterrupt as interrupt:
            if task.done():
                raise
            # The place to show is where the code waited, not where the loop did.
            task.cancel()
            try:
                self._loop.run_until_complete(task)
            except asyncio.CancelledError as cancelled:
                raise KeyboardInterrupt().with_traceback(_where(cancelled)) from None
            raise KeyboardInterrupt().with_traceback(interrupt.__traceback__) from None

    def _forked(self) -> None:
        """The copy gets its own pipe to be woken by, and its threads are gone. Uses private names
        of asyncio: with one that has them no more, the copy starts with a new loop."""
        if self._loop is None or self._loop.is_closed():
            return
        try:
            self._loop._close_self_pipe()
            self._loop._make_self_pipe()
            self._loop._default_executor = None
        except Exception:
            self._loop = None
        self.begin()


def _where(cancelled: BaseException) -> types.TracebackType | None:
    """Before Python 3.11 it is a new exception, with the one from the code as its context."""
    while isinstance(cancelled.__context__, type(cancelled)):
        cancelled = cancelled.__context__
    return cancelled.__traceback__
