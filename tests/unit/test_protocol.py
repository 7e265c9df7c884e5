"""The frames between host and agent: a reader that never guesses, whatever the guest sends."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.runtimes.guest import protocol
from belljar.runtimes.guest.protocol import FROM_AGENT, FROM_HOST, BadFrame, Reader

frames_of_agent = st.lists(
    st.tuples(st.sampled_from(sorted(FROM_AGENT)), st.binary(max_size=300)), max_size=12
)
objects = st.dictionaries(
    st.text(max_size=8),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=8,
    ),
    max_size=6,
)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(place % (len(data) + 1) for place in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


@given(frames=frames_of_agent, cuts=st.lists(st.integers(min_value=0), max_size=20))
def test_any_chunking_gives_the_same_frames(
    frames: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    """A stream has no boundaries: where the kernel cuts it must not matter."""
    data = b"".join(protocol.frame(kind, payload) for kind, payload in frames)
    reader = Reader(FROM_AGENT)
    got = [frame for piece in cut(data, cuts) for frame in reader.feed(piece)]
    assert got == frames


@given(frames=frames_of_agent)
def test_byte_by_byte(frames: list[tuple[int, bytes]]) -> None:
    data = b"".join(protocol.frame(kind, payload) for kind, payload in frames)
    reader = Reader(FROM_AGENT)
    got = []
    for byte in data:
        got += reader.feed(bytes([byte]))
    assert got == frames


@settings(max_examples=300)
@given(pieces=st.lists(st.binary(max_size=400), max_size=10))
def test_garbage_raises_nothing_but_bad_frame(pieces: list[bytes]) -> None:
    reader = Reader(FROM_AGENT)
    try:
        for piece in pieces:
            for kind, payload in reader.feed(piece):
                assert kind in FROM_AGENT
                assert len(payload) <= protocol.MAX_PAYLOAD
    except BadFrame:
        pass


@given(
    frames=frames_of_agent.filter(bool),
    place=st.integers(min_value=0),
    byte=st.integers(min_value=0, max_value=255),
)
def test_a_flipped_byte_raises_nothing_but_bad_frame(
    frames: list[tuple[int, bytes]], place: int, byte: int
) -> None:
    data = bytearray(b"".join(protocol.frame(kind, payload) for kind, payload in frames))
    data[place % len(data)] = byte
    try:
        Reader(FROM_AGENT).feed(bytes(data))
    except BadFrame:
        pass


@pytest.mark.parametrize("length", [protocol.MAX_PAYLOAD + 1, 2**31, 2**32 - 1])
def test_too_long_a_frame_is_refused_at_its_header(length: int) -> None:
    """L5: not one byte of the payload is waited for or kept."""
    with pytest.raises(BadFrame, match=str(length)):
        Reader(FROM_AGENT).feed(protocol.HEADER.pack(protocol.STDOUT, length))


def test_the_longest_frame_is_accepted() -> None:
    payload = bytes(protocol.MAX_PAYLOAD)
    frames = Reader(FROM_AGENT).feed(protocol.frame(protocol.STDOUT, payload))
    assert frames == [(protocol.STDOUT, payload)]


@pytest.mark.parametrize("accepted", [FROM_AGENT, FROM_HOST], ids=["host side", "agent side"])
def test_every_unknown_kind_is_refused(accepted: frozenset[int]) -> None:
    for kind in set(range(256)) - accepted:
        with pytest.raises(BadFrame, match=f"kind {kind}"):
            Reader(accepted).feed(protocol.HEADER.pack(kind, 0))


def test_each_side_refuses_its_own_frames() -> None:
    """A guest that echoes the host's orders must not steer the host with them."""
    assert {protocol.DATA, protocol.NET} == FROM_HOST & FROM_AGENT


def test_the_reader_keeps_one_incomplete_frame_at_most() -> None:
    """L5: whatever was complete is handed out, so that memory stays bounded."""
    reader = Reader(FROM_AGENT)
    whole = protocol.frame(protocol.STDOUT, bytes(1000))
    for _ in range(50):
        reader.feed(whole * 20 + whole[:500])
        assert len(reader._buffer) == 500
        reader.feed(whole[500:])
        assert len(reader._buffer) == 0


@given(content=objects)
def test_messages_survive_the_way(content: dict[str, object]) -> None:
    (frame,) = Reader(FROM_HOST).feed(protocol.message(protocol.RUN, content))
    assert frame[0] == protocol.RUN
    assert protocol.unpack(frame[1]) == content


@settings(max_examples=300)
@given(payload=st.binary(max_size=200))
def test_unpack_raises_nothing_but_bad_frame(payload: bytes) -> None:
    try:
        assert isinstance(protocol.unpack(payload), dict)
    except BadFrame:
        pass


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"7",
        b"{",
        b'{"a": 1} trailing',
        b'{"a": ' + b"9" * 100_000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b"\xff\xfe\x00",
        b'{"a": "\xff"}',
        b"\x00" * 64,
        b"{'a': 1}",
    ],
    ids=lambda payload: repr(payload[:12]),
)
def test_what_is_no_json_object_is_a_bad_frame(payload: bytes) -> None:
    with pytest.raises(BadFrame):
        protocol.unpack(payload)


def test_unpack_never_lets_a_number_grow_past_its_text() -> None:
    """1e999 is an infinity, not an endless integer; the receiver refuses what is no small int."""
    assert protocol.unpack(b'{"size": 1e999}') == {"size": float("inf")}
    assert json.loads(json.dumps(protocol.unpack(b'{"a": "\\ud800"}'))) == {"a": "\ud800"}
