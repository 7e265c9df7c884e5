"""N1, P2: to whom an attempt belongs, and what happens when it cannot be written down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from belljar.egress.gateway import Gateway
from belljar.egress.ledger import dated
from belljar.errors import NetworkRefused, TrailError
from belljar.model import Request, Result
from belljar.network import Allow, Egress, Rules
from belljar.networking import MOST_TOLD, Outlet
from belljar.settings import Settings
from belljar.trail.entry import Entry

RULES = (Allow("a.example"),)


class Lines:
    """A trail that remembers, or fails."""

    def __init__(self, *, failing: bool = False) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []
        self.failing = failing

    def counted(self, entry: Entry, ended: dict[str, Any]) -> bool:
        return False

    def put(
        self, kind: str, entry: Entry, content: dict[str, Any], *, asked: object = None
    ) -> Awaitable[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lines.append((kind, entry.id, content))
        if self.failing and kind == "egress":
            done.set_exception(TrailError("no room"))
        else:
            done.set_result(None)
        return done


class Way:
    """A lease that notes what is asked of it."""

    def __init__(self) -> None:
        self.changes: list[Rules] = []
        self.begun: list[Egress] = []
        self.closed = 0

    async def change(self, given: Rules) -> None:
        self.changes.append(given)

    async def under_way(self) -> list[Egress]:
        return self.begun

    async def close(self) -> None:
        self.closed += 1


def outlet(entry: Entry) -> tuple[Outlet, Way]:
    settings = Settings(home=Path("unused"))
    found = Outlet(settings, Gateway(settings), RULES, {}, entry, None)
    way = Way()
    found.lease = way  # type: ignore[assignment]
    return found, way


def attempt(number: int = 1) -> Egress:
    return Egress(at=dated(time.time()), host="a.example", port=number, verdict="allowed")


def test_n1_an_attempt_belongs_to_the_run_under_way_and_to_who_is_not_over() -> None:
    async def main() -> None:
        book = Lines()
        parent, branch = (Entry(book, {}, tenant="x", sandbox=n) for n in ("p", "b"))
        out, way = outlet(parent)
        out.share()
        out.belongs(branch)
        out.watch("r1")
        out.tried(attempt(1))
        out.watch("r2")
        out.tried(attempt(2))  # by one of two: nobody can tell which
        first = await out.told("r1", Result(status="ok", exit_code=0))
        out.unwatch("r1")
        await parent.close("closed")
        await asyncio.sleep(0.01)
        out.tried(attempt(3))
        second = await out.told("r2", Result(status="ok", exit_code=0))
        assert [one.port for one in first.egress] == [1, 2]
        assert [one.port for one in second.egress] == [2, 3]
        told = [line[1:] for line in book.lines if line[0] == "egress"]
        assert [(id_, c.get("run", "")) for id_, c in told] == [
            *((parent.id, "r1"), (parent.id, "")),
            (branch.id, "r2"),
        ]
        assert [c["sandbox"] for _, c in told] == ["p", "p", "b"]
        await out.leave()
        assert not way.closed
        await out.leave()
        assert way.closed == 1

    asyncio.run(main())


def test_n1_what_ends_later_belongs_to_the_run_in_which_it_began() -> None:
    async def main() -> None:
        book = Lines()
        out, way = outlet(Entry(book, {}))
        before = attempt(1)
        await asyncio.sleep(0.01)
        out.watch("r1")
        began = attempt(2)
        way.begun = [before, began]
        first = await out.told("r1", Result(status="ok", exit_code=0))
        out.unwatch("r1")
        await asyncio.sleep(0.01)
        out.watch("r2")
        way.begun = []
        for late in (before, began, attempt(3)):
            out.tried(late)
        second = await out.told("r2", Result(status="ok", exit_code=0))
        assert [one.port for one in first.egress] == [2]
        assert [one.port for one in second.egress] == [3]
        runs = [line[2].get("run", "") for line in book.lines if line[0] == "egress"]
        assert runs == ["", "r1", "r2"]

    asyncio.run(main())


def test_n1_what_begins_in_the_last_moment_of_a_run_is_not_dated_after_its_end() -> None:
    for at in (1763293000.0004, 1763293000.0006, 1763293000.9999):
        assert at - 0.001 <= dated(at) <= at


def test_l5_a_result_has_the_first_hundred() -> None:
    async def main() -> None:
        out, _ = outlet(Entry())
        for number in range(1, 1000):
            out.tried(attempt(number))
        assert [one.port for one in out.egress] == list(range(1, MOST_TOLD + 1))
        await out.close()

    asyncio.run(main())


def test_p2_what_cannot_be_written_down_is_cut_and_no_result_is_told() -> None:
    async def main() -> None:
        out, way = outlet(Entry(Lines(failing=True), {}))
        out.watch("r")
        out.tried(attempt())
        with pytest.raises(TrailError):
            await out.told("r", Result(status="ok", exit_code=0))
        await asyncio.sleep(0)
        assert way.changes[-1] == () == out.rules
        later = Result(status="ok", exit_code=1)
        assert await out.told("r2", later) == later, "withheld once, and not for ever"
        out.tried(attempt())
        await asyncio.sleep(0)
        with pytest.raises(TrailError):
            await out.close()
        assert way.closed == 1

    asyncio.run(main())


def test_a_request_never_shows_a_secret() -> None:
    from belljar.network import Secret

    assert "hunter2" not in repr(Request(code="", secrets={"K": Secret("hunter22", host="a.b")}))


def test_n1_a_tenant_has_a_maximum_of_its_own() -> None:
    from pydantic import ValidationError

    from belljar.cli.keys import _changed
    from belljar.server.tenants import Quotas, Tenant

    def ask(allowed: tuple[str, ...] | None, *hosts: str) -> None:
        asked = {"network": [Allow(*hosts)]} if hosts else {}
        Tenant("x", Quotas(network_allowed=allowed)).options(asked, Settings().defaults)

    ask(None, "a.example")
    ask(("*.example.com", ":packages:"), "a.example.com", ":packages:")
    ask(())
    for allowed, host in (
        (("a.example",), "b.example"),
        ((), "a.example"),
        (("a.example",), "*.a.b"),
    ):
        with pytest.raises(NetworkRefused, match="this key's quota"):
            ask(allowed, host)
    with pytest.raises(ValidationError):
        Quotas(network_allowed=("10.0.0.1",))
    assert _changed(None, ["network_allowed=a.example,b.example:443"]).network_allowed == (
        *("a.example",),
        "b.example:443",
    )
    assert _changed(None, ["network_allowed=none"]).network_allowed == ()
    some = Quotas(network_allowed=("a.example",))
    assert _changed(some, ["network_allowed="]).network_allowed is None
