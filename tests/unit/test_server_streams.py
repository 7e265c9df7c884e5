"""L6: what code prints, as events: text where it is text, and never another byte."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.client.results import printed
from belljar.kept.events import Printed
from belljar.model import Usage
from belljar.server.budget import Answers
from belljar.server.errors import ApiError
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


def test_f2_of_what_is_looked_up_half_stays_for_other_tenants() -> None:
    async def play() -> None:
        answers = Answers(100, wait_s=0.05)
        ann, eve = Tenant("ann", Quotas()), Tenant("eve", Quotas())
        large = await answers.hold(eve, 1000)  # larger than all there is: alone of its tenant
        with pytest.raises(ApiError, match="waiting to be read"):
            await answers.hold(eve, 1)
        first = await answers.hold(ann, 40)
        large.shrink(30)
        (await answers.hold(eve, 20))()
        large()
        large()
        waiting = asyncio.create_task(answers.hold(ann, 20))
        await asyncio.sleep(0)
        assert not waiting.done()
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
