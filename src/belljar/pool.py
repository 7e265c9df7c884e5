"""Walled, unused sandboxes waiting for their one run.

A sandbox leaves the pool when it is handed out and never comes back. Each environment has its own
queue that grows while callers find it empty and shrinks when nobody comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, cast

from belljar.engines.base import Doors, Engine, Ground, Mount, MountingEngine
from belljar.errors import BelljarError, Closed
from belljar.model import Limits
from belljar.sandbox import Sandbox
from belljar.settings import Settings

log = logging.getLogger("belljar")


class Pool:
    """The queues of one engine."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine = engine
        self._settings = settings
        self._most = min(settings.pool_maximum, engine.capabilities.most_waiting)
        self._queues: dict[str, _Queue] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.closed = False

    async def take(self, ground: Ground, limits: Limits) -> Sandbox:
        """A sandbox nobody has used: a waiting one if its size fits, else a new one."""
        if self.closed:
            raise Closed("this Belljar is closed", hint="make a new one")
        defaults = self._settings.defaults
        fits = (limits.disk_bytes, limits.disk_files) == (defaults.disk_bytes, defaults.disk_files)
        if not fits or (not self._settings.pool_size and ground.key not in self._queues):
            return await self._now(ground, limits)
        queue = self._queue(ground)
        sandbox, lost = queue.pop(most=self._most)
        for dead in lost:
            self._background(dead.destroy())
        # While one waits for its answer a refill would only compete with it; `discard` brings the
        # next one. Under load there is no such moment, so half empty is reason enough.
        if len(queue.waiting) < queue.wanted // 2:
            self._refill(queue)
        return sandbox or await self._now(ground, limits)

    async def _now(self, ground: Ground, limits: Limits) -> Sandbox:
        """Not waited for until it is ready: its run stands in the stream when the agent is up."""
        return Sandbox(await self.engine.create(ground, limits, waiting=False))

    async def make_with(
        self,
        ground: Ground,
        limits: Limits,
        mounts: Sequence[Mount],
        *,
        doors: Doors | None = None,
    ) -> Sandbox:
        """A new one with these mounts and doors, by an engine that can."""
        if self.closed:
            raise Closed("this Belljar is closed", hint="make a new one")
        engine = cast(MountingEngine, self.engine)
        return Sandbox(await engine.create_with(ground, limits, mounts, doors=doors))

    async def warm(self, ground: Ground, count: int) -> None:
        """Returns when `count` sandboxes wait for this environment, or no more may wait."""
        queue = self._queue(ground)
        queue.wanted = max(queue.wanted, min(count, self._most))
        while len(queue.waiting) < count and self._room():
            sandbox = await self._create(ground, self._settings.defaults, waiting=True)
            if self.closed:
                await sandbox.destroy()
                raise Closed("this Belljar was closed while it warmed up")
            queue.waiting.append(sandbox)
        self._plan_shrinking(queue)

    async def _create(self, ground: Ground, limits: Limits, *, waiting: bool) -> Sandbox:
        sandbox = Sandbox(await self.engine.create(ground, limits, waiting=waiting))
        try:
            await sandbox.ready()
        except BaseException:
            await sandbox.destroy()
            raise
        return sandbox

    def discard(self, sandbox: Sandbox, ground: Ground) -> asyncio.Task[None]:
        """Destroys a used sandbox in the background: the caller has its answer already."""
        task = self._background(_after_the_answer(sandbox))
        queue = self._queues.get(ground.key)
        if queue and not self.closed:
            task.add_done_callback(lambda _: self._refill(queue))
        return task

    def waiting(self) -> dict[str, int]:
        return {name: len(queue.waiting) for name, queue in self._queues.items()}

    async def close(self) -> None:
        self.closed = True
        for queue in self._queues.values():
            if queue.filling:
                queue.filling.cancel()
            if queue.shrinking:
                queue.shrinking.cancel()
            while queue.waiting:
                self._background(queue.waiting.popleft().destroy())
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _queue(self, ground: Ground) -> _Queue:
        queue = self._queues.get(ground.key)
        if queue is None:
            queue = self._queues[ground.key] = _Queue(ground, self._settings.pool_size)
        return queue

    def _refill(self, queue: _Queue) -> None:
        if self.closed:
            return
        if not queue.filling or queue.filling.done():
            queue.filling = self._background(self._fill(queue))
        self._plan_shrinking(queue)

    def _plan_shrinking(self, queue: _Queue) -> None:
        if queue.shrinking:
            queue.shrinking.cancel()
        queue.shrinking = asyncio.get_running_loop().call_later(
            self._settings.pool_idle_s, self._shrink, queue
        )

    async def _fill(self, queue: _Queue) -> None:
        while len(queue.waiting) < queue.wanted and self._room():
            try:
                sandbox = await self._create(
                    queue.ground, self._settings.defaults, waiting=not queue.short
                )
            except BelljarError:
                return  # the next caller meets the same error and is told
            if self.closed:
                await sandbox.destroy()
                return
            queue.waiting.append(sandbox)
            queue.was_filled = True
        queue.short = False

    def _room(self) -> bool:
        """All queues together are bounded, since what waits holds memory."""
        total = sum(len(queue.waiting) for queue in self._queues.values())
        return total < self._most

    def _shrink(self, queue: _Queue) -> None:
        queue.wanted = self._settings.pool_size
        while len(queue.waiting) > queue.wanted:
            self._background(queue.waiting.popleft().destroy())

    def _background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.warning("a sandbox could not be cleared away: %r", error)


async def _after_the_answer(sandbox: Sandbox) -> None:
    """Taking a sandbox down keeps the kernel busy; a moment later it is in nobody's way."""
    await asyncio.sleep(0.001)
    await sandbox.destroy()


class _Queue:
    def __init__(self, ground: Ground, size: int) -> None:
        self.ground = ground
        self.wanted = size
        self.waiting: deque[Sandbox] = deque()
        self.filling: asyncio.Task[None] | None = None
        self.shrinking: asyncio.TimerHandle | None = None
        self.was_filled = False
        self.short = False
        """Callers found it empty since it was last full: then the next one is wanted at once, and
        preparing it further would only make others wait."""

    def pop(self, *, most: int) -> tuple[Sandbox | None, list[Sandbox]]:
        """One that waits, and those found dead before it."""
        lost: list[Sandbox] = []
        while self.waiting:
            sandbox = self.waiting.pop()  # the newest, whose memory is still in the caches
            if not sandbox.gone():
                return sandbox, lost
            lost.append(sandbox)
        if self.was_filled:  # found empty: demand is higher than what waits
            self.wanted = min(2 * self.wanted, most)
            self.short = True
        return None, lost
