"""What the server may have to hold in memory for callers: what requests bring, outputs of runs, and
answers to be sent.

A run or a program takes the most that it could print and leave before it begins (`Admission` counts
that), so nothing that code does later takes more. An answer takes what writing it as JSON may.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from belljar.kept import outputs
from belljar.model import MIB, Limits, Result
from belljar.server.errors import ApiError
from belljar.server.tenants import Tenant
from belljar.server.writing import Turns

LARGE_BYTES = MIB
"""From this size on what an answer is made of is counted until it is sent."""
SHARES = 4
"""Of what requests may bring one tenant may have one of these."""
LITTLE_BYTES = MIB
"""A tenant with no more than that is never refused because of others."""
_SMALL = 32
_STREAMS = 4
"""Of stdout and of stderr: what is kept, and what is told while it comes."""
_PROGRAM = 6
"""The same, and what was printed since as events for whoever comes later."""


def of_run(limits: Limits) -> int:
    return _STREAMS * limits.output_bytes + limits.result_bytes


def of_step(limits: Limits) -> int:
    """One run in a kept sandbox: it brings no files back, and may show things."""
    return _STREAMS * limits.output_bytes + outputs.ALL_BYTES


def of_program(limits: Limits) -> int:
    return _PROGRAM * limits.output_bytes


def size_of(result: Result) -> int:
    """Of what is large in it."""
    return sum(map(sys.getsizeof, (*_texts(result), *_contents(result))))


def _texts(result: Result) -> list[str]:
    shown = [part for output in result.outputs for part in output.data.values()]
    texts = [part for part in shown if isinstance(part, str)]
    return [result.stdout, result.stderr, result.value or "", *texts]


def _contents(result: Result) -> list[bytes]:
    shown = [part for output in result.outputs for part in output.data.values()]
    pictures = [part for part in shown if isinstance(part, bytes)]
    return [*pictures, *(file.content or b"" for file in result.files)]


def usual_bytes() -> int:
    """A quarter of the memory of this machine, or of the container that this is."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # "max" is no number
            total = min(total, int(Path(path).read_text()))
    return max(512 * MIB, total // 4)


class Hold:
    """So many bytes that are counted until this is called."""

    def __init__(self, size: int, give_back: Callable[[int], None]) -> None:
        self._size = size
        self._give_back = give_back

    def shrink(self, size: int) -> None:
        """It turned out to be less."""
        if size < self._size:
            before, self._size = self._size, size
            self._give_back(before - size)

    def __call__(self) -> None:
        self.shrink(0)


class Brought(Hold):
    """A hold that can become more, or be refused to."""

    def __init__(self, bodies: Bodies, tenant: Tenant) -> None:
        super().__init__(0, partial(bodies.let_go, tenant.name))
        self._bodies = bodies
        self._tenant = tenant

    def grow(self, size: int) -> None:
        self._bodies.take(self._tenant, size, beside=self._size)
        self._size += size

    def become(self, size: int) -> None:
        if size > self._size:
            self.grow(size - self._size)
        self.shrink(size)


class Bodies:
    """Memory for requests: bodies as they arrive, and what runs keep of them while they wait and
    run. Where there are several tenants each has a share, so that none can use up the others'."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._sharing = False
        self._held: Counter[str] = Counter()
        self.turns = Turns()
        """For what a tenant does with one large body at a time."""

    def share(self, sharing: bool) -> None:
        self._sharing = sharing

    @property
    def most_each(self) -> int:
        return self._most // SHARES if self._sharing else self._most

    @property
    def held_bytes(self) -> int:
        return self._held.total()

    def hold(self, tenant: Tenant, size: int = 0) -> Brought:
        held = Brought(self, tenant)
        if size:
            held.grow(size)
        return held

    def take(self, tenant: Tenant, size: int, *, beside: int = 0) -> None:
        """`beside`: what the same request holds already. A request that is larger than all the room
        there is gets in if nothing else is held."""
        own = self._held[tenant.name] + size
        if own > self.most_each and own > size + beside:
            raise ApiError(
                "quota_exceeded",
                f"this tenant's requests under way may take {self.most_each} bytes together",
                hint="wait until some have ended, or upload large content as a dataset",
                retry_after_s=1,
            )
        if own > LITTLE_BYTES and self.held_bytes > max(beside, self._most - size):
            raise ApiError(
                "overloaded", "too many large requests at once", hint="try again", retry_after_s=1
            )
        self._held[tenant.name] = own

    def let_go(self, name: str, size: int) -> None:
        self._held[name] -= size
        if not self._held[name]:
            del self._held[name]


def weight(value: Any) -> int:
    """What something that came as JSON takes in memory."""
    if isinstance(value, (str, bytes)):
        return sys.getsizeof(value)  # of wide characters four bytes each, if there is only one
    if isinstance(value, BaseModel):
        return sum(map(weight, value.__dict__.values()))
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(map(weight, value)) + sum(map(weight, value.values()))
    if isinstance(value, (list, tuple)):
        return sys.getsizeof(value) + sum(map(weight, value))
    return _SMALL


class Answers:
    """What is looked up to answer with, and was not there before: so much at once, of one tenant
    half of it, whatever it asks for. Results of runs are counted by their places."""

    def __init__(self, most_bytes: int, *, wait_s: float) -> None:
        self._most = most_bytes
        self._wait_s = wait_s
        self._held: Counter[str] = Counter()
        self._freed = asyncio.Event()

    @property
    def held_bytes(self) -> int:
        return self._held.total()

    async def hold(self, tenant: Tenant, size: int) -> Hold:
        """Waits for room. One that is larger than its tenant's half comes alone of that tenant."""
        size = min(size, self._most // 2)
        try:
            async with asyncio.timeout(self._wait_s):
                while not self._has_room(tenant.name, size):
                    self._freed.clear()
                    await self._freed.wait()
        except TimeoutError:
            raise ApiError(
                "overloaded",
                "too many large answers are waiting to be read",
                hint="read answers faster, or ask for less at once",
                retry_after_s=5,
            ) from None
        self._held[tenant.name] += size
        return Hold(size, partial(self._let_go, tenant.name))

    def _has_room(self, name: str, size: int) -> bool:
        own = self._held[name] + size
        return own <= self._most // 2 and self.held_bytes + size <= self._most

    def _let_go(self, name: str, size: int) -> None:
        self._held[name] -= size
        if not self._held[name]:
            del self._held[name]
        self._freed.set()
