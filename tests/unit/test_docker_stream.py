"""Docker's cut-up streams read as one (I5)."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.engines.docker.stream import Attached


def cut(pieces: list[tuple[int, bytes]]) -> bytes:
    return b"".join(struct.pack(">BxxxI", kind, len(data)) + data for kind, data in pieces)


def received(raw: bytes, sizes: list[int], first: bytes = b"") -> tuple[bytes, Attached]:
    ours, theirs = socket.socketpair()
    stream = Attached(ours, first)
    found = b""
    with theirs:
        position = 0
        for size in [*sizes, len(raw)]:
            theirs.sendall(raw[position : position + size])
            position += size
            while True:
                try:
                    found += stream.recv(64)
                except BlockingIOError:
                    break
    assert stream.recv(64) == b""
    return found, stream


@given(
    pieces=st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=8),
    sizes=st.lists(st.integers(1, 20), max_size=30),
    split=st.integers(0, 30),
)
def test_any_cutting(pieces: list[tuple[int, bytes]], sizes: list[int], split: int) -> None:
    raw = cut(pieces)
    found, stream = received(raw[split:], sizes, first=raw[:split])
    with stream:
        assert found == b"".join(data for kind, data in pieces if kind == 1)
        assert stream.words == b"".join(data for kind, data in pieces if kind == 2)


def test_last_words_are_bounded() -> None:
    found, stream = received(cut([(2, b"x" * 3000)] * 5 + [(1, b"y")]), [])
    with stream:
        assert found == b"y" and len(stream.words) == 4096


def test_the_end_is_told_once_and_first() -> None:
    ours, theirs = socket.socketpair()
    stream = Attached(ours)
    told: list[bool] = []
    stream.at_end = lambda: told.append(stream.ended)
    with stream:
        with pytest.raises(BlockingIOError):
            stream.recv(10)
        assert not stream.ended and not told
        theirs.close()
        assert stream.recv(10) == stream.recv(10) == b""
        assert told == [True]


def test_what_is_sent_goes_as_it_is() -> None:
    ours, theirs = socket.socketpair()
    with Attached(ours) as stream, theirs:
        stream.send(b"words")
        assert theirs.recv(10) == b"words"
