"""A soak sees what an answer says, and what is left on the machine: each is seen noticing."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from soak import machine
from soak.jobs import say
from soak.machine import Traces
from soak.place import Tenant
from soak.record import Op, Record
from soak.soaking import leaks
from soak.talk import Disturbed, Talk

TENANTS = {name: Tenant(name, f"key-{name}", f"secret-of-{name}") for name in ("alice", "bob")}
OK: dict[str, Any] = {"status": "ok", "success": True, "exit_code": 0, "execution_id": "1"}


def asked(answer: Callable[[httpx.Request, str], httpx.Response]) -> tuple[Op, Record, str]:
    """One run of alice's, whose token is to be printed; and a token of bob's."""
    record = Record(seed=1, epoch=0.0)
    place: Any = SimpleNamespace(url="http://soak", tenants=TENANTS)

    async def ask() -> str:
        bobs = ""

        def transport(request: httpx.Request) -> httpx.Response:
            return answer(request, bobs)

        async with httpx.AsyncClient(transport=httpx.MockTransport(transport)) as http:
            bobs = Talk("bob", place, record, http, time.monotonic).token()
            talk = Talk("alice", place, record, http, time.monotonic)
            token = talk.token()
            try:
                await talk.ask(
                    "print", "POST", "/v1/runs", {"code": ""}, token=token, judge=say(f"{token}\n")
                )
            except Disturbed:
                pass
        return bobs

    bobs = asyncio.run(ask())
    return record.ops[0], record, bobs


def told(request: httpx.Request, **more: Any) -> httpx.Response:
    """A good result that prints the token of its request, but for what is given."""
    printed = {"stdout": request.headers["X-Request-ID"] + "\n"}
    return httpx.Response(200, json=OK | printed | more)


def test_a_right_answer_is_right() -> None:
    op, record, _ = asked(lambda request, _: told(request))
    assert (op.outcome, op.execution_id, record.seen) == ("right", "1", [])


def test_an_answer_without_its_token_is_wrong() -> None:
    op, _, _ = asked(lambda request, _: told(request, stdout="something else\n"))
    assert op.outcome == "wrong"


def test_another_tenants_token_is_noticed() -> None:
    op, record, bobs = asked(lambda request, bobs: told(request, stderr=bobs))
    assert op.outcome == "right" and len(record.seen) == 1
    assert "bob's" in record.seen[0] and bobs in record.seen[0]


@pytest.mark.parametrize("before", ["", "x", "xx"])
def test_a_secret_is_noticed_in_base64_wherever_it_begins(before: str) -> None:
    hidden = base64.b64encode(f"{before}secret-of-bob".encode()).decode()
    _, record, _ = asked(lambda request, _: told(request, stderr=hidden))
    assert record.seen and "bob's secret" in record.seen[0]


def test_errors_have_one_shape() -> None:
    good = {"code": "overloaded", "message": "no", "hint": "", "retryable": True}
    op, _, _ = asked(lambda *_: httpx.Response(503, json={"error": good}))
    assert (op.outcome, op.code, op.retryable) == ("refused", "overloaded", True)
    op, _, _ = asked(lambda *_: httpx.Response(500, text="Internal Server Error"))
    assert op.outcome == "wrong"


def test_no_answer_is_told_as_that() -> None:
    def broken(*_: Any) -> httpx.Response:
        raise httpx.ReadError("reset")

    op, _, _ = asked(broken)
    assert op.outcome == "broken" and "reset" in op.why


def made(folder: Path) -> Any:
    """A place as far as the machine is looked at."""
    where = SimpleNamespace(folder=folder, tenants=TENANTS, pid=os.getpid())
    for name in ("home", "disk", "tmp"):
        (folder / name).mkdir()
    where.home, where.disk, where.temporary = (folder / name for name in ("home", "disk", "tmp"))
    return where


def test_a_secret_in_a_file_is_found(tmp_path: Path) -> None:
    where = made(tmp_path)
    (tmp_path / "home" / "log").write_text(json.dumps({"event": "fine"}))
    assert leaks(where) == []
    (tmp_path / "disk" / "trail.db").write_bytes(b"\0" + b"secret-of-alice".hex().encode())
    assert leaks(where) == ["disk/trail.db"]


def test_what_is_left_is_found(tmp_path: Path) -> None:
    where = made(tmp_path)
    traces = Traces(where)
    assert traces.left({where.pid}) == []
    (where.temporary / "x").touch()
    (where.home / "server" / "datasets" / ".half").mkdir(parents=True)
    (where.disk / "trail.db-owners").mkdir()
    (where.disk / "trail.db-owners" / "1").touch()
    names = " ".join(traces.left({where.pid}))
    assert "tmp" not in names and all(name in names for name in ("x", ".half", "owners/1"))


def test_processes_are_known_by_their_beginning() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        known = machine.family(os.getpid())
        assert child.pid in {one.pid for one in known}
        assert child.pid in {one.pid for one in machine.alive(known)}
    finally:
        child.kill()
        child.wait()
    assert child.pid not in {one.pid for one in machine.alive(known)}
