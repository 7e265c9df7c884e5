"""L5: the bounded view of an endless stream keeps head and tail and counts every byte between."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.runtimes.guest.spool import Spool

chunks = st.lists(st.binary(max_size=60), max_size=30)
capacities = st.integers(min_value=1, max_value=200)


def spooled(capacity: int, pieces: list[bytes]) -> tuple[bytes, bytes, int]:
    spool = Spool(capacity)
    head = b"".join(spool.feed(piece) for piece in pieces)
    tail, dropped = spool.finish()
    return head, tail, dropped


@settings(max_examples=400)
@given(capacity=capacities, pieces=chunks)
def test_head_dropped_and_tail_add_up(capacity: int, pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    head, tail, dropped = spooled(capacity, pieces)
    assert len(head) + dropped + len(tail) == len(data)
    assert data.startswith(head)
    assert data.endswith(tail)
    assert data[: len(head)] + data[len(head) + dropped :] == head + tail


@settings(max_examples=400)
@given(capacity=capacities, pieces=chunks)
def test_exactly_the_capacity_is_kept_when_there_is_more(
    capacity: int, pieces: list[bytes]
) -> None:
    total = sum(map(len, pieces))
    head, tail, dropped = spooled(capacity, pieces)
    assert len(head) + len(tail) == min(total, capacity)
    assert dropped == max(0, total - capacity)
    assert len(head) <= capacity - capacity // 2
    assert len(tail) <= capacity // 2


@given(capacity=capacities, data=st.binary(max_size=500), cuts=st.lists(st.integers(0, 500)))
def test_how_the_stream_was_cut_does_not_matter(
    capacity: int, data: bytes, cuts: list[int]
) -> None:
    places = [0, *sorted(min(place, len(data)) for place in cuts), len(data)]
    pieces = [data[a:b] for a, b in pairwise(places)]
    assert spooled(capacity, pieces) == spooled(capacity, [data])


@given(capacity=capacities, pieces=chunks)
def test_the_head_is_given_back_at_once(capacity: int, pieces: list[bytes]) -> None:
    """Live output: what belongs to the head does not wait for the end."""
    spool = Spool(capacity)
    seen = 0
    for piece in pieces:
        room = capacity - capacity // 2 - seen
        assert spool.feed(piece) == piece[: max(0, room)]
        seen += min(len(piece), max(0, room))


def test_a_gigabyte_costs_about_the_capacity() -> None:
    """The agent's memory is the sandbox's, but a flood must not kill it either."""
    import tracemalloc

    spool, piece = Spool(100_000), bytes(256 * 1024)
    tracemalloc.start()
    for _ in range(4096):
        spool.feed(piece)
    tail, dropped = spool.finish()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(tail) == 50_000
    assert dropped == 4096 * len(piece) - 100_000
    assert peak < 2_000_000


def test_l5_a_byte_at_a_time_costs_no_more_memory_than_it_says() -> None:
    """Whoever writes single bytes must not make each of them an object of forty."""
    spool = Spool(1 << 20)
    spool.feed(bytes(1 << 19))
    tracemalloc.start()
    try:
        for _ in range(300_000):
            spool.feed(b"x")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1 << 20
    assert spool.finish() == (b"x" * 300_000, 0)
