"""F2: what a server's tenants share. One of them takes all it can get of bodies, threads and
connections, and the other's requests are answered as before. A real server, real requests."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from belljar.server.gate import REFUSALS_PER_S, REST_S, Refusals
from belljar.server.strangers import LEAST_STRANGERS
from belljar.testing.served import Served, served

MIB = 1 << 20
PLENTY_S = 60.0
SLEEP = "import time; time.sleep(100)"
SMALL = {"pool_size": 1, "engines": ["jail"], "concurrency": 4}


def until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PLENTY_S
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def new_key(server: Served, name: str, *more: str) -> str:
    key = server.belljar("keys", "add", name, *more).strip()
    until(lambda: server.ask("GET", "/v1/usage", key=key).status == 200)
    return key


def resident(server: Served) -> int:
    looked = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", looked)[1]) * 1024  # type: ignore[index]


class Crowd:
    """Requests that are sent, and whose answers nobody waits for; closed at the end."""

    def __init__(self, server: Served, key: str) -> None:
        self.sockets: list[socket.socket] = []
        self._server = server
        self._key = key

    def send(self, path: str, body: Any, *headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        host, _, port = self._server.url.removeprefix("http://").partition(":")
        lines = [
            f"POST {path} HTTP/1.1",
            *("Host: localhost", f"Authorization: Bearer {self._key}", *headers),
            *("Content-Type: application/json", f"Content-Length: {len(content)}"),
        ]
        connection = socket.create_connection((host, int(port)), PLENTY_S)
        self.sockets.append(connection)
        with contextlib.suppress(OSError):  # refused before it was sent
            connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + content)

    def refused(self) -> list[int]:
        """Statuses of those that were answered so far."""
        found = []
        for connection in self.sockets:
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                if start := connection.recv(16, socket.MSG_PEEK):
                    found.append(int(start.split()[1]))
        return found

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self.sockets:
            connection.close()


# -- memory --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> Iterator[Served]:
    with served(
        keys=True,
        bodies_bytes=32 * MIB,
        sandboxes={**SMALL, "build_environments": False},
    ) as server:
        yield server


@pytest.fixture(scope="module")
def hostile(small: Served) -> str:
    return new_key(small, "hostile")


@pytest.fixture(scope="module")
def other(small: Served) -> str:
    return new_key(small, "other")


def runs(server: Served, key: str) -> int:
    told = server.ask("GET", "/v1/usage", key=key).json()
    return int(told["running"] + told["queued"])


def test_f2_large_bodies_of_one_tenant_are_no_refusal_of_others(
    small: Served, hostile: str, other: str
) -> None:
    body = {"code": SLEEP, "timeout_s": 110, "stdin": "x" * (2 * MIB - 65536)}
    with Crowd(small, hostile) as crowd:
        for _ in range(20):  # all that bodies may take, in the queue and in runs
            crowd.send("/v1/runs", body)
        until(lambda: runs(small, hostile) + len(crowd.refused()) == 20)
        assert set(crowd.refused()) == {429} and runs(small, hostile) >= 2
        answer = small.ask("POST", "/execute", {"code": "print(6 * 7)"}, key=other)
        assert (answer.status, answer.json().get("output")) == (200, "42\n")
        large = {"code": "print(len(input()))", "stdin": "y" * (2 * MIB)}
        answer = small.ask("POST", "/v1/runs", large, key=other)
        assert (answer.status, answer.json().get("stdout")) == (200, f"{2 * MIB}\n")
        error = small.ask("POST", "/v1/runs", body, key=hostile)
        assert error.json()["error"]["code"] == "quota_exceeded"
        assert error.headers["Retry-After"]
    until(lambda: runs(small, hostile) == 0)
    answer = small.ask("POST", "/v1/runs", large, key=hostile)
    assert answer.status == 200, "what has ended holds nothing"


def test_f2_the_largest_body_fits_a_share_that_is_smaller(small: Served, other: str) -> None:
    body = {"code": "print(len(input()))", "stdin": "y" * (15 * MIB)}
    answer = small.ask("POST", "/v1/runs", body, key=other)
    assert answer.json()["stdout"] == f"{15 * MIB}\n"


def test_f2_what_waiting_event_streams_were_sent_is_bounded(
    small: Served, hostile: str, other: str
) -> None:
    """24 of 15 MiB with a bound of 32 took 783 MiB: a stream was counted until it began."""
    before = resident(small)
    body = json.dumps({"code": SLEEP, "timeout_s": 110, "stdin": "x" * (15 * MIB)}).encode()
    with Crowd(small, hostile) as crowd:
        for _ in range(24):
            crowd.send("/v1/runs", body, "Accept: text/event-stream")
        until(lambda: runs(small, hostile) + len(crowd.refused()) >= 24)
        assert crowd.refused().count(429) >= 22
        answer = small.ask("POST", "/execute", {"code": "print(6 * 7)"}, key=other)
        assert answer.status == 200
    until(lambda: runs(small, hostile) == 0)
    assert resident(small) - before < 300 * MIB


def test_f2_what_runs_over_sockets_were_sent_is_bounded(
    small: Served, hostile: str, other: str
) -> None:
    made = small.ask("POST", "/v1/sandboxes", {"environment": "base"}, key=hostile)
    box = f"/v1/sandboxes/{made.json()['id']}"
    before = resident(small)
    message = json.dumps({"type": "run", "code": SLEEP, "stdin": "x" * (MIB - 200)})
    headers = {"Authorization": f"Bearer {hostile}"}
    url = small.url.replace("http", "ws") + box + "/socket"
    with contextlib.ExitStack() as stack:
        refused = 0
        for _ in range(4):
            talk = stack.enter_context(connect(url, additional_headers=headers, proxy=None))
            for _ in range(25):
                talk.send(message)
            talk.send(json.dumps({"type": "ping"}))
            while (told := json.loads(talk.recv(PLENTY_S)))["type"] != "pong":
                refused += told["type"] == "error" and told["error"]["code"] == "quota_exceeded"
        assert refused >= 90, "of a hundred that wait for their turn"
        answer = small.ask("POST", "/execute", {"code": "print(6 * 7)"}, key=other)
        assert answer.status == 200
    assert resident(small) - before < 100 * MIB
    assert small.ask("DELETE", box, key=hostile).status == 200


def test_f2_what_is_refused_for_its_form_counts_against_the_quota(small: Served) -> None:
    key = new_key(small, "limited", "--quota", "runs_per_minute=3")
    body = {"code": "1", "files": dict.fromkeys(map(str, range(49_000)), 5)}
    answers = [small.ask("POST", "/v1/runs", body, key=key) for _ in range(4)]
    assert [answer.status for answer in answers] == [400, 400, 400, 429]
    assert answers[0].json()["error"]["code"] == "invalid_request"


# -- connections ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow() -> Iterator[Served]:
    with served(
        keys=True,
        connections=40,
        header_timeout_s=600.0,
        keep_alive_s=600.0,
        sandboxes={**SMALL, "build_environments": False},
    ) as server:
        yield server


def connected(server: Served) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), PLENTY_S)


@pytest.mark.parametrize("sent", [b"", b"GET /v1/usage HTTP/1.1\r\nHost: localhost\r\n"])
def test_f2_connections_without_a_key_keep_nobody_out(narrow: Served, sent: bytes) -> None:
    with contextlib.ExitStack() as stack:
        busy = HTTPConnection(narrow.url.removeprefix("http://"), timeout=PLENTY_S)
        headers = {"Authorization": f"Bearer {narrow.key}"}
        busy.request("GET", "/v1/usage", headers=headers)
        assert busy.getresponse().read()
        for _ in range(100):
            connection = stack.enter_context(connected(narrow))
            connection.sendall(sent)
        answer = narrow.execute("print(6 * 7)")
        assert answer.json()["output"] == "42\n"
        known = busy.sock
        busy.request("GET", "/v1/usage", headers=headers)
        assert busy.getresponse().status == 200 and busy.sock is known, "a key keeps its connection"
        busy.close()


def test_f2_idle_connections_of_one_tenant_keep_no_other_out(narrow: Served) -> None:
    """The longest idle of those that have the most."""
    hostile = new_key(narrow, "hostile")
    keep = HTTPConnection(narrow.url.removeprefix("http://"), timeout=PLENTY_S)
    mine = {"Authorization": f"Bearer {narrow.key}"}
    keep.request("GET", "/v1/usage", headers=mine)
    keep.getresponse().read()
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            one = HTTPConnection(narrow.url.removeprefix("http://"), timeout=PLENTY_S)
            stack.callback(one.close)
            one.request("GET", "/v1/usage", headers={"Authorization": f"Bearer {hostile}"})
            assert one.getresponse().read()
        known = keep.sock
        keep.request("GET", "/v1/usage", headers=mine)
        assert keep.getresponse().status == 200 and keep.sock is known
        keep.close()


def test_f2_a_tenant_has_a_share_of_the_idle_connections(narrow: Served) -> None:
    """The rest of its own are closed, so that there is room without looking for it."""
    key = new_key(narrow, "idling")
    headers = {"Authorization": f"Bearer {key}"}
    with contextlib.ExitStack() as stack:
        crowd = []
        for _ in range(LEAST_STRANGERS + 4):
            one = HTTPConnection(narrow.url.removeprefix("http://"), timeout=PLENTY_S)
            stack.callback(one.close)
            one.request("GET", "/v1/usage", headers=headers)
            assert one.getresponse().read()
            crowd.append(one)
        for one in crowd[:4]:
            assert one.sock.recv(1) == b"", "the longest idle are closed"
        for one in crowd[4:]:
            known = one.sock
            one.request("GET", "/v1/usage", headers=headers)
            assert one.getresponse().status == 200 and one.sock is known


def test_f2_who_shows_no_key_has_no_second_request(narrow: Served) -> None:
    for path in ("/health", "/v1/usage"):
        with connected(narrow) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 2)
            reply = b""
            while part := connection.recv(65536):
                reply += part
        assert reply.count(b"HTTP/1.1 ") == 1
        assert b"connection: close" in reply.lower()


# -- threads -------------------------------------------------------------------------------------


class SilentIndex:
    """A package index that takes every request and never answers."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/simple"
        self.asked: list[str] = []
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self._open.append(connection)
                threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, IndexError):
            self.asked.append(connection.recv(4096).split()[1].decode())

    def of(self, start: str) -> int:
        """Packages whose names begin so, and that were asked for."""
        return len({path for path in self.asked if path.split("/")[-2].startswith(start)})

    def close(self) -> None:
        self._listening.close()
        for connection in self._open:
            connection.close()


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentIndex]:
    found = SilentIndex()
    monkeypatch.setenv("UV_DEFAULT_INDEX", found.url)
    monkeypatch.setenv("UV_HTTP_TIMEOUT", "600")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    yield found
    found.close()


