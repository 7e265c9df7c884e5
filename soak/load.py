"""Workers that do jobs, one after the other, at a modest pace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random

import httpx

from .jobs import Job
from .place import METERED, TENANTS, Place
from .record import Record
from .talk import Disturbed, Talk

FINISH_S = 30.0
"""How long jobs under way have at the end."""


class Load:
    def __init__(
        self, place: Place, record: Record, http: httpx.AsyncClient, jobs: Mapping[str, Job],
        *, workers: int, rate: float, now: Callable[[], float],
    ) -> None:  # fmt: skip
        """`rate`: jobs a second of all workers together, at most."""
        self._jobs = jobs
        self._pause_s = workers / rate
        self._stopping = asyncio.Event()
        self._seed = record.seed
        self._now = now
        self._talks = {
            number: {name: Talk(name, place, record, http, now) for name in TENANTS}
            for number in range(workers)
        }
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._work(number)) for number in self._talks]

    async def _work(self, number: int) -> None:
        """What it does depends on the seed and its number alone; when, on the machine."""
        chance = Random(f"{self._seed} worker {number}")
        while not self._stopping.is_set():
            began = self._now()
            tenant = chance.choice(TENANTS)
            allowed = [one for one in self._jobs.values() if one.once or tenant != METERED]
            job = chance.choices(allowed, [one.weight for one in allowed])[0]
            talk = self._talks[number][tenant]
            talk.since = 0.0
            try:
                await job.do(talk, Random(chance.random()))
            except Disturbed:
                await self._pause(0.2)  # a server that is gone is not hammered
            await self._pause(self._pause_s - (self._now() - began))

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._stopping.wait()
        except TimeoutError:
            pass

    def broken(self) -> BaseException | None:
        """A mistake of the soak's own."""
        done = (task for task in self._tasks if task.done() and not task.cancelled())
        return next((error for task in done if (error := task.exception())), None)

    async def stop(self) -> None:
        self._stopping.set()
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=FINISH_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if error := self.broken():
            raise error
