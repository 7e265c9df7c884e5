"""A pool of threads for each kind of slow work, so that none waits behind another.

asyncio has one executor for a whole process. A few package builds took all of its threads, and
reading keys, uploads and large bodies waited behind them for minutes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """At most `most` threads for one purpose, started when they are needed. `do_for` gives one
    tenant at most `each` of them; the rest of its work waits without a thread."""

    def __init__(self, name: str, most: int, *, each: int) -> None:
        self._executor = ThreadPoolExecutor(most, thread_name_prefix=f"belljar-{name}")
        self._each = each
        self._shares: WeakValueDictionary[tuple[int, str], asyncio.Semaphore] = (
            WeakValueDictionary()
        )

    async def do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`work` in one of the threads. It goes on if whoever waits is cancelled."""
        return await asyncio.wrap_future(self._executor.submit(work, *args, **kwargs))

    async def do_for(
        self, whose: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """As `do`, within the share of `whose`."""
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
            future = self._executor.submit(work, *args, **kwargs)
        except BaseException:
            share.release()
            raise
        future.add_done_callback(ended)
        return await asyncio.wrap_future(future)


STATE = Threads("state", 2, each=2)
"""Keys, quotas and CPU seconds of a server: read every second, whatever else is going on."""
READING = Threads("reading", 4, each=2)
"""The trail: opening it, questions to it."""
JSON = Threads("json", 4, each=1)
"""Large bodies and answers. This work holds the GIL most of the time, so that two threads for one
tenant would slow everybody down."""
FILES = Threads("files", 8, each=4)
"""Contents of files: uploads, inputs, what is written to the host."""
ENGINES = Threads("engines", 8, each=8)
"""What engines prepare and look at: programs, images, disks."""
BUILDS = Threads("builds", 8, each=2)
"""Environments and sets of packages, which take minutes."""
