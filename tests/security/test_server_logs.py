"""What the log, the metrics and the trail never say, at the level that says most.

A mark in every place where a client can put something, by every door."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from belljar.testing.served import Answer, Served, served

PLENTY_S = 60.0
MARK = "BLJMARK"
WORDS = {"type": "start", "program": ["sh", "-c", f"cat; echo {MARK}out $A"], "env": {"A": MARK}}
MCP = {"Accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(
        keys=True,
        log_level="debug",
        sandboxes={"pool_size": 1, "build_environments": False, "engines": ["jail"]},
    ) as server:
        yield server


def everything(server: Served) -> dict[str, str]:
    return {
        "log": server.log.read_text(),
        "metrics": server.ask("GET", "/metrics").content.decode(),
        "trail": server.ask("GET", "/v1/trail?limit=100").content.decode(),
    }


def over_http(server: Served) -> None:
    run: dict[str, Any] = {
        "code": f"import sys, os; print('{MARK}', sys.stdin.read(), os.environ['A'])",
        "env": {"A": MARK},
        "stdin": MARK,
        "files": {"a.txt": MARK},
        "inputs": {"b.txt": MARK},
    }
    assert MARK in server.ask("POST", "/v1/runs", run).json()["stdout"]
    events = server.ask("POST", "/v1/runs", run, headers={"Accept": "text/event-stream"})
    assert MARK.encode() in events.content
    assert server.ask("POST", "/v1/runs", {**run, "env": {MARK: 5}}).status == 400
    assert server.ask("POST", "/v1/runs", f'{{"code": {MARK}'.encode()).status == 400
    cookie = {"Cookie": f"belljar={MARK}", "User-Agent": MARK, "Referer": f"http://x/{MARK}"}
    assert server.ask("GET", f"/v1/usage?token={MARK}", headers=cookie).status < 500
    assert server.ask("GET", "/v1/usage", key=f"blj_{MARK}_{MARK}").status == 401


def over_a_socket(server: Served, sandbox: str) -> None:
    url = server.url.replace("http", "ws") + f"/v1/sandboxes/{sandbox}/socket?token={MARK}"
    headers = {"Authorization": f"Bearer {server.key}", "Cookie": f"belljar={MARK}"}
    with connect(url, additional_headers=headers, open_timeout=PLENTY_S) as socket:
        socket.send(json.dumps({"type": "run", "code": f"print('{MARK}')"}))
        while json.loads(socket.recv(PLENTY_S))["type"] != "end":
            pass
        for text in (json.dumps(WORDS), f"{{{MARK}", json.dumps({"type": MARK})):
            socket.send(text)
            socket.recv(PLENTY_S)
    with pytest.raises(InvalidStatus):
        connect(url, additional_headers={"Authorization": f"Bearer {MARK}"}, open_timeout=PLENTY_S)


def over_mcp(server: Served) -> None:
    headers = dict(MCP)

    def call(method: str, params: Any, **more: Any) -> Answer:
        asked = {"jsonrpc": "2.0", "method": method, "params": params, **more}
        return server.ask("POST", "/mcp", asked, headers=headers)

    who = {"name": MARK, "version": MARK}
    hello = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": who}
    wrong: list[Any] = [MARK, {"name": MARK}, {"name": "run_code", "arguments": MARK}]
    wrong += [{"name": "run_code", "arguments": {"code": "1", MARK: 1}}]
    wrong += [{"name": "run_code", "arguments": {"code": [MARK]}}]
    for _ in range(2):  # without a session, then in one
        for params in wrong:
            call("tools/call", params, id=1)
        call(f"notifications/{MARK}", {"a": MARK})
        call("notifications/cancelled", {"requestId": [MARK]})
        call("notifications/progress", {"x": MARK})
        call("tools/list", {}, id={"a": MARK})
        call("initialize", {**hello, "clientInfo": {"name": 5, "x": MARK}}, id=1)
        session = call("initialize", hello, id=1).headers["mcp-session-id"]
        headers["mcp-session-id"] = session
        call("notifications/initialized", {})
        run = {"name": "run_code", "arguments": {"code": f"print('{MARK}')"}}
        assert MARK.encode() in call("tools/call", run, id=2).content
    server.ask("POST", "/mcp", [MARK], headers={**MCP, "mcp-session-id": MARK})
    server.ask("POST", "/mcp", MARK.encode(), headers=MCP)
    server.ask("DELETE", "/mcp", headers={**MCP, "mcp-session-id": MARK})


def test_no_clients_words_are_written_down(server: Served) -> None:
    box = server.ask("POST", "/v1/sandboxes", {"files": {"c.txt": MARK}, "env": {"A": MARK}})
    assert box.status < 300, box
    over_http(server)
    over_a_socket(server, box.json()["id"])
    over_mcp(server)
    server.ask("DELETE", f"/v1/sandboxes/{box.json()['id']}")
    found = everything(server)
    deadline = time.monotonic() + PLENTY_S
    while '"DELETE"' not in found["log"]:  # a line follows its answer
        assert time.monotonic() < deadline
        found = everything(server)
    for where, text in found.items():
        lines = [line for line in text.splitlines() if MARK in line or server.key in line]
        assert not lines, (where, lines[:5])


def test_our_own_events_are_still_there(server: Served) -> None:
    server.ask("GET", "/health", headers={"X-Request-ID": "seen-in-the-log"})
    deadline = time.monotonic() + PLENTY_S
    while "seen-in-the-log" not in server.log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
