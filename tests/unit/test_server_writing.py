"""F2: JSON that is written piece by piece is the JSON that it would be at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.model import Output, OutputFile, Result
from belljar.server import writing
from belljar.server.writing import SMALL, Base64, Turns, in_turn, pieces, write

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
LONG = "\x01é\U0001f600\ud800" * SMALL


@given(VALUES)
def test_any_value_is_written_as_json_writes_it(value: Any) -> None:
    assert b"".join(pieces(value)) == json.dumps(value).encode()
    assert write(value) == json.dumps(value).encode()


@pytest.mark.parametrize(
    "value",
    [
        LONG,
        {"a": LONG, "b": [LONG, {"c": LONG}], "d": 1},
        [{"n": number, "t": "x" * 100} for number in range(5000)],
        {"x" * 100 + str(number): None for number in range(2000)},
        [[]] * 30_000,
    ],
)
def test_what_is_large_comes_in_pieces_that_are_small(value: Any) -> None:
    written = write(value)
    assert isinstance(written, Iterator)
    found = list(written)
    assert b"".join(found) == json.dumps(value).encode()
    assert len(found) > 1 and max(map(len, found)) <= 14 * SMALL


@pytest.mark.parametrize("size", [0, 1, 1000, 200_000, 200_001])
def test_results_are_written_as_they_describe_themselves(size: int) -> None:
    result = Result(
        status="ok",
        exit_code=0,
        stdout="é" * size,
        files=(OutputFile(path="/x", size=size, content=bytes(size)),),
        outputs=(Output(kind="shown", data={"image/png": b"\x89" * size, "text/plain": "x"}),),
    )
    written = write(writing.of(result))
    assert isinstance(written, bytes) == (size <= 1000)
    content = written if isinstance(written, bytes) else b"".join(written)
    assert json.loads(content) == result.to_dict()


def test_an_iterator_is_a_list_that_is_asked_as_it_is_read() -> None:
    asked = []

    def found() -> Iterator[str]:
        for number in range(100):
            asked.append(number)
            yield "x" * SMALL

    written = write({"found": found()})
    assert not isinstance(written, bytes)
    next(written)
    assert len(asked) < 10
    assert write({"found": iter(())}) == b'{"found": []}'
    assert write({"found": iter([1, Base64(b"x")])}) == b'{"found": [1, "eA=="]}'


def test_of_one_tenant_one_piece_is_written_in_a_step_of_the_loop() -> None:
    """However many it reads at once, and however fast."""
    wrote: list[int] = []

    async def play() -> list[int]:
        turns, step = Turns(), 0

        def counted() -> Iterator[bytes]:
            for _ in range(20):
                wrote.append(step)
                yield b"x"

        async def read() -> None:
            async for _ in in_turn(counted(), turns.of("eve")):
                pass

        reading = [asyncio.create_task(read()) for _ in range(10)]
        while not all(one.done() for one in reading):
            step += 1
            await asyncio.sleep(0)
        return wrote

    found = asyncio.run(play())
    assert len(found) == 200 and len(set(found)) >= 190
