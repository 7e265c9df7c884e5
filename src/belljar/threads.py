"""A pool of threads for each kind of slow work, so that none waits behind another.

asyncio has one executor for a whole process. A few package builds took all of its threads, and
reading keys, uploads and large bodies waited behind them for minutes.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

OURS = ""
"""For whom the process itself works, and a library that has no tenants."""
P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """At most `most` threads for one purpose, started when they are needed, and gone when there is
    nothing to do, unless all of them stay. Each tenant has at most `each` of them; the rest of its
    work waits without a thread. There is no way to use one without saying for whom: `OURS` is one
    of them."""

    def __init__(self, name: str, most: int, *, each: int) -> None:
        self._name = name
        self._most = most
        self._each = each
        self._forget()
        _all.add(self)

    def _forget(self) -> None:
        """Whatever is under way: in a child after a fork its threads are not there."""
        self._executor: ThreadPoolExecutor | None = None
        self._under_way = 0
        self._turn = threading.Lock()
        self._shares: weakref.WeakValueDictionary[tuple[int, str], asyncio.Semaphore] = (
            weakref.WeakValueDictionary()
        )

    async def do_for(
        self, whose: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """`work` in one of the threads, within the share of `whose`. It goes on if whoever waits is
        cancelled: see below for work that makes, or uses, what somebody has to put away."""
        return await asyncio.wrap_future(await self._begin(whose, work, *args, **kwargs))

    async def take_for(
        self,
        whose: str,
        discard: Callable[[T], object],
        work: Callable[P, T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """For work that makes what has to be put away: a descriptor, a process, a folder. `discard`
        gets what nobody takes, because whoever waited was cancelled; in any thread."""
        future = await self._begin(whose, work, *args, **kwargs)

        def nobodys(done: Future[T]) -> None:
            if not done.cancelled() and not done.exception():
                discard(done.result())

        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(nobodys)
            raise

    async def finish_for(
        self, whose: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """For work that uses what its caller puts away next, such as a descriptor: a caller who is
        cancelled waits until it is done."""
        working = asyncio.wrap_future(await self._begin(whose, work, *args, **kwargs))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            while not working.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait((working,))
            if not working.cancelled():
                working.exception()  # seen: the caller has another reason to end
            raise

    async def _begin(
        self, whose: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Whoever is cancelled here has begun nothing."""
        loop = asyncio.get_running_loop()
        key = (id(loop), whose)
        share = self._shares.get(key)
        if share is None:
            share = self._shares[key] = asyncio.Semaphore(self._each)
        await share.acquire()

        def ended(_: Future[T]) -> None:
            # Not when the caller goes: the thread is taken until the work is done.
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(share.release)

        try:
            future = self._submit(work, *args, **kwargs)
        except BaseException:
            share.release()
            raise
        future.add_done_callback(ended)
        return future

    def _submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        with self._turn:
            if self._executor is None:
                name = f"belljar-{self._name}"
                self._executor = ThreadPoolExecutor(self._most, thread_name_prefix=name)
            future = self._executor.submit(work, *args, **kwargs)
            self._under_way += 1
        future.add_done_callback(self._ended)
        return future

    def _ended(self, _: Future[Any]) -> None:
        with self._turn:
            self._under_way -= 1
            if not self._under_way and self._executor and not _stay:
                self._executor.shutdown(wait=False)
                self._executor = None


_stay = False


def stay() -> None:
    """For a process that is there for long: threads that are idle do not end, since the loop waits
    until a new one has started."""
    global _stay
    _stay = True


class Rests:
    """For long work in Python, done in a thread beside a loop that must answer: whenever `work_s`
    of it are done, a rest of `times` as long. Without it the loop waits for the interpreter at each
    of its steps."""

    def __init__(self, work_s: float = 0.002, times: float = 3) -> None:
        self._work_s = work_s
        self._times = times
        self._began = time.perf_counter()

    def after_each(self) -> None:
        """To be called after each small part of the work."""
        worked_s = time.perf_counter() - self._began
        if worked_s >= self._work_s:
            time.sleep(self._times * worked_s)
            self._began = time.perf_counter()


_all: weakref.WeakSet[Threads] = weakref.WeakSet()


def _after_fork() -> None:
    for threads in list(_all):
        threads._forget()


if hasattr(os, "register_at_fork"):  # not on Windows, where the client works
    os.register_at_fork(after_in_child=_after_fork)

STATE = Threads("state", 2, each=2)
"""Keys, quotas and CPU seconds of a server: read every second, whatever else is going on."""
READING = Threads("reading", 4, each=1)
"""The trail: opening it, questions to it."""
JSON = Threads("json", 4, each=1)
"""Large bodies and answers. This work holds the GIL most of the time, so that two threads for one
tenant would slow everybody down."""
FILES = Threads("files", 8, each=4)
"""Contents of files: uploads, inputs, what is written to the host."""
ENGINES = Threads("engines", 8, each=8)
"""What engines prepare and look at: programs, images, disks. No tenant chooses how much that is."""
REMOVALS = Threads("removals", 4, each=2)
"""What sandboxes and uploads leave on the host, which can be thousands of files."""
BUILDS = Threads("builds", 8, each=2)
"""Environments and sets of packages, which take minutes."""
