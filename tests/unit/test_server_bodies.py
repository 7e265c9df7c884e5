"""What a body may consist of is found out before it is parsed, in time that its length bounds."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.server.bodies import parse
from belljar.server.errors import ApiError
from belljar.server.strict_json import DEEPEST, MOST_PIECES

DEEP = b"[" * (DEEPEST + 1)
JSON = st.recursive(
    st.none() | st.integers() | st.text(alphabet='[]{},:"\\a'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='[{"\\,:'), inner),
    max_leaves=20,
)


@pytest.mark.parametrize(
    "rest",
    [b'"' + b'\\"' * (8 << 20), b'"' * (16 << 20), b'"\\a' * (5 << 20), b"]" * (16 << 20)],
    ids=["unfinished string", "quotes", "half strings", "closing brackets"],
)
def test_a_hostile_shape_takes_no_more_time_than_its_length(rest: bytes) -> None:
    """CPU time, with a bound that a step back per byte exceeds a thousand times."""
    began = time.thread_time()
    with pytest.raises(ApiError) as refusal:
        parse(b"[" * DEEPEST + b"[]" + rest)
    assert refusal.value.code == "invalid_request"
    assert time.thread_time() - began < 1


@settings(max_examples=25)
@given(JSON)
def test_marks_in_strings_are_text(value: object) -> None:
    marks = '[{,:\\"' * (MOST_PIECES // 4)
    assert parse(json.dumps([value, marks]).encode()) == [value, marks]


def test_depth_and_pieces_are_counted_outside_of_strings() -> None:
    text = b'"\\"[[[\\\\"'
    assert parse(b"[" * DEEPEST + text + b"]" * DEEPEST)
    assert len(parse(b"[" + b'"a",' * (MOST_PIECES - 2) + b'"a"]')) == MOST_PIECES - 1
    for body, why in (
        (DEEP + text + b"]" * (DEEPEST + 1), "nested"),
        (text + DEEP, "nested"),
        (b"[" + b'"a",' * MOST_PIECES + b'"a"]', "brackets"),
        (b"[" + b"1," * MOST_PIECES + b"1]", "brackets"),
    ):
        with pytest.raises(ApiError, match=why):
            parse(body)


@pytest.mark.parametrize(
    "body",
    [
        rb'"\ud800"',
        rb'{"\udfff": 1}',
        rb'[{"a": {"b": ["x", "\uD83Dx"]}}]',
        rb'{"a": "\ude00\ud83d"}',
    ],
)
def test_half_a_surrogate_pair_is_no_text(body: bytes) -> None:
    with pytest.raises(ApiError, match="surrogate"):
        parse(body)


def test_whole_pairs_and_what_looks_like_one_are_text() -> None:
    assert parse(rb'{"\ud83d\ude00": "\\ud800", "a": ["\uD83D\uDE00\\udfff"]}') == {
        "\U0001f600": "\\ud800",
        "a": ["\U0001f600\\udfff"],
    }
