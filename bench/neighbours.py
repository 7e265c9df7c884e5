"""`python -m bench.neighbours`: one tenant attacks a server, and another's requests are measured.

Each attack goes on in a process of its own, with what it takes of the machine at the lowest
priority: an attacker's processors are elsewhere. The other tenant runs code all the while, every
fifth time on a new connection and every tenth with a body of 1 MiB. Its p99 must stay within twice
that of the quiet server, measured right before and after, and no request may fail.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import itertools
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from belljar.testing.served import Served, served
from bench.timing import percentile

MIB = 1 << 20
MOST_RATIO = 2.0
PATIENCE_S = 30.0
SLEEP = "import time; time.sleep(20)"
ENOUGH = 8
"""Threads of an attack."""


class Target(NamedTuple):
    address: str
    key: str

    def socket(self) -> socket.socket:
        host, _, port = self.address.partition(":")
        return socket.create_connection((host, int(port)), PATIENCE_S)

    def head(self, method: str, path: str, size: int = 0, *more: str) -> bytes:
        lines = [
            f"{method} {path} HTTP/1.1",
            *("Host: localhost", f"Authorization: Bearer {self.key}", *more),
            *("Content-Type: application/json", f"Content-Length: {size}"),
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n"

    def send(self, path: str, content: bytes, *more: str) -> socket.socket:
        """Without waiting for the answer."""
        connection = self.socket()
        with contextlib.suppress(OSError):  # refused before all of it was sent
            connection.sendall(self.head("POST", path, len(content), *more) + content)
        return connection

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, headers)
            return json.loads(connection.getresponse().read())


# -- what the hostile tenant does, until it is ended --------------------------------------------


def under_way(target: Target | None = None) -> None:
    """Now the other tenant's requests can be measured. `target`: where runs must be under way."""
    deadline = time.monotonic() + PATIENCE_S
    while target:
        told = target.ask("GET", "/v1/usage")
        if told["running"] + told["queued"]:
            break
        assert time.monotonic() < deadline, "the attack does nothing"
        time.sleep(0.1)
    print("under way", flush=True)


def bodies(target: Target, *more: str) -> None:
    """All the memory for requests, held by runs that wait and sleep."""
    empty = len(json.dumps({"code": SLEEP, "stdin": ""}))
    content = json.dumps({"code": SLEEP, "stdin": "x" * (16 * MIB - empty)}).encode()
    crowd: list[socket.socket] = []
    for number in itertools.count():
        crowd.append(target.send("/v1/runs", content, *more))
        if number == 24:
            under_way(target)
        if number > 24:
            crowd.pop(0).close()
            time.sleep(0.5)


def streams(target: Target) -> None:
    """The same, as event streams."""
    bodies(target, "Accept: text/event-stream")


def sockets(target: Target) -> None:
    """The same, over WebSockets."""
    made = target.ask("POST", "/v1/sandboxes", {"environment": "base"})
    url = f"ws://{target.address}/v1/sandboxes/{made['id']}/socket"
    message = json.dumps({"type": "run", "code": SLEEP, "stdin": "x" * (MIB - 200)})
    while True:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for _ in range(4):
                headers = {"Authorization": f"Bearer {target.key}"}
                talk = stack.enter_context(connect(url, additional_headers=headers, proxy=None))
                for _ in range(25):
                    talk.send(message)
            under_way(target)
            time.sleep(1)


def builds(target: Target) -> None:
    """Packages from an index that never answers."""
    crowd = []
    for number in itertools.count():
        content = json.dumps({"code": "1", "packages": [f"nothing-{number}"]}).encode()
        crowd.append(target.send("/v1/runs", content))
        if number == 20:
            under_way(target)
        if number > 20:
            crowd.pop(0).close()
            time.sleep(0.5)


def idle(target: Target) -> None:
    """Connections without a key: silent ones, and ones that never finish their request."""
    crowd = []
    for number in itertools.count():
        connection = target.socket()
        with contextlib.suppress(OSError):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n" if number % 2 else b"")
        crowd.append(connection)
        if number == 200:
            under_way()
        if number > 200:
            crowd.pop(0).close()
            time.sleep(0.002)


def mistakes(target: Target) -> None:
    """A body that is wrong in 49,000 places."""
    body = {"code": "1", "files": dict.fromkeys(map(str, range(49_000)), 5)}
    assert target.ask("POST", "/v1/runs", body)["error"]["code"] == "invalid_request"
    _again_and_again(target, "POST", "/v1/runs", json.dumps(body).encode())


