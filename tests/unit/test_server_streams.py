"""L6: what code prints, as events: text where it is text, and never another byte."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.client.results import printed
from belljar.kept.events import Printed
from belljar.model import OutputFile, Result, Usage
from belljar.server import running
from belljar.server.routes.runs import MOST_PIECES, Ahead
from belljar.server.streams import Teller


def told(pieces: list[bytes]) -> list[dict[str, str]]:
    teller = Teller()
    events = [one for piece in pieces for one in teller.tell(Printed(stream="stdout", data=piece))]
    return [said for _, said in (*events, *teller.rest())]


def test_l6_what_waits_for_a_client_is_bounded_in_pieces_and_lacks_nothing() -> None:
    ahead = Ahead()
    for number in range(20_000):
        ahead.on_output(("stdout", "stderr")[number % 2], b"%d," % number)
        ahead.on_usage(Usage(cpu_ms=float(number)))
    said: dict[str, str] = {"stdout": "", "stderr": ""}
    taken = []
    while ahead:
        taken.append(ahead.take().decode())
        name, data = taken[-1].strip().split("\n")
        if name == "event: output":
            piece = json.loads(data.removeprefix("data: "))
            said[piece["stream"]] += piece["text"]
    assert len(taken) < 2 * MOST_PIECES and '"cpu_ms": 19999.0' in taken[-1]
    for rest, text in enumerate(said.values()):
        assert text == "".join(f"{number}," for number in range(rest, 20_000, 2))


@pytest.mark.parametrize(
    ("fields", "beside"),
    [
        ({"stdout": "x"}, False),
        ({"stdout": "x" * (1 << 21)}, True),
        ({"files": (OutputFile(path="/x", size=1, content=bytes(1 << 21)),)}, True),
    ],
)
def test_f2_large_results_become_json_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], beside: bool
) -> None:
    where: list[int] = []
    monkeypatch.setattr(Result, "to_json", lambda _: where.append(threading.get_ident()) or "{}")
    result = Result(status="ok", exit_code=0, **fields)
    assert asyncio.run(running.json_of(result)) == b"{}"
    assert (where[0] != threading.get_ident()) is beside


@given(st.lists(st.binary(max_size=8), max_size=8))
def test_l6_any_bytes_in_any_pieces_arrive_as_they_are(pieces: list[bytes]) -> None:
    assert b"".join(map(printed, told(pieces))) == b"".join(pieces)


@given(st.text(), st.lists(st.integers(0, 40), max_size=5))
def test_l6_text_stays_text_wherever_it_is_cut(text: str, cuts: list[int]) -> None:
    data = text.encode("utf-8", "ignore")
    places = [0, *sorted(cuts), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(places)]
    assert all("text" in said for said in told(pieces))
