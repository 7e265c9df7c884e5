"""JSON of any size, written while its reader takes it.

A large answer that was written at once held the interpreter for as long as that took, and many
times its size in memory for as long as its client cared to read: others' answers had no room then.
Here no more of it is there than one piece, and what it is made of, which is counted already.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Iterator
from itertools import chain
from typing import Any
from weakref import WeakValueDictionary

from belljar.model import Result

SMALL = 1 << 15
"""Characters that are written at once. In JSON each may become six, or twelve beyond the basic
plane of Unicode."""
_IN_BASE64 = 3 << 13
"""Bytes; a multiple of three, so that pieces can follow each other."""
WORK_S, REST = 0.001, 6
"""A tenant's answers rest after so much work, so many times as long: sending takes about as long as
writing, so most of the loop's time stays for others."""
_EACH = 8
"""What a value weighs beside its characters."""


class Base64:
    """Bytes that are written as a text of base64."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def __str__(self) -> str:
        return base64.b64encode(self.content).decode()


def of(result: Result) -> dict[str, Any]:
    """As `Result.to_dict`; its contents are encoded when they are written."""
    return result.plain(Base64)


def write(value: Any) -> bytes | Iterator[bytes]:
    """Whole if it is small, else piece by piece. An iterator is written as a list."""
    if _left(value, SMALL) >= 0:
        return json.dumps(value, default=str).encode()
    written = pieces(value)
    first, second = next(written), next(written, None)
    return first if second is None else chain((first, second), written)


def pieces(value: Any) -> Iterator[bytes]:
    """Each takes less than a millisecond to write."""
    waiting: list[str] = []
    size = 0
    for fragment in _fragments(value):
        waiting.append(fragment)
        size += len(fragment)
        if size >= SMALL:
            yield "".join(waiting).encode()
            waiting, size = [], 0
    if waiting:
        yield "".join(waiting).encode()


def _left(value: Any, room: int) -> int:
    """Of `room` when `value` is in it; below 0: it is larger, or nobody knows."""
    if isinstance(value, str):
        return room - len(value)
    if isinstance(value, Base64):
        return room - len(value.content)
    if isinstance(value, dict):
        for key, one in value.items():
            room = _left(one, room - _EACH - len(key))
            if room < 0:
                break
        return room
    if isinstance(value, list | tuple):
        for one in value:
            room = _left(one, room - _EACH)
            if room < 0:
                break
        return room
    return -1 if isinstance(value, Iterator) else room


def _fragments(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if len(value) <= SMALL:
            yield json.dumps(value)
        else:
            yield '"'
            for start in range(0, len(value), SMALL):
                yield json.dumps(value[start : start + SMALL])[1:-1]
            yield '"'
    elif isinstance(value, Base64):
        yield '"'
        for start in range(0, len(value.content), _IN_BASE64):
            yield base64.b64encode(value.content[start : start + _IN_BASE64]).decode()
        yield '"'
    elif isinstance(value, dict):
        mark = "{"
        for key, one in value.items():
            yield f"{mark}{json.dumps(key)}: "
            yield from _fragments(one)
            mark = ", "
        yield "}" if mark == ", " else "{}"
    elif isinstance(value, list | tuple | Iterator):
        mark = "["
        for one in value:
            yield mark
            if _left(one, SMALL) >= 0:
                yield json.dumps(one, default=str)
            else:
                yield from _fragments(one)
            mark = ", "
        yield "]" if mark == ", " else "[]"
    else:
        yield json.dumps(value)


class Turns:
    """One at a time of each tenant."""

    def __init__(self) -> None:
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, tenant: str) -> asyncio.Lock:
        turn = self._turns.get(tenant)
        if turn is None:
            turn = self._turns[tenant] = asyncio.Lock()
        return turn


async def in_turn(written: Iterator[bytes], turn: asyncio.Lock) -> AsyncIterator[bytes]:
    """Of all that a tenant is told no more than one piece in a step of the loop, and then a rest: a
    client that reads as fast as we write would have the loop to itself, and so would a crowd of
    slower ones."""
    took_s = 0.0
    while True:
        async with turn:
            began = time.perf_counter()
            piece = next(written, None)
            took_s += time.perf_counter() - began
            if took_s < WORK_S:
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(REST * took_s)
                took_s = 0.0
        if piece is None:
            return
        yield piece