def health(target: Target) -> None:
    """What looks at the machine, by many at once."""
    _again_and_again(target._replace(key="none"), "GET", "/health")


def trail(target: Target) -> None:
    """The largest answers of the trail, after enough was done to fill one."""
    while len(target.ask("GET", "/v1/trail?limit=500")["lines"]) < 500:
        for _ in range(50):
            target.ask("POST", "/execute", {"code": "1"})
    _again_and_again(target, "GET", "/v1/trail?limit=500")


def input_(target: Target) -> None:
    """Standard input that nobody reads."""
    made = target.ask("POST", "/v1/sandboxes", {"environment": "base"})
    box = f"/v1/sandboxes/{made['id']}"
    begun = target.ask("POST", f"{box}/processes", {"program": ["sleep", "1000"]})
    path = f"{box}/processes/{begun['process_id']}/stdin"
    _again_and_again(target, "POST", path, json.dumps({"data": "x" * (4 * MIB)}).encode())


def brackets(target: Target) -> None:
    """The largest body that is JSON, with as much as can be for a parser to look at; refused."""
    _flood(target, "/v1/runs", _padded({"code": "1", "timeout_s": 0.001}, "stdin", "[,{:"))


def plain(target: Target) -> None:
    """The same with nothing to look at."""
    _flood(target, "/v1/runs", _padded({"code": "1", "timeout_s": 0.001}, "stdin", "x"))


def mcp(target: Target) -> None:
    """The same as messages of the Model Context Protocol."""
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "nothing"}}
    content = _padded(asked, "more", "[,{:\n")
    _flood(target, "/mcp", content, headers={"Accept": "application/json, text/event-stream"})


def small(target: Target) -> None:
    """A crowd with small bodies of many values, all refused."""
    _flood(target, "/v1/runs", json.dumps([1] * 24_000).encode(), crowd=60)


def ahead(target: Target) -> None:
    """Requests sent ahead of their answers, all refused; every other crowd on new connections."""
    asked = target.head("GET", "/v1/sandboxes/none") * 8

    def one() -> None:
        while True:
            with contextlib.suppress(OSError), target.socket() as connection:
                while True:
                    connection.sendall(asked)
                    got = b""
                    while got.count(b"HTTP/1.1 ") < 8:
                        if not (piece := connection.recv(MIB)):
                            raise ConnectionError
                        got += piece

    def new() -> None:
        while True:
            with contextlib.suppress(OSError), target.socket() as connection:
                connection.sendall(target.head("GET", "/v1/sandboxes/none"))
                connection.recv(MIB)

    threading.Thread(target=_crowd, args=(new, ENOUGH), daemon=True).start()
    _crowd(one, ENOUGH)


def full(target: Target) -> None:
    """All connections taken, and hundreds in a second that come, and leave."""
    idle = []
    for _ in range(200):
        connection = target.socket()
        connection.sendall(target.head("GET", "/v1/usage"))
        connection.recv(MIB)
        idle.append(connection)

    def come_and_go() -> None:
        while True:
            with contextlib.suppress(OSError):
                target.socket().close()
            time.sleep(0.02)

    _crowd(come_and_go, ENOUGH)


