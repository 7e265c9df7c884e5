"""F2: frames, chunks and headers that are next to nothing, and very many, keep nobody waiting."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest
from websockets.sync.client import connect

from belljar.server.listen import MOST_FIELDS, MOST_FRAGMENTS
from belljar.testing.served import Served, served
from tests.security.test_server_shares import MIB, PLENTY_S, SMALL, new_key, resident

MASK = bytes(4)
PING = b'{"type":"ping"}'
FRAMES = {
    "pongs": (b"", b"\x8a\x80" + MASK),
    "pings": (b"", b"\x89\x80" + MASK),
    "continuations": (b"\x01\x80" + MASK, b"\x00\x80" + MASK),
    "empty messages": (b"", b"\x81\x80" + MASK),
    "small messages": (b"", b"\x81\x8f" + MASK + PING),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(keys=True, sandboxes={**SMALL, "build_environments": False}) as server:
        yield server


@contextlib.contextmanager
def opened(server: Served, key: str) -> Iterator[socket.socket]:
    """A WebSocket by hand, of a sandbox that ends with it."""
    made = server.ask("POST", "/v1/sandboxes", {"environment": "base"}, key=key).json()["id"]
    host, _, port = server.url.removeprefix("http://").partition(":")
    lines = [
        f"GET /v1/sandboxes/{made}/socket HTTP/1.1",
        *("Host: localhost", f"Authorization: Bearer {key}", "Connection: Upgrade"),
        *("Upgrade: websocket", "Sec-WebSocket-Version: 13"),
        f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
    ]
    with socket.create_connection((host, int(port)), PLENTY_S) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 101 ")
        yield connection
    server.ask("DELETE", f"/v1/sandboxes/{made}", key=key)


@pytest.mark.parametrize("kind", FRAMES)
def test_f2_tiny_frames_of_one_tenant_keep_no_other_waiting(server: Served, kind: str) -> None:
    hostile, other = new_key(server, "hostile"), new_key(server, "other")
    first, frame = FRAMES[kind]
    ended = threading.Event()

    def flood(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(first)
            while not ended.is_set():
                connection.sendall(frame * (262_144 // len(frame)))

    def drain(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while connection.recv(1 << 20):
                pass

    with opened(server, hostile) as connection:
        before = resident(server)
        crowd = [threading.Thread(target=one, args=(connection,)) for one in (flood, drain)]
        for one in crowd:
            one.start()
        try:
            for _ in range(30):
                answer = server.ask("POST", "/execute", {"code": "print(5)"}, key=other)
                assert answer.json()["output"] == "5\n"
            assert resident(server) < before + 50 * MIB, "what has come is kept until it is read"
        finally:
            ended.set()
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            for one in crowd:
                one.join()


def flooded(server: Served, sent: bytes, *, most: int) -> None:
    """Another tenant's requests come back while `sent` arrives again and again, on new connections
    as soon as one is closed."""
    other = new_key(server, "other")
    host, _, port = server.url.removeprefix("http://").partition(":")
    ended = threading.Event()

    def flood() -> None:
        while not ended.is_set():
            with (
                contextlib.suppress(OSError),
                socket.create_connection((host, int(port)), PLENTY_S) as connection,
            ):
                connection.sendall(sent[:1000])
                for _ in range(most):
                    connection.sendall(sent[1000:])
                    if ended.is_set():
                        break

    before = resident(server)
    crowd = [threading.Thread(target=flood, daemon=True) for _ in range(4)]
    for one in crowd:
        one.start()
    try:
        for _ in range(30):
            answer = server.ask("POST", "/execute", {"code": "print(5)"}, key=other)
            assert answer.json()["output"] == "5\n"
        assert resident(server) < before + 50 * MIB, "what has come is kept until it is read"
    finally:
        ended.set()


@pytest.mark.parametrize("with_key", [True, False])
def test_f2_tiny_chunks_keep_nobody_waiting(server: Served, with_key: bool) -> None:
    key = new_key(server, "chunks") if with_key else "none"
    head = (
        f"POST /v1/datasets?name=a HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        "Content-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    head = head.replace("Host:", f"X: {'x' * (995 - len(head))}\r\nHost:")
    flooded(server, head.encode() + b"1\r\nx\r\n" * 43_000, most=1000)


def test_f2_heads_of_many_fields_are_refused_and_keep_nobody_waiting(server: Served) -> None:
    head = b"GET /v1/usage HTTP/1.1\r\nHost: localhost\r\n"
    flooded(server, head + b"a:b\r\n" * 12_000, most=1)
    host, _, port = server.url.removeprefix("http://").partition(":")
    for count, status in ((MOST_FIELDS - 10, b"401"), (MOST_FIELDS + 10, b"431")):
        with socket.create_connection((host, int(port)), PLENTY_S) as connection:
            connection.sendall(head + b"a:b\r\n" * count + b"\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 " + status)


def test_a_body_in_any_chunks_arrives_whole(server: Served) -> None:
    key = new_key(server, "uploads")
    content = os.urandom(300_000)
    chunks = [content[at : at + 7] for at in range(0, 70_000, 7)] + [content[70_000:]]
    connection = HTTPConnection(server.url.removeprefix("http://"), timeout=PLENTY_S)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/octet-stream"}
    path = "/v1/datasets?name=cut.bin"
    connection.request("POST", path, iter(chunks), headers, encode_chunked=True)
    answer = connection.getresponse()
    assert answer.status in (200, 201), answer.read()
    told = json.loads(answer.read())
    connection.close()
    assert told["sha256"] == hashlib.sha256(content).hexdigest()


def test_what_comes_before_the_handshake_is_over_waits_for_it(server: Served) -> None:
    key = new_key(server, "early")
    made = server.ask("POST", "/v1/sandboxes", {"environment": "base"}, key=key).json()["id"]
    host, _, port = server.url.removeprefix("http://").partition(":")
    head = (
        f"GET /v1/sandboxes/{made}/socket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        f"Authorization: Bearer {key}\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    for _ in range(10):
        with socket.create_connection((host, int(port)), PLENTY_S) as connection:
            connection.sendall(head.encode())
            with contextlib.suppress(OSError):
                connection.sendall(FRAMES["small messages"][1] * 50)
            assert connection.recv(100).startswith(b"HTTP/1.1 101 ")
    server.ask("DELETE", f"/v1/sandboxes/{made}", key=key)
    assert "AssertionError" not in (server.home / "server.log").read_text()


def test_f2_a_message_in_too_many_pieces_ends_its_socket(server: Served) -> None:
    with opened(server, new_key(server, "pieces")) as connection:
        first, frame = FRAMES["continuations"]
        with contextlib.suppress(OSError):
            connection.sendall(first + frame * (2 * MOST_FRAGMENTS))
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(4096):
                pass


def test_messages_come_whole_and_in_order_however_they_are_cut(server: Served) -> None:
    """Large ones among small ones, in one piece and in fragments."""
    key = new_key(server, "usual")
    made = server.ask("POST", "/v1/sandboxes", {"environment": "base"}, key=key).json()["id"]
    url = f"ws://{server.url.removeprefix('http://')}/v1/sandboxes/{made}/socket"
    headers = {"Authorization": f"Bearer {key}"}
    with connect(url, additional_headers=headers, proxy=None, max_size=None) as talk:
        for number in range(20):
            size = 700_000 if number % 5 == 4 else 10
            code = f"print({number}, len(input()))"
            text = json.dumps({"type": "run", "code": code, "stdin": "x" * size})
            talk.send([text[:100], text[100:]] if number % 2 else text)
        results: list[str] = []
        while len(results) < 20:
            told = json.loads(talk.recv(timeout=PLENTY_S))
            if told["type"] == "end":
                results.append(told["stdout"])
    assert results == [f"{n} {700_000 if n % 5 == 4 else 10}\n" for n in range(20)]
    server.ask("DELETE", f"/v1/sandboxes/{made}", key=key)
