"""F2: what arrives is read in slices, in order and to its end, by those who may."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from belljar.server.slices import LARGE_BYTES, MOST_REST_S, SMALL_BYTES, Sliced

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n\r\n"


class Transport:
    def __init__(self) -> None:
        self.is_reading = True

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0


class Below(asyncio.Protocol):
    """Where uvicorn's protocol would be."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)


class Reader(Sliced, Below):
    tenant = ""
    holds_up = False

    def __init__(self, rests: dict[str, float]) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()
        self.transport: Any = Transport()
        self.resting_until = rests

    def whose(self) -> str:
        return self.tenant

    def is_held_up(self) -> bool:
        return self.holds_up

    @property
    def got(self) -> bytes:
        return b"".join(self.pieces)


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(60):
            await story()

    asyncio.run(within())


def test_all_of_it_comes_in_order_in_small_pieces() -> None:
    async def story() -> None:
        reader = Reader({})
        reader.tenant = "t"
        sent = bytes(range(256)) * 1000
        for at in range(0, len(sent), 60_000):
            reader.data_received(sent[at : at + 60_000])
        while len(reader.got) < len(sent):
            await asyncio.sleep(0.001)
        assert reader.got == sent and reader.transport.is_reading
        assert max(map(len, reader.pieces)) <= LARGE_BYTES and len(reader.pieces[0]) <= SMALL_BYTES

    play(story)


def test_whoever_is_held_up_is_not_read_and_goes_on_where_it_was() -> None:
    async def story() -> None:
        reader = Reader({})
        reader.tenant, reader.holds_up = "t", True
        reader.data_received(b"a" * 5000)
        await asyncio.sleep(0.05)
        assert reader.got == b"" and not reader.transport.is_reading
        reader.transport.resume_reading()  # as uvicorn does, before it says so
        assert reader.wait() and not reader.transport.is_reading
        reader.holds_up = False
        reader.go_on()
        while len(reader.got) < 5000:
            await asyncio.sleep(0.001)
        assert reader.transport.is_reading

    play(story)


def test_a_first_head_waits_for_no_stranger_and_what_follows_for_its_own_tenant() -> None:
    """Strangers rest all together, and whoever has a key is one until its first head was read."""

    async def story() -> None:
        rests = {"": asyncio.get_running_loop().time() + 1000}
        reader = Reader(rests)
        reader.data_received(HEAD + b"b" * 100_000)
        assert reader.got == HEAD
        reader.tenant = "t"  # the gate has looked
        while len(reader.got) < len(HEAD) + 100_000:
            await asyncio.sleep(0.001)
        other = Reader(rests)
        other.data_received(HEAD + b"b" * 100_000)
        await asyncio.sleep(0.05)
        assert other.got == HEAD, "still a stranger"
        other.tenant = "t"
        other.data_received(b"c")
        while len(other.got) < len(HEAD) + 100_001:
            await asyncio.sleep(0.001)
        assert other.got.endswith(b"bc")

    play(story)


def test_a_rest_is_bounded() -> None:
    async def story() -> None:
        reader = Reader({})
        reader.tenant = "t"
        reader.has_worked(1000)
        assert 0 < reader.rest_s() <= MOST_REST_S

    play(story)
