"""Requests that ask for another protocol: one answer each, and then a closed connection.

Where a proxy sees a body and the server a second request, whoever uses the proxy's connection next
gets the wrong answer, or gives away its key.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import os
import re
import select
import socket
import time
from collections.abc import Iterator

import pytest

from belljar.testing.served import Served, served

PLENTY_S = 30.0
CONNECTIONS = 40
ANSWER = re.compile(rb"HTTP/1\.[01] (\d{3})")


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(
        keys=True,
        header_timeout_s=2.0,
        keep_alive_s=600.0,  # a connection that is closed was closed on purpose
        connections=CONNECTIONS,
        sandboxes={"pool_size": 1, "build_environments": False, "engines": ["jail"]},
    ) as server:
        yield server


@pytest.fixture(autouse=True)
def still_well(server: Served) -> Iterator[None]:
    yield
    assert server.execute("print(6 * 7)").json()["output"] == "42\n"


def dial(server: Served) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), PLENTY_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def rest(connection: socket.socket) -> bytes:
    """Until the server closes; a connection that stays open fails the test."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            found += part
    return found


def head(server: Served, line: str, *more: str, key: bool = True) -> bytes:
    lines = [f"{line} HTTP/1.1", "Host: localhost", *more]
    if key:
        lines.append(f"Authorization: Bearer {server.key}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


LINES = ["GET /v1/usage", "HEAD /v1/usage", "POST /execute", "POST /v1/datasets?name=x",
         "GET /x", "DELETE /v1/sandboxes/x", "OPTIONS /execute", "CONNECT localhost:80",
         "PUT /x"]  # fmt: skip
PROTOCOLS = ["h2c", "foo", "websocket", "websocket, foo", "WebSocket"]
FRAMES = ["length", "chunked", "none"]


@pytest.mark.parametrize("packets", ["one", "two", "bytes"])
@pytest.mark.parametrize("line", LINES)
def test_what_follows_an_upgrade_is_never_a_request(
    server: Served, line: str, packets: str
) -> None:
    inner = head(server, "GET /v1/usage")
    for protocol, frame, key in itertools.product(PROTOCOLS, FRAMES, (True, False)):
        fields = ["Connection: keep-alive, Upgrade", f"Upgrade: {protocol}"]
        fields += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]
        body = inner
        if frame == "length":
            fields.append(f"Content-Length: {len(inner)}")
        elif frame == "chunked":
            fields.append("Transfer-Encoding: chunked")
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner)
        first = head(server, line, *fields, key=key)
        with dial(server) as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                if packets == "one":
                    connection.sendall(first + body)
                elif packets == "two":
                    connection.sendall(first)
                    select.select([connection], [], [], 0.05)
                    connection.sendall(body)
                else:
                    for byte in first + body:
                        connection.send(bytes([byte]))
            answers = ANSWER.findall(rest(connection))
            assert len(answers) <= 1, (protocol, frame, key, answers)
            if frame != "none" and packets == "one":
                assert answers in ([b"400"], []), (protocol, frame, key)


def test_a_request_that_need_not_be_upgraded_is_answered(server: Served) -> None:
    """As clients ask that would like HTTP/2."""
    fields = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    with dial(server) as connection:
        connection.sendall(head(server, "GET /v1/usage", *fields))
        reply = rest(connection)
    assert ANSWER.findall(reply) == [b"200"]
    assert b"\r\nconnection: close\r\n" in reply


def test_an_upgrade_behind_a_request_under_way_harms_nobodys_answer(server: Served) -> None:
    body = b'{"code": "import time; time.sleep(0.5); print(5)"}'
    fields = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    for protocol, line in itertools.product(PROTOCOLS, ("GET /v1/usage", "POST /execute")):
        second = head(
            server, line, "Connection: Upgrade", f"Upgrade: {protocol}", "Content-Length: 9"
        )
        with dial(server) as connection:
            connection.sendall(head(server, "POST /execute", *fields) + body + second)
            answers = ANSWER.findall(rest(connection))
        assert answers in ([], [b"200"]), (protocol, line)


def test_nonsense_behind_a_request_is_not_its_answer(server: Served) -> None:
    body = b'{"code": "import time; time.sleep(0.5); print(5)"}'
    fields = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    with dial(server) as connection:
        connection.sendall(head(server, "POST /execute", *fields) + body + b"\0nonsense\r\n\r\n")
        assert ANSWER.findall(rest(connection)) in ([], [b"200"])


