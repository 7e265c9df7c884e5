"""What the server may have to hold in memory for callers: outputs of runs, and answers to be sent.

A run or a program takes the most that it could print and leave before it begins (`Admission` counts
that), so nothing that code does later takes more. An answer takes what writing it as JSON may.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from belljar.kept import outputs
from belljar.model import MIB, Limits, Result
from belljar.server.errors import ApiError
from belljar.server.tenants import Tenant

LARGE_BYTES = MIB
"""From this size on an answer becomes JSON in a thread, and is counted until it is sent."""
_STREAMS = 4
"""Of stdout and of stderr: what is kept, and what is told while it comes."""
_PROGRAM = 6
"""The same, and what was printed since as events for whoever comes later."""
_AS_JSON, _WIDE_AS_JSON = 12, 24
"""Of text: six characters for each that JSON escapes, or twice as many; as text and as bytes."""
_FILES_AS_JSON = 3
"""Of bytes: base64, as text and as bytes."""


def of_run(limits: Limits) -> int:
    return _STREAMS * limits.output_bytes + limits.result_bytes


def of_step(limits: Limits) -> int:
    """One run in a kept sandbox: it brings no files back, and may show things."""
    return _STREAMS * limits.output_bytes + outputs.ALL_BYTES


def of_program(limits: Limits) -> int:
    return _PROGRAM * limits.output_bytes


def size_of(result: Result) -> int:
    """Of what is large in it."""
    return sum(map(len, _texts(result))) + sum(map(len, _contents(result)))


def of_answer(result: Result) -> int:
    """What writing it as JSON may take."""
    texts = (len(text) * (_AS_JSON if text.isascii() else _WIDE_AS_JSON) for text in _texts(result))
    return sum(texts) + _FILES_AS_JSON * sum(map(len, _contents(result)))


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


class Answers:
    """Large answers that are being written or sent: so much at once, of one tenant half of it."""

    def __init__(self, most_bytes: int, *, wait_s: float) -> None:
        self._most = most_bytes
        self._wait_s = wait_s
        self._held: Counter[str] = Counter()
        self._freed = asyncio.Event()

    @property
    def held_bytes(self) -> int:
        return self._held.total()

    async def hold(self, tenant: Tenant, size: int) -> Hold:
        """Waits for room. One that is larger than all the room there is comes alone."""
        try:
            async with asyncio.timeout(self._wait_s):
                while not self._has_room(tenant.name, size):
                    self._freed.clear()
                    await self._freed.wait()
        except TimeoutError:
            raise ApiError(
                "overloaded",
                "the code has run, but too many large answers wait to be read to send this one",
                hint="read answers faster, or ask for less output_bytes and result_bytes",
                retry_after_s=5,
            ) from None
        self._held[tenant.name] += size
        return Hold(size, partial(self._let_go, tenant.name))

    def _has_room(self, name: str, size: int) -> bool:
        own, all_ = self._held[name], self.held_bytes
        return (not own or own + size <= self._most // 2) and (
            not all_ or all_ + size <= self._most
        )

    def _let_go(self, name: str, size: int) -> None:
        self._held[name] -= size
        if not self._held[name]:
            del self._held[name]
        self._freed.set()