def test_f2_builds_of_one_tenant_keep_nothing_else_waiting(index: SilentIndex) -> None:
    """They took every thread: a removed key went on working, trail, uploads and bodies waited, and
    SIGTERM waited for all of them."""
    sandboxes = {**SMALL, "concurrency": 64, "packages_allowed": "any"}
    with served(keys=True, drain_s=0.0, sandboxes=sandboxes) as server:
        hostile, other = new_key(server, "hostile"), new_key(server, "other")
        removed = new_key(server, "removed")
        with Crowd(server, hostile) as crowd, Crowd(server, other) as waiting:
            for number in range(24):
                crowd.send("/v1/runs", {"code": "1", "packages": [f"mine-{number}"]})
            until(lambda: index.of("mine") >= 2)
            keys = server.belljar("keys", "list")
            identity = re.search(r"([0-9a-f]{12})\s+\S+\s+removed", keys)
            assert identity, keys
            server.belljar("keys", "remove", identity[1])
            until(lambda: server.ask("GET", "/v1/usage", key=removed).status == 401)
            assert server.ask("GET", "/v1/trail", key=other).status == 200
            content = b"x" * (4 * MIB)
            kind = {"Content-Type": "application/octet-stream"}
            path = "/v1/datasets?name=x"
            answer = server.ask("POST", path, content, key=other, headers=kind)
            assert answer.json()["size"] == 4 * MIB
            large = {"code": "print(len(input()))", "stdin": "y" * MIB}
            answer = server.ask("POST", "/v1/runs", large, key=other)
            assert answer.json()["stdout"] == f"{MIB}\n"
            waiting.send("/v1/runs", {"code": "1", "packages": ["theirs"]})
            until(lambda: index.of("theirs") == 1)
            assert index.of("mine") == 2, "builders of one tenant"
            assert not crowd.refused(), "they are still at it"
            server.process.terminate()
            assert server.process.wait(PLENTY_S / 2) == 0
        assert not still_building(server)


