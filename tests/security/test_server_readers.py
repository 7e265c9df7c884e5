"""F2: clients that read slowly. What is kept for one tenant's answer is no refusal of another's.

Nobody is told to run again what has run. A real server, real requests."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from websockets.sync.client import connect

from belljar.testing.served import Served, served

MIB = 1 << 20
PLENTY_S = 60.0
LARGE = """
import os
for stream in (1, 2):
    os.write(stream, b"\\x01" * (4 << 20))
open("f", "wb").write(os.urandom(30 << 20))
"""
ASKED = {"output_bytes": 4 * MIB, "result_bytes": 32 * MIB, "disk_bytes": 100 * MIB}


def until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PLENTY_S
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(
        keys=True,
        held_bytes=256 * MIB,
        queue_wait_s=2.0,
        send_timeout_s=5.0,
        sandboxes={"pool_size": 1, "engines": ["jail"], "build_environments": False},
    ) as server:
        yield server


@pytest.fixture(scope="module")
def hostile(server: Served) -> str:
    key = server.belljar("keys", "add", "hostile").strip()
    until(lambda: server.ask("GET", "/v1/usage", key=key).status == 200)
    return key


class Slow:
    """Reads 64 KiB of an answer every two seconds, until it is cut off."""

    def __init__(self, server: Served, key: str, path: str, body: object) -> None:
        content = json.dumps(body).encode()
        lines = [
            f"POST {path} HTTP/1.1",
            *("Host: localhost", f"Authorization: Bearer {key}"),
            *("Content-Type: application/json", f"Content-Length: {len(content)}"),
        ]
        host, _, port = server.url.removeprefix("http://").partition(":")
        self._connection = socket.socket()
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        self._connection.settimeout(PLENTY_S)
        self._connection.connect((host, int(port)))
        self._connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
        self.begun, self.cut = threading.Event(), threading.Event()
        self.read = b""
        self._reading = threading.Thread(target=self._drip, daemon=True)
        self._reading.start()

    def _drip(self) -> None:
        with contextlib.suppress(OSError):
            while piece := self._connection.recv(1 << 16):
                self.read += piece
                self.begun.set()
                time.sleep(2)
        self.cut.set()

    def __enter__(self) -> Slow:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        self._reading.join(PLENTY_S)


def test_f2_a_slow_reader_takes_no_answer_from_another_tenant(server: Served, hostile: str) -> None:
    """One answer of 88 MB took the room of all, for hours; the others had run for nothing."""
    with Slow(server, hostile, "/v1/runs", {"code": LARGE, **ASKED}) as slow:
        assert slow.begun.wait(PLENTY_S) and slow.read.startswith(b"HTTP/1.1 200 ")
        for _ in range(3):
            body = {"code": "print('é' * (2 << 20))", "output_bytes": 4 * MIB}
            answer = server.ask("POST", "/v1/runs", body)
            assert answer.status == 200, answer.json()
            assert len(answer.json()["stdout"]) == 2 * MIB - len("\n") or answer.json()["truncated"]
        # 32 KiB/s are not none, and yet too few for what is held meanwhile.
        assert slow.cut.wait(PLENTY_S), "it may hold its answer for an hour"
    assert len(slow.read) < 10 * MIB


def test_f2_answers_that_nobody_reads_to_the_end_keep_no_connection(server: Served) -> None:
    """Some leave so little in the server that it thinks itself done, and closes; which takes as
    long as the client likes. How much the kernel takes is its affair: so, many sizes."""
    made = server.ask("POST", "/v1/sandboxes", {}).json()["id"]
    step, sizes = 48 << 10, range(1, 64)
    code = f"for n in {sizes}: open(f'f{{n}}', 'wb').truncate(n * {step})"
    assert server.ask("POST", f"/v1/sandboxes/{made}/runs", {"code": code}).json()["success"]
    host, _, port = server.url.removeprefix("http://").partition(":")
    open_before = _sockets(server)
    with contextlib.ExitStack() as stack:
        for size in sizes:
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.connect((host, int(port)))
            client.sendall(
                f"GET /v1/sandboxes/{made}/files/content?path=f{size} HTTP/1.1\r\n"
                f"Host: localhost\r\nAuthorization: Bearer {server.key}\r\n"
                "Connection: close\r\n\r\n".encode()
            )
        until(lambda: _sockets(server) > open_before)
        until(lambda: _sockets(server) <= open_before)
    assert server.ask("DELETE", f"/v1/sandboxes/{made}").status == 200


def _sockets(server: Served) -> int:
    """That clients have at the server."""
    port = int(server.url.rpartition(":")[2])
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    inodes = {
        f"socket:[{field[9]}]"
        for field in map(str.split, lines)
        if field[1].endswith(f":{port:04X}") and field[3] != "0A"
    }
    folder = f"/proc/{server.process.pid}/fd"
    held = 0
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            held += os.readlink(f"{folder}/{name}") in inodes
    return held


def test_f2_large_answers_arrive_whole_on_every_way(server: Served) -> None:
    code = r"import sys; sys.stdout.write('\x01é' * (1 << 20)); sys.stderr.write('x' * 99999)"
    body = {"code": code, "output_bytes": 4 * MIB}
    printed = "\x01é" * MIB
    answer = server.ask("POST", "/v1/runs", body)
    assert (answer.json()["stdout"], answer.json()["stderr"]) == (printed, "x" * 99999)
    assert "content-length" not in answer.headers
    events = {"Accept": "text/event-stream"}
    told = server.ask("POST", "/v1/runs", body, headers=events).content.split(b"\n\n")
    name, _, data = told[-2].partition(b"\ndata: ")
    assert (name, json.loads(data)["stdout"]) == (b"event: end", printed)
    made = server.ask("POST", "/v1/sandboxes", {"environment": "base", "output_bytes": 4 * MIB})
    box = f"/v1/sandboxes/{made.json()['id']}"
    assert server.ask("POST", f"{box}/runs", {"code": code}).json()["stdout"] == printed
    told = server.ask("POST", f"{box}/runs", {"code": code}, headers=events).content.split(b"\n\n")
    name, _, data = told[-2].partition(b"\ndata: ")
    assert (name, json.loads(data)["stdout"]) == (b"event: end", printed)
    with connect(
        f"ws{server.url.removeprefix('http')}{box}/socket",
        additional_headers={"Authorization": f"Bearer {server.key}"},
        max_size=None,
    ) as talk:
        talk.send(json.dumps({"type": "run", "id": "a", "code": code}))
        talk.send(json.dumps({"type": "ping", "id": "b"}))
        ended, ponged = False, False
        while not (ended and ponged):
            said = json.loads(talk.recv(PLENTY_S))
            ponged = ponged or (said["type"], said["id"]) == ("pong", "b")
            if said["type"] == "end":
                ended = True
                assert (said["id"], said["stdout"]) == ("a", printed)
    assert server.ask("DELETE", box).status == 200
