"""F2: what a tenant's code and slowness can make the server hold is bounded, and told."""

from __future__ import annotations

import json
import re
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from belljar.testing.served import Served, served

MIB = 1 << 20
PLENTY_S = 60.0
LOUD = "yes 0123456789abcdef | head -c 50000000; exec sleep 600"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(
        keys=True,
        held_bytes=160 * MIB,
        send_timeout_s=1.0,
        queue_wait_s=2.0,
        sandboxes={"pool_size": 1, "build_environments": False, "engines": ["jail"]},
    ) as server:
        yield server
        looked = Path(f"/proc/{server.process.pid}/status").read_text()
        peak_kib = int(re.search(r"VmHWM:\s+(\d+)", looked)[1])  # type: ignore[index]
        assert peak_kib < 700 * 1024, "it held more than it was allowed to"


def until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PLENTY_S
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_f2_what_programs_may_print_is_counted_before_they_start(server: Served) -> None:
    """32 programs of one sandbox were 2 GB: each may print 8 MiB twice, held in three shapes."""
    asked = {"environment": "base", "output_bytes": 8 * MIB, "idle_s": 600}
    box = f"/v1/sandboxes/{server.ask('POST', '/v1/sandboxes', asked).json()['id']}"
    program = {"program": LOUD, "shell": True}
    begun = []
    while (answer := server.ask("POST", f"{box}/processes", program)).status == 200:
        begun.append(answer.json()["process_id"])
    assert len(begun) == 3, "48 MiB each, of 160"
    error = answer.json()["error"]
    assert (answer.status, error["code"]) == (429, "quota_exceeded")
    assert "may print" in error["message"] and "output_bytes" in error["hint"]
    assert error["retryable"] and answer.headers["Retry-After"]
    # A run has its room, or waits for it and is told: 96 MiB are not left.
    large = {"code": "print(1)", "output_bytes": 8 * MIB, "result_bytes": 64 * MIB}
    answer = server.ask("POST", "/v1/runs", large)
    assert (answer.status, answer.json()["error"]["code"]) == (429, "queue_timeout")
    small = {"code": "print(1)", "output_bytes": 4096, "result_bytes": 4096}
    assert server.ask("POST", "/v1/runs", small).json()["stdout"] == "1\n"
    # Who is above the operator's maximum is told so at once.
    beyond = server.ask("POST", "/v1/runs", {"code": "1", "result_bytes": 1 << 40})
    assert (beyond.status, beyond.json()["error"]["code"]) == (400, "limit_exceeded")
    # What ended holds what it printed; a sandbox that ends holds nothing.
    server.ask("POST", f"{box}/processes/{begun[0]}/signal", {})
    until(lambda: not server.ask("GET", f"{box}/processes/{begun[0]}").json()["running"])
    assert server.ask("DELETE", box).status == 200
    assert server.ask("POST", "/v1/runs", large).json()["stdout"] == "1\n"


def test_f2_large_answers_of_many_come_one_after_the_other(server: Served) -> None:
    """48 MiB of JSON out of 8 MiB that it escapes, several at once: nobody fails, all is read."""
    code = r"import sys; sys.stdout.write('\x01' * (8 << 20))"
    body = {"code": code, "output_bytes": 8 * MIB, "result_bytes": 0}
    answers = [server.ask("POST", "/v1/runs", body) for _ in range(2)]
    assert [len(answer.json()["stdout"]) for answer in answers] == [8 * MIB] * 2


def never_reads(server: Served, request: bytes, *, then: bytes = b"") -> None:
    """Asks a few times and takes no answer, until the server has had enough of it."""
    connection = socket.socket()
    # So that the kernel takes little for it, and the rest stays with the server.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    host, _, port = server.url.removeprefix("http://").partition(":")
    with connection:
        connection.connect((host, int(port)))
        if then:
            connection.sendall(request)
            assert b" 101 " in connection.recv(64)
            connection.sendall(then)
        else:
            connection.sendall(request * 6)  # with more ahead it would be cut off for that
        ended = select.poll()
        ended.register(connection, select.POLLHUP)
        assert ended.poll(PLENTY_S * 1000), "it may stay for ever"


@pytest.mark.parametrize("path", ["/openapi.json", "/mcp", "/v1/runs"])
def test_f2_who_does_not_read_is_cut_off(server: Served, path: str) -> None:
    body: Any = None
    lines = ["Host: localhost", f"Authorization: Bearer {server.key}"]
    if path == "/mcp":
        lines.append("Accept: application/json, text/event-stream")
        # Long in bytes: the kernel takes some of an answer, and that is nobody's memory here.
        wide = "'\\U0001f600' * 10000"
        given = {"code": f"import sys\nprint({wide})\nprint({wide}, file=sys.stderr)"}
        tool = {"name": "run_code", "arguments": given}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": tool}
        lines.append(f"Mcp-Session-Id: {session(server)}")
    elif path == "/v1/runs":
        body = {"code": "print('x' * 4000000)", "output_bytes": 8 * MIB}
    content = json.dumps(body).encode() if body else b""
    lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    lines.insert(0, f"{'POST' if body else 'GET'} {path} HTTP/1.1")
    never_reads(server, "\r\n".join(lines).encode() + b"\r\n\r\n" + content)
    until(lambda: server.ask("GET", "/v1/usage").json()["running"] == 0)
    assert server.execute("print(6 * 7)").json()["output"] == "42\n"


def test_f2_a_socket_that_nobody_reads_is_cut_off(server: Served) -> None:
    made = server.ask("POST", "/v1/sandboxes", {"environment": "base", "output_bytes": 8 * MIB})
    box = f"/v1/sandboxes/{made.json()['id']}"
    lines = [
        f"GET {box}/socket HTTP/1.1",
        *("Host: localhost", f"Authorization: Bearer {server.key}"),
        *("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    ]
    message = json.dumps({"type": "run", "code": "print('x' * 4000000)"}).encode()
    frame = bytes((0x81, 0x80 | len(message), 0, 0, 0, 0)) + message  # masked with zeros
    never_reads(server, "\r\n".join(lines).encode() + b"\r\n\r\n", then=frame)
    until(lambda: server.ask("GET", "/v1/usage").json()["running"] == 0)
    assert server.ask("POST", f"{box}/runs", {"code": "6 * 7"}).json()["value"] == "42"
    assert server.ask("DELETE", box).status == 200


def session(server: Served) -> str:
    who = {"name": "raw", "version": "0"}
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": who}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    accept = {"Accept": "application/json, text/event-stream"}
    found: str = server.ask("POST", "/mcp", hello, headers=accept).headers["mcp-session-id"]
    return found
