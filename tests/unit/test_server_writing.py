"""F2: JSON that is written piece by piece is the JSON that it would be at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import Busy, Closed, EngineError, NetworkUnavailable, TrailError
from belljar.model import Output, OutputFile, Result
from belljar.server import running, writing
from belljar.server.errors import ApiError, answer
from belljar.server.gate import Visit
from belljar.server.tenants import OutOfCpu
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


def test_f5_nothing_that_may_be_large_is_written_at_once() -> None:
    """The rest of what is written as JSON here is short, whatever a tenant or its code chose."""
    top = Path(writing.__file__).parent
    users = {
        str(path.relative_to(top))
        for path in top.rglob("*.py")
        if re.search(
            r"\bjson\.dumps\(|JSONResponse|\bto_json\(|model_dump_json\(", path.read_text()
        )
    }
    assert users == {
        "datasets.py",  # a file, beside the loop
        "describing_inside.py",  # in a sandbox
        "errors.py",
        "openapi.py",  # once, before the server starts
        "routes/files.py",  # one entry
        "routes/health.py",
        "routes/runs.py",  # 64 KiB of what was printed
        "state.py",  # quotas, by an operator
        "writing.py",
    }


@pytest.mark.parametrize(
    "error",
    [
        ApiError("overloaded", "no room", retry_after_s=5),
        ApiError("queue_timeout", "busy"),
        Closed("closed"),
        Busy("busy"),
        EngineError("broke"),
        TrailError("full"),
        NetworkUnavailable("hung"),
        RuntimeError("a fault of ours"),
    ],
    ids=repr,
)
def test_f2_what_has_run_is_never_to_be_tried_again(error: Exception) -> None:
    assert json.loads(bytes(answer(error, ran=False).body))["error"]["retryable"]
    told = answer(error, ran=True)
    said = json.loads(bytes(told.body))["error"]
    assert (told.status_code, said["retryable"]) == (500, False)
    assert said["message"].startswith("the code ran") and "retry-after" not in told.headers


def test_f2_a_run_that_was_ended_for_its_cpu_seconds_is_not_to_be_tried_again() -> None:
    assert OutOfCpu(5, 0.0).retryable
    told = answer(OutOfCpu(5, 0.0, meanwhile=True), ran=False)
    assert told.status_code == 429 and "retry-after" not in told.headers
    assert not json.loads(bytes(told.body))["error"]["retryable"]


def test_f2_of_what_broke_off_unforeseen_nobody_knows_how_far_it_came() -> None:
    for error, ran in (
        (None, True),
        (RuntimeError(), True),
        (asyncio.CancelledError(), True),
        (Closed("x"), True),
        (EngineError("not made"), False),
        (ApiError("quota_exceeded", "x"), False),
    ):
        visit = Visit(request_id="")
        with contextlib.suppress(BaseException), running.code_runs(visit):
            if error:
                raise error
        assert visit.ran == ran, error