def strange(server: Served) -> dict[str, bytes]:
    """Ways of being neither answered nor closed; none shows a key."""
    asked = ("Connection: Upgrade", "Upgrade: websocket")
    key = base64.b64encode(os.urandom(16)).decode()
    good = (*asked, "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}")
    many = [f"X-{n}: 1" for n in range(200)]
    known = {
        "length": head(server, "GET /x", *asked, "Content-Length: 12", key=False),
        "no length": head(server, "GET /x", *good, "Content-Length: 0", key=False),
        "chunked": head(server, "POST /x", *asked, "Transfer-Encoding: chunked", key=False),
        "post": head(server, "POST /x", *good, key=False),
        "many headers": head(server, "GET /x", *good, *many, key=False),
        "long header": head(server, "GET /x", *good, "X: " + "x" * 20_000, key=False),
        "long path": head(server, "GET /" + "x" * 20_000, *good, key=False),
        "not ASCII": head(server, "GET /\xfc", *good, key=False),
        "old": head(server, "GET /x", *good, key=False).replace(b"HTTP/1.1", b"HTTP/1.0"),
        "half a frame": head(server, "GET /v1/sandboxes/x/socket", *good, key=False) + b"\x81\xff",
        "open route": head(server, "GET /health", *good, key=False),
        "no key": head(server, "GET /x", *asked, key=False),
        "wrong key": head(server, "GET /x", *good, "Authorization: Bearer blj_x_y", key=False),
        "continue": head(server, "POST /x", "Expect: 100-continue", "Content-Length: 9", key=False),
        "ahead": head(server, "GET /health", key=False) + head(server, "GET /x", *asked, key=False),
        "half": head(server, "GET /x", *asked, key=False)[:-2],
    }
    return known


def test_strangers_are_answered_or_closed(server: Served) -> None:
    for name, content in strange(server).items():
        with dial(server) as connection:
            connection.sendall(content)
            assert len(ANSWER.findall(rest(connection))) <= 1, name


def test_strangers_cannot_take_all_connections(server: Served) -> None:
    with contextlib.ExitStack() as held:
        for content in strange(server).values():
            for _ in range(CONNECTIONS + 10):
                with contextlib.suppress(OSError):
                    connection = held.enter_context(dial(server))
                    connection.sendall(content)
            deadline = time.monotonic() + PLENTY_S
            while True:
                with contextlib.suppress(OSError):
                    if server.ask("GET", "/v1/usage").status == 200:
                        break
                assert time.monotonic() < deadline, "strangers have taken the server"
                time.sleep(0.05)
            held.pop_all().close()


def test_trailers_are_no_headers(server: Served) -> None:
    chunks = b'c\r\n{"code":"1"}\r\n0\r\n'
    fields = ("Content-Type: application/json", "Transfer-Encoding: chunked", "Connection: close")
    late = f"Authorization: Bearer {server.key}\r\n\r\n".encode()
    with dial(server) as connection:  # in one packet, so that they are there when the gate looks
        connection.sendall(head(server, "POST /execute", *fields, key=False) + chunks + late)
        assert ANSWER.findall(rest(connection)) == [b"401"]
    late = b"Host: evil.example\r\nX-Request-ID: zzz\r\nContent-Type: text/plain\r\n\r\n"
    with dial(server) as connection:
        connection.sendall(head(server, "POST /execute", *fields) + chunks + late)
        reply = rest(connection)
    assert ANSWER.findall(reply) == [b"200"]
    assert b"zzz" not in reply


@pytest.mark.parametrize("coding", ["gzip, chunked", "chunked, chunked", "identity", "xchunked"])
def test_a_body_in_a_coding_that_is_not_read_is_refused(server: Served, coding: str) -> None:
    with dial(server) as connection:
        connection.sendall(head(server, "POST /execute", f"Transfer-Encoding: {coding}"))
        assert ANSWER.findall(rest(connection)) in ([b"400"], [b"501"])


def test_who_waits_for_100_and_is_answered_has_a_connection_for_nothing_else(
    server: Served,
) -> None:
    """A proxy may take the answer for "no body is wanted", and send the next request."""
    fields = ("Expect: 100-continue", "Content-Type: text/x", "Content-Length: 300")
    with dial(server) as connection:
        connection.sendall(head(server, "POST /execute", *fields))
        assert ANSWER.findall(rest(connection)) == [b"415"]


def test_a_body_that_breaks_after_its_answer_has_no_second_one(server: Served) -> None:
    first = head(server, "GET /v1/usage", "Transfer-Encoding: chunked")
    with dial(server) as connection:
        connection.sendall(first + b"5\r\nabc")
        found = b""
        while not found.endswith(b"}"):
            found += connection.recv(65536)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(b"de\r\nbroken\r\n")
        assert ANSWER.findall(found + rest(connection)) == [b"200"]