def usage(target: Target) -> None:
    """What a tenant may ask about itself, after it did as much as it could."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), target.socket() as connection:
            connection.sendall(target.head("POST", "/v1/runs", 2) + b"[]")
            connection.recv(MIB)
    _again_and_again(target, "GET", "/v1/usage")


def messages(target: Target) -> None:
    """The largest messages to a WebSocket."""
    made = target.ask("POST", "/v1/sandboxes", {"environment": "base"})
    url = f"ws://{target.address}/v1/sandboxes/{made['id']}/socket"
    message = _padded({"type": "ping"}, "id", "[,{:", size=MIB - 300).decode()
    headers = {"Authorization": f"Bearer {target.key}"}

    def one() -> None:
        while True:
            with (
                contextlib.suppress(OSError, WebSocketException),
                connect(url, additional_headers=headers, proxy=None, max_size=None) as talk,
            ):
                threading.Thread(target=lambda: list(talk), daemon=True).start()
                while True:
                    talk.send(message)

    _crowd(one, 4)


def frames(target: Target) -> None:
    """Frames of a WebSocket with nothing in them."""
    made = target.ask("POST", "/v1/sandboxes", {"environment": "base"})
    path = f"/v1/sandboxes/{made['id']}/socket"
    key = base64.b64encode(os.urandom(16)).decode()
    upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
    asked = target.head("GET", path, 0, *upgrade, f"Sec-WebSocket-Key: {key}")
    pongs = (b"\x8a\x80" + bytes(4)) * 43_000

    def one() -> None:
        while True:
            with contextlib.suppress(OSError), target.socket() as connection:
                connection.sendall(asked)
                connection.recv(MIB)
                while True:
                    connection.sendall(pongs)

    _crowd(one, 4)


def chunks(target: Target) -> None:
    """Bodies in chunks of one byte; every other without a key."""
    tiny = b"1\r\nx\r\n" * 43_000

    def one(target: Target) -> None:
        lines = [
            "POST /v1/datasets?name=chunks HTTP/1.1",
            *("Host: localhost", f"Authorization: Bearer {target.key}"),
            *("Content-Type: application/octet-stream", "Transfer-Encoding: chunked", "", ""),
        ]
        while True:
            with contextlib.suppress(OSError), target.socket() as connection:
                connection.sendall("\r\n".join(lines).encode())
                while True:
                    connection.sendall(tiny)
            time.sleep(0.02)

    stranger = target._replace(key="none")
    threading.Thread(target=_crowd, args=(partial(one, stranger), 4), daemon=True).start()
    _crowd(partial(one, target), 4)


def answers(target: Target) -> None:
    """The largest answers, read as fast as they come."""
    made = target.ask("POST", "/v1/sandboxes", {"environment": "base", "output_bytes": 8 * MIB})
    path = f"/v1/sandboxes/{made['id']}/processes"
    loud = "head -c 8000000 /dev/zero | tr '\\0' '\\001'"
    begun = target.ask("POST", path, {"program": loud, "shell": True})
    path = f"{path}/{begun['process_id']}"
    while target.ask("GET", path)["running"]:
        time.sleep(0.1)
    assert len(target.ask("GET", path)["result"]["stdout"]) == 8_000_000
    _again_and_again(target, "GET", path)


def _padded(body: dict[str, Any], name: str, filling: str, *, size: int = 16 * MIB) -> bytes:
    """`body` with a text of this filling, so that it has about `size` bytes as JSON."""
    left = size - len(json.dumps({**body, name: ""}))
    return json.dumps({**body, name: filling * (left // (len(json.dumps(filling)) - 2))}).encode()


def _flood(
    target: Target, path: str, content: bytes, *, crowd: int = 2, headers: Any = None
) -> None:
    """On connections that stay, as soon as the last answer has come."""
    given = {
        "Authorization": f"Bearer {target.key}",
        "Content-Type": "application/json",
        **(headers or {}),
    }

    def one() -> None:
        connection = http.client.HTTPConnection(target.address, timeout=PATIENCE_S)
        while True:
            try:
                connection.request("POST", path, content, given)
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                connection.close()
                time.sleep(0.01)

    _crowd(one, crowd)


def _crowd(one: Callable[[], None], count: int) -> None:
    for _ in range(count):
        threading.Thread(target=one, daemon=True).start()
    time.sleep(1)
    under_way()
    threading.Event().wait()


def _again_and_again(target: Target, method: str, path: str, content: bytes = b"") -> None:
    """Several at once, each a little while after its answer came."""

    def one() -> None:
        while True:
            with contextlib.suppress(OSError), target.socket() as connection:
                head = target.head(method, path, len(content), "Connection: close")
                connection.sendall(head + content)
                while connection.recv(1 << 16):
                    pass
            time.sleep(0.1)

    under_way()
    for _ in range(ENOUGH - 1):
        threading.Thread(target=one, daemon=True).start()
    one()


ATTACKS: dict[str, Callable[[Target], None]] = {
    "bodies": bodies,
    "streams": streams,
    "sockets": sockets,
    "builds": builds,
    "idle": idle,
    "mistakes": mistakes,
    "health": health,
    "trail": trail,
    "input": input_,
    "brackets": brackets,
    "plain": plain,
    "mcp": mcp,
    "small": small,
    "ahead": ahead,
    "full": full,
    "usage": usage,
    "messages": messages,
    "frames": frames,
    "chunks": chunks,
    "answers": answers,
}


# -- what the other one sees ---------------------------------------------------------------------


class Seen:
    def __init__(self) -> None:
        self.samples_ms: list[float] = []
        self.failures: list[str] = []

    def p(self, share: float) -> float:
        return percentile(self.samples_ms, share) if self.samples_ms else math.inf


def visit(target: Target, requests: int, seen: Seen) -> None:
    headers = {"Authorization": f"Bearer {target.key}", "Content-Type": "application/json"}
    kept = http.client.HTTPConnection(target.address, timeout=PATIENCE_S)
    small = json.dumps({"code": "print(1)"})
    large = json.dumps({"code": "print(1)", "stdin": "x" * MIB})
    for number in range(requests):
        fresh = number % 5 == 4
        path, body = ("/v1/runs", large) if number % 10 == 9 else ("/execute", small)
        connection = http.client.HTTPConnection(target.address, timeout=PATIENCE_S)
        connection = connection if fresh else kept
        started = time.perf_counter()
        try:
            connection.request("POST", path, body, headers)
            told = json.loads(connection.getresponse().read())
            if told.get("output", told.get("stdout")) != "1\n":
                raise RuntimeError(json.dumps(told)[:200])
        except (OSError, http.client.HTTPException, RuntimeError) as error:
            seen.failures.append(f"{type(error).__name__}: {error}")
            kept.close()
        else:
            if path == "/execute":
                seen.samples_ms.append((time.perf_counter() - started) * 1000)
        if fresh:
            connection.close()
        time.sleep(0.01)
    kept.close()


@contextlib.contextmanager
def attacked(name: str, target: Target) -> Iterator[None]:
    argv = [sys.executable, "-m", "bench.neighbours", "--attack", name, *target]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, preexec_fn=lambda: os.nice(19) and None
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline(), "the attack has ended"
            yield
        finally:
            process.kill()


def silent_index() -> str:
    """Takes every request and answers none."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    held = []

    def accept() -> None:
        while True:
            held.append(listening.accept()[0])

    threading.Thread(target=accept, daemon=True).start()
    return f"http://127.0.0.1:{listening.getsockname()[1]}/simple"


