"""S1, S4: what ends while it is used, by whatever door, and what cannot be ended well."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from belljar.errors import EngineError
from belljar.server import sandboxes
from belljar.server.errors import answer
from belljar.server.gate import Visit
from belljar.server.server import Server
from belljar.server.settings import ServerSettings
from belljar.server.steps import Step
from belljar.server.tenants import Quotas, Tenant
from belljar.testing.served import Answer, Served, served

SMALL = {"pool_size": 1, "build_environments": False, "engines": ["jail"]}
FOR_EVER = "import time\nprint('up', flush=True)\nwhile True: time.sleep(0.05)"
BURN = ["sh", "-c", "while :; do :; done"]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(keys=True, sandboxes=SMALL) as server:
        yield server


@pytest.fixture
def later() -> Iterator[Callable[..., Future[Answer]]]:
    with ThreadPoolExecutor(2) as pool:
        yield pool.submit


def make(server: Served, **options: Any) -> str:
    made = server.ask("POST", "/v1/sandboxes", {"environment": "base", **options})
    assert made.status == 200, made
    return f"/v1/sandboxes/{made.json()['id']}"


def wait_for_run(server: Served, path: str) -> None:
    while not server.ask("GET", path).json()["running"]:
        pass


def check(error: dict[str, Any]) -> None:
    assert (error["code"], error["retryable"]) == ("sandbox_ended", False)
    assert "ended during the run: it was closed" in error["message"]


# -- a run whose sandbox ends ----------------------------------------------------------------------


def test_s1_a_run_whose_sandbox_ends_says_so(server: Served, later: Any) -> None:
    path = make(server)
    asking = later(server.ask, "POST", f"{path}/runs", {"code": FOR_EVER})
    wait_for_run(server, path)
    assert server.ask("DELETE", path).status == 200
    answer = asking.result()
    assert answer.status == 410
    check(answer.json()["error"])
    lines = server.ask("GET", "/v1/trail?limit=20").json()["lines"]
    ends = [one["status"] for one in lines if one["attempt"]["action"] == "run"]
    assert ends[0] == "cancelled"


def test_s1_a_run_whose_sandbox_has_no_time_left_says_why(server: Served) -> None:
    answer = server.ask("POST", f"{make(server, lifetime_s=2)}/runs", {"code": FOR_EVER})
    assert answer.status == 410
    error = answer.json()["error"]
    assert (error["code"], error["retryable"]) == ("sandbox_ended", False)
    assert "lived for its 2 s" in error["message"]


def test_s1_an_event_stream_ends_with_why(server: Served) -> None:
    path = make(server)
    headers = {"Authorization": f"Bearer {server.key}", "Accept": "text/event-stream"}
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    body = json.dumps({"code": FOR_EVER})
    connection.request(
        "POST", f"{path}/runs", body, {**headers, "Content-Type": "application/json"}
    )
    response = connection.getresponse()
    assert response.readline().startswith(b"event: ")  # from here on no status can say it
    assert server.ask("DELETE", path).status == 200
    last = response.read().decode().rstrip().split("\n\n")[-1]
    connection.close()
    assert last.startswith("event: error\n")
    check(json.loads(last.partition("data: ")[2])["error"])


def test_s1_a_socket_is_told(server: Served) -> None:
    path, key = make(server), {"Authorization": f"Bearer {server.key}"}
    url = f"{server.url.replace('http', 'ws')}{path}/socket"
    with connect(url, additional_headers=key, proxy=None) as socket:
        socket.send(json.dumps({"type": "run", "id": "a", "code": FOR_EVER}))
        wait_for_run(server, path)
        assert server.ask("DELETE", path).status == 200
        while (message := json.loads(socket.recv(timeout=60)))["type"] != "error":
            pass
    assert message["id"] == "a"
    check(message["error"])


def test_a4_a_session_outlives_a_sandbox_that_ends_during_a_run(server: Served, later: Any) -> None:
    who = {"name": "raw", "version": "0"}
    headers = {"Accept": "application/json, text/event-stream"}
    hello = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": who}

    def say(method: str, params: Any, number: int) -> Answer:
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        return server.ask("POST", "/mcp", message, headers=headers)

    def call(number: int, tool: str, **arguments: Any) -> str:
        answer = say("tools/call", {"name": tool, "arguments": arguments}, number)
        assert answer.status == 200, answer
        return answer.content.decode()

    headers["Mcp-Session-Id"] = say("initialize", hello, 1).headers["mcp-session-id"]
    name = re.search(r"box-\w+", call(2, "open_sandbox", environment="base"))
    assert name
    listed = server.ask("GET", "/v1/sandboxes").json()["sandboxes"]
    path = f"/v1/sandboxes/{listed[-1]['id']}"
    asking = later(call, 3, "run_in_sandbox", sandbox_id=name[0], code=FOR_EVER)
    wait_for_run(server, path)
    assert server.ask("DELETE", path).status == 200
    told = asking.result()
    assert "ended during the run" in told and '"isError":true' in told.replace(" ", "")
    assert "still here" in call(4, "run_code", code="print('still here')")


# -- a sandbox that cannot be looked at, or not be ended well --------------------------------------


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[tuple[asyncio.Runner, Server]]:
    sandboxes = {"home": str(tmp_path), "pool_size": 0, "engines": ["jail"]}
    with asyncio.Runner() as runner:

        async def made() -> Server:
            return Server(ServerSettings(sandboxes=sandboxes))

        server = runner.run(made())
        yield runner, server
        runner.run(server.stop())


def broken(*_: object) -> Any:
    raise EngineError("the container was lost while its code ran")


@pytest.mark.usefixtures("cgroups_of_ours")
def test_f2_one_lost_wall_stops_nobody_elses_account(
    inside: tuple[asyncio.Runner, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, server = inside
    monkeypatch.setattr(sandboxes, "WATCH_S", 0.05)

    async def play() -> None:
        unlucky, other = (Tenant(name, Quotas(cpu_s_per_day=1000)) for name in ("a", "b"))
        lost = await server.book.make(unlucky, {"environment": "base"}, datasets={})
        good = await server.book.make(other, {"environment": "base"}, datasets={})
        assert lost.box._held and good.box.cpu_ms() is not None
        monkeypatch.setattr(lost.box._held.conversation.wall, "look", broken)
        assert lost.count_cpu() == 0.0
        await asyncio.sleep(0.3)
        await good.box.start(BURN)
        while other.cpu_s() < 0.2:  # for ever, if nobody counts
            await asyncio.sleep(0.05)
        monkeypatch.setattr(lost, "count_cpu", broken)  # whatever else may go wrong with one
        seen = other.cpu_s()
        while other.cpu_s() < seen + 0.2:
            await asyncio.sleep(0.05)
        await lost.box.close()
        assert not lost.stands and [one.id for one in server.book.everybodys()] == [good.id]

    runner.run(asyncio.wait_for(play(), 60))


@pytest.mark.parametrize("what", ["count", "wall", "both"])
def test_s1_what_cannot_be_ended_well_is_put_away_all_the_same(
    inside: tuple[asyncio.Runner, Server], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    runner, server = inside

    async def play() -> None:
        tenant = Tenant("a", Quotas(sandboxes=1, memory_bytes=600 << 20))
        options = {"environment": "base", "memory_bytes": 512 << 20}
        for _ in range(2):  # the second finds room
            owned = await server.book.make(tenant, options, datasets={})
            held = owned.box._held
            assert held
            destroy = held.conversation.destroy

            async def fails(destroy: Any = destroy) -> None:
                await destroy()
                broken()

            if what in ("count", "both"):
                monkeypatch.setattr(owned.box, "before_end", broken)
            if what in ("wall", "both"):
                monkeypatch.setattr(held.conversation, "destroy", fails)
            with pytest.raises(EngineError, match="was lost"):
                await owned.box.close()
            assert held.conversation.lost and held.life.over
            assert not server.book.everybodys() and not owned.stands

    runner.run(asyncio.wait_for(play(), 60))


@pytest.mark.parametrize("when", ["before", "during"])
def test_s1_a_wall_that_is_lost_during_a_run_is_no_reason_to_run_it_twice(
    inside: tuple[asyncio.Runner, Server], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    runner, server = inside

    async def play() -> None:
        tenant = Tenant("a", Quotas())
        owned = await server.book.make(tenant, {"environment": "base"}, datasets={})
        assert owned.box._held
        wall = owned.box._held.conversation.wall
        if when == "before":
            monkeypatch.setattr(wall, "look", broken)
        visit = Visit(request_id="1", tenant=tenant)
        step = Step(server, visit, owned, FOR_EVER, tell=False)
        if when == "during":
            while not owned.box.running:
                await asyncio.sleep(0.01)
            monkeypatch.setattr(wall, "look", broken)
            wall.kill()
        await asyncio.wait((step._work,))
        error = step._work.exception()
        assert isinstance(error, EngineError)
        told = json.loads(bytes(answer(error, ran=visit.ran).body))["error"]
        assert told["retryable"] is (when == "before")

    runner.run(asyncio.wait_for(play(), 60))
