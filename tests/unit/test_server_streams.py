"""L6: what code prints, as events: text where it is text, and never another byte."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.client.results import printed
from belljar.kept.events import Printed
from belljar.model import OutputFile, Result, Usage
from belljar.server import running, streams
from belljar.server.budget import Answers
from belljar.server.errors import ApiError
from belljar.server.gate import Visit
from belljar.server.routes.runs import MOST_PIECES, Ahead
from belljar.server.streams import Teller
from belljar.server.tenants import Quotas, Tenant


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
    """Of runs, and as the last event of kept sandboxes' runs and programs; counted while held."""
    where: list[int] = []
    monkeypatch.setattr(Result, "to_dict", lambda _: where.append(threading.get_ident()) or {})
    result = Result(status="ok", exit_code=0, **fields)

    async def play() -> None:
        server: Any = SimpleNamespace(answers=Answers(1 << 30, wait_s=5))
        visit = Visit(request_id="", tenant=Tenant("x", Quotas()))
        assert await running.json_of(server, visit, result, Result.to_dict) == b"{}"
        async with streams.text_of(server, visit, result, type="end") as text:
            assert text == b'{"type": "end"}'
        assert len(visit.after) == (2 if beside else 0)
        assert server.answers.held_bytes == (len('{}{"type": "end"}') if beside else 0)
        for give_back in visit.after:
            give_back()
        assert server.answers.held_bytes == 0

    asyncio.run(play())
    assert [one != threading.get_ident() for one in where] == [beside] * 2


def test_f2_answers_that_nobody_reads_keep_others_waiting_and_then_they_are_told() -> None:
    async def play() -> None:
        answers = Answers(100, wait_s=0.05)
        ann, eve = Tenant("ann", Quotas()), Tenant("eve", Quotas())
        alone = await answers.hold(eve, 1000)  # larger than all there is: as the only one
        with pytest.raises(ApiError, match="the code has run"):
            await answers.hold(ann, 1)
        alone.shrink(50)
        first = await answers.hold(ann, 40)
        with pytest.raises(ApiError):
            await answers.hold(eve, 1)  # of one tenant half of it
        alone()
        alone()
        waiting = asyncio.create_task(answers.hold(ann, 20))
        await asyncio.sleep(0)
        first()
        (await waiting)()
        assert answers.held_bytes == 0

    asyncio.run(play())


@given(st.lists(st.binary(max_size=8), max_size=8))
def test_l6_any_bytes_in_any_pieces_arrive_as_they_are(pieces: list[bytes]) -> None:
    assert b"".join(map(printed, told(pieces))) == b"".join(pieces)


@given(st.text(), st.lists(st.integers(0, 40), max_size=5))
def test_l6_text_stays_text_wherever_it_is_cut(text: str, cuts: list[int]) -> None:
    data = text.encode("utf-8", "ignore")
    places = [0, *sorted(cuts), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(places)]
    assert all("text" in said for said in told(pieces))