def settled(server: Served, key: str) -> None:
    """Until nothing of the last attack is under way."""
    deadline = time.monotonic() + 2 * PATIENCE_S
    while time.monotonic() < deadline:
        told = server.ask("GET", "/v1/usage", key=key)  # 429 while its connections are too many
        if told.status == 200 and not told.json()["running"] + told.json()["queued"]:
            break
        time.sleep(0.2)
    for box in server.ask("GET", "/v1/sandboxes", key=key).json()["sandboxes"]:
        server.ask("DELETE", f"/v1/sandboxes/{box['id']}", key=key)


def measure(names: list[str], requests: int) -> dict[str, tuple[Seen, Seen]]:
    for name in ("UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"):
        os.environ.pop(name, None)
    os.environ |= {"UV_DEFAULT_INDEX": silent_index(), "UV_HTTP_TIMEOUT": "600"}
    found = {}
    sandboxes = {"engines": ["jail"], "packages_allowed": "any"}
    with served(keys=True, connections=100, log_level="warning", sandboxes=sandboxes) as server:
        keys = {who: server.belljar("keys", "add", who).strip() for who in ("hostile", "other")}
        time.sleep(2)  # until the server has read them
        address = server.url.removeprefix("http://")
        other, hostile = Target(address, keys["other"]), Target(address, keys["hostile"])
        visit(other, requests // 4, Seen())
        for name in names:
            quiet, loud = found[name] = (Seen(), Seen())
            visit(other, requests // 2, quiet)
            with attacked(name, hostile):
                visit(other, requests, loud)
            settled(server, hostile.key)
            visit(other, requests // 2, quiet)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.neighbours", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*ATTACKS, []], help="only these attacks")
    parser.add_argument("--requests", type=int, default=400, help="of the other tenant, each time")
    parser.add_argument("--attack", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.attack:
        name, *target = chosen.attack
        ATTACKS[name](Target(*target))
        return 0
    table = Table("attack", "quiet p50", "p99", "attacked p50", "p99", "ratio of p99", "failures")
    wrong = 0
    for name, (quiet, loud) in measure(chosen.names or list(ATTACKS), chosen.requests).items():
        ratio = loud.p(99) / quiet.p(99)
        failures = len(quiet.failures) + len(loud.failures)
        wrong += ratio > MOST_RATIO or failures > 0
        figures = (quiet.p(50), quiet.p(99), loud.p(50), loud.p(99))
        shown = [f"{figure:.1f} ms" for figure in figures]
        table.add_row(name, *shown, f"{ratio:.2f}", str(failures))
        for failure in (*quiet.failures, *loud.failures)[:3]:
            print(f"{name}: {failure}", file=sys.stderr)
    Console().print(table)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