def still_building(server: Served) -> bool:
    done = subprocess.run(["pgrep", "-f", str(server.home)], capture_output=True, text=True)
    return bool(done.stdout.split())


def test_f2_a_build_ends_when_nobody_waits_for_it(index: SilentIndex) -> None:
    sandboxes = {**SMALL, "packages_allowed": "any"}
    with served(keys=True, sandboxes=sandboxes) as server:
        key = new_key(server, "leaving", "--quota", "cpu_s_per_day=100")
        with Crowd(server, key) as crowd:
            crowd.send("/v1/runs", {"code": "1", "packages": ["mine"]})
            until(lambda: index.of("mine") == 1)
            assert list(server.home.glob("layers/*.building"))
        until(lambda: not list(server.home.glob("layers/*.building")))
        until(lambda: runs(server, key) == 0)
        used = server.ask("GET", "/v1/usage", key=key).json()["cpu_s_today"]
        assert used == 0, "nobody pays for waiting"


@pytest.mark.parametrize("way", ["kept", "new", "ahead"])
def test_f2_whoever_is_refused_all_the_time_rests_and_keeps_nobody_out(way: str) -> None:
    """The refusals of one tenant, on all its connections, have a rate: on those that stay, on a new
    one for each request, and with requests that are sent ahead."""
    with served(keys=True, connections=200, sandboxes=SMALL) as server:
        hostile, other = new_key(server, "hostile"), new_key(server, "other")
        address = server.url.removeprefix("http://")
        headers = {"Authorization": f"Bearer {hostile}"}
        ended = threading.Event()
        refused: list[int] = []

        def flood() -> None:
            connection = HTTPConnection(address, timeout=PLENTY_S)
            while not ended.is_set():
                try:
                    connection.request("GET", "/v1/sandboxes/none", headers=headers)
                    answer = connection.getresponse()
                    answer.read()
                    refused.append(answer.status)
                except (OSError, HTTPException):  # it gave way
                    connection.close()
                if way == "new":
                    connection.close()

        def flood_ahead() -> None:
            host, _, port = address.partition(":")
            head = "GET /v1/sandboxes/none HTTP/1.1\r\nHost: localhost\r\n"
            head += f"Authorization: Bearer {hostile}"
            while not ended.is_set():
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection((host, int(port)), PLENTY_S) as connection,
                ):
                    while not ended.is_set():
                        connection.sendall(f"{head}\r\n\r\n".encode() * 8)
                        got = b""
                        while got.count(b"HTTP/1.1 ") < 8 and (piece := connection.recv(65536)):
                            got += piece
                        refused.extend(int(one[:3]) for one in got.split(b"HTTP/1.1 ")[1:])
                        if got.count(b"HTTP/1.1 ") < 8:
                            break

        target = flood_ahead if way == "ahead" else flood
        crowd = [threading.Thread(target=target) for _ in range(30)]
        began = time.monotonic()
        for one in crowd:
            one.start()
        try:
            until(lambda: len(refused) >= 5 * REFUSALS_PER_S)
            took_s = time.monotonic() - began
            for _ in range(20):
                found = server.ask("POST", "/execute", {"code": "print(5)"}, key=other)
                assert found.json()["output"] == "5\n"
        finally:
            ended.set()
            for one in crowd:
                one.join()
        assert set(refused) <= {404, 429}
        assert took_s > 3, "nothing held it back: a second's worth is free, four are not"


def test_f2_a_few_mistakes_are_answered_at_once() -> None:
    found = Refusals()
    for _ in range(REFUSALS_PER_S):
        assert found.rest_s("few") == 0
        found.one_more("few")
    found.one_more("few")
    assert found.rest_s("few") > 0
    assert found.rest_s("other") == 0
    for _ in range(10 * REFUSALS_PER_S):
        found.one_more("few")
    assert 0 < found.rest_s("few") <= REST_S
