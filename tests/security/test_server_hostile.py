"""The server as the target: hostile headers, bodies, pages, tenants. A real one on loopback."""

from __future__ import annotations

import contextlib
import hmac
import json
import re
import select
import socket
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from belljar.probes.judges.arguments import NONSENSE, NOT_NAMES, RUNTIME_VARIABLES
from belljar.testing.served import Answer, Served, served

PLENTY_S = 30.0


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(
        keys=True,
        header_timeout_s=1.0,
        body_timeout_s=1.0,
        body_bytes=1 << 20,
        bodies_bytes=4 << 20,
        connections=40,
        sandboxes={"pool_size": 2, "build_environments": False, "engines": ["jail"]},
    ) as server:
        yield server
        assert server.process.poll() is None, "an attack ended the server"
        looked = Path(f"/proc/{server.process.pid}/status").read_text()
        peak_kib = int(re.search(r"VmHWM:\s+(\d+)", looked)[1])  # type: ignore[index]
        assert peak_kib < 400 * 1024, "an attack took the server's memory"


@pytest.fixture(autouse=True)
def still_well(server: Served) -> Iterator[None]:
    """After every attack the server answers as before."""
    yield
    assert server.execute("print(6 * 7)").json()["output"] == "42\n"


def code_of(answer: Answer) -> str:
    found: str = answer.json()["error"]["code"]
    return found


class Raw:
    """A connection to write any bytes to."""

    def __init__(self, server: Served) -> None:
        host, _, port = server.url.removeprefix("http://").partition(":")
        self.socket = socket.create_connection((host, int(port)), PLENTY_S)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, content: bytes) -> Raw:
        self.socket.sendall(content)
        return self

    def drip(self) -> int:
        """A byte now and then, as slowloris does; the status with which the server ends that."""
        deadline = time.monotonic() + PLENTY_S
        while not select.select([self.socket], [], [], 0.05)[0]:
            assert time.monotonic() < deadline, "it may drip for ever"
            self.socket.sendall(b"x")
        return status(self.rest())

    def until(self, end: bytes) -> bytes:
        found = b""
        while not found.endswith(end):
            found += self.socket.recv(65536)
        return found

    def rest(self) -> bytes:
        """Until the server closes."""
        found = b""
        try:
            while part := self.socket.recv(65536):
                found += part
        except ConnectionResetError:
            pass
        return found


def status(reply: bytes) -> int:
    return int(reply.split(b" ", 2)[1])


def request(server: Served, body: bytes, *more: str) -> bytes:
    lines = [
        "POST /execute HTTP/1.1",
        f"Host: {server.url.removeprefix('http://')}",
        f"Authorization: Bearer {server.key}",
        "Content-Type: application/json",
        "Connection: close",
        *more,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


# -- web pages -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "8.8.8.8", "", "localhost@evil",
     "localhost/..", "[::1", "localhost:x", "a b", "127.0.0.1, evil", "lоcalhost"],
)  # fmt: skip
def test_dns_rebinding_meets_the_host_check(server: Served, host: str) -> None:
    raw = request(server, b"{}").replace(
        server.url.removeprefix("http://").encode(), host.encode(), 1
    )
    with Raw(server) as connection:
        assert status(connection.send(raw).rest()) in (400, 403)


def test_names_of_loopback_are_welcome(server: Served) -> None:
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8321", "127.9.9.9"):
        assert server.ask("GET", "/v1/usage", headers={"Host": host}).status == 200, host


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://localhost:1", "https://{host}", "http://{host}.evil",
     "http://{host}/", "file://", ""],
)  # fmt: skip
def test_pages_from_elsewhere_meet_the_origin_check(server: Served, origin: str) -> None:
    given = origin.format(host=server.url.removeprefix("http://"))
    for method, path in (("POST", "/execute"), ("GET", "/health"), ("OPTIONS", "/execute")):
        answer = server.ask(method, path, headers={"Origin": given})
        assert (answer.status, code_of(answer)) == (403, "origin_refused")
        assert "access-control-allow-origin" not in answer.headers


def test_its_own_page_may(server: Served) -> None:
    assert server.ask("GET", "/health", headers={"Origin": server.url}).status == 200


def test_a_form_cannot_run_code(server: Served) -> None:
    """What a page can send without asking first: form types, no Origin in old browsers."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        answer = server.ask(
            "POST", "/execute", b'{"code": "print(1)"}', headers={"Content-Type": kind}
        )
        assert answer.status == 415, kind


def test_the_cookie_is_not_for_other_ports_pages() -> None:
    with served(sandboxes={"pool_size": 1}) as local:
        cookie = local.ask("GET", f"/?token={local.key}", key=None).headers["Set-Cookie"]
        session = {"Cookie": cookie.partition(";")[0]}
        for site, wanted in (("same-origin", 200), ("same-site", 401), ("cross-site", 401)):
            headers = session | {"Sec-Fetch-Site": site}
            assert local.ask("GET", "/v1/usage", key=None, headers=headers).status == wanted
        # A local server has no keys, and another server's key is nothing here.
        assert local.ask("GET", "/v1/usage", key="blj_" + "0" * 12 + "_" + "A" * 43).status == 401


# -- keys ------------------------------------------------------------------------------------------


def test_keys_that_are_none(server: Served) -> None:
    identity, secret = server.key.split("_", 2)[1:]
    wrong = [
        *("", "x", "Bearer", server.key[:-1], server.key + "A", server.key.upper()),
        *(f"blj_{identity}_{'A' * 43}", f"blj_{'0' * 12}_{secret}", f"blj_{identity}_", secret),
        *(f"blj_{identity}_{secret[::-1]}", "blj__", "a" * 60_000, "ü"),
    ]
    seen = set()
    for key in wrong:
        headers = {"Authorization": f"Bearer {key}".encode().decode("latin-1")}
        answer = server.ask("GET", "/v1/usage", key=None, headers=headers)
        assert answer.status == 401, key[:60]
        seen.add(answer.content)
    assert len(seen) == 1, "a wrong id and a wrong secret are told apart"
    for scheme in ("Basic", "Token", ""):
        headers = {"Authorization": f"{scheme} {server.key}".strip()}
        assert server.ask("GET", "/v1/usage", key=None, headers=headers).status == 401
    assert (
        server.ask("GET", f"/v1/usage?key={server.key}&token={server.key}", key=None).status == 401
    )


def test_a_known_id_is_not_told_apart_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same work for both: a hash, and one comparison that takes as long for any secret."""
    from belljar.server import keys

    compared: list[tuple[int, int]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(keys, "hmac", types.SimpleNamespace(compare_digest=compare))
    key, text = keys.make("x", now=0.0)
    ring = keys.Keyring([key])
    for guess in (f"blj_{key.id}_{'A' * 43}", f"blj_{'0' * 12}_{'A' * 43}", "nonsense"):
        assert ring.find(guess) is None
    assert compared == [(32, 32)] * 3
    assert ring.find(text) is key


def test_secrets_are_stored_as_hashes_and_never_logged(server: Served) -> None:
    secret = server.key.split("_", 2)[2]
    server.ask("GET", f"/?token={server.key}")
    server.ask("POST", "/execute", {"code": "print('hunter2')", "env_vars": {"TOKEN": "hunter3"}})
    for file in server.home.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert secret.encode() not in content, file
            assert b"hunter" not in content, file
    assert (server.home / "server" / "state.db").stat().st_mode & 0o077 == 0


def test_tenants_do_not_see_each_other(server: Served) -> None:
    other = server.belljar("keys", "add", "other").strip()
    deadline = time.monotonic() + PLENTY_S
    while server.ask("GET", "/v1/usage", key=other).status == 401:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    used = server.ask("GET", "/v1/usage", key=other).json()
    assert (used["tenant"], used["runs"]) == ("other", 0)
    refused = server.ask("GET", "/metrics", key=other)
    assert (refused.status, code_of(refused)) == (403, "forbidden")
    server.belljar("keys", "remove", other.split("_")[1])
    while server.ask("GET", "/v1/usage", key=other).status != 401:
        assert time.monotonic() < deadline
        time.sleep(0.1)


# -- headers ---------------------------------------------------------------------------------------


def test_huge_headers_end_the_connection(server: Served) -> None:
    for junk in (b"X: " + b"a" * (1 << 20), b"".join(b"X%d: y\r\n" % n for n in range(200_000))):
        with Raw(server) as connection:
            try:
                connection.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + junk)
            except (BrokenPipeError, ConnectionResetError):
                pass
            reply = connection.rest()
        assert not reply or status(reply) in (400, 431)


def flood(connection: Raw, start: bytes) -> int:
    """Bytes of one header that the server takes before it has had enough; at most 64 MB."""
    connection.send(start)
    sent = 0
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while sent < 64 << 20:
            connection.send(b"x" * 0x10000)
            sent += 0x10000
    return sent


def test_headers_after_a_body_are_bounded(server: Served) -> None:
    with Raw(server) as connection:
        start = request(server, b"1\r\n{\r\n0\r\nX: ", "Transfer-Encoding: chunked")
        assert flood(connection, start) < 32 << 20


@pytest.mark.parametrize("ahead", ["headers", "requests", "upgrade", "nothing more"])
def test_what_is_sent_ahead_is_bounded_and_ends_with_its_connection(
    server: Served, ahead: str
) -> None:
    """Behind an answer that is under way; whose run ends when its client goes, all the same."""
    body = b'{"code": "import time; time.sleep(25)", "timeout_s": 30}'
    events = f"Content-Length: {len(body)}", "Accept: text/event-stream"
    first = request(server, body, *events).replace(b"/execute", b"/v1/runs")
    second = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    with Raw(server) as connection:
        connection.send(first.replace(b"Connection: close\r\n", b""))
        connection.until(b"\n\r\n")
        if ahead == "headers":
            assert flood(connection, second + b"X: ") < 32 << 20
        elif ahead == "requests":
            connection.send((second + b"\r\n") * 100)
            connection.rest()
        elif ahead == "upgrade":
            connection.send(second + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n")
            connection.rest()
        else:
            connection.send(second + b"\r\n")
    deadline = time.monotonic() + 10
    while server.ask("GET", "/v1/usage").json()["running"]:
        assert time.monotonic() < deadline, "its run goes on"
        time.sleep(0.02)


def test_a_header_that_is_there_twice_is_refused(server: Served) -> None:
    for more in ("Host: localhost", "Authorization: Bearer x", "Content-Type: text/plain"):
        with Raw(server) as connection:
            reply = connection.send(request(server, b"", more, "Content-Length: 0")).rest()
        assert status(reply) == 400, more


def test_smuggling_is_refused(server: Served) -> None:
    body = b"0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    both = ("Content-Length: 4", "Transfer-Encoding: chunked")
    for more in (both, ("Content-Length: 4", "Content-Length: 5"), ("Content-Length: -1",)):
        with Raw(server) as connection:
            reply = connection.send(request(server, body, *more)).rest()
        assert reply.count(b"HTTP/1.1 ") == 1 and status(reply) in (400, 415), more


def test_a_request_id_is_taken_over_only_if_it_is_harmless(server: Served) -> None:
    good = server.ask("GET", "/health", headers={"X-Request-ID": "abc-1"})
    assert good.headers["X-Request-ID"] == "abc-1"
    for hostile in ("x" * 65, "a b", "<script>", '"}{"', "ü"):
        sent = {"X-Request-ID": hostile.encode().decode("latin-1")}
        answer = server.ask("GET", "/health", headers=sent)
        assert re.fullmatch("[0-9a-f]{16}", answer.headers["X-Request-ID"])


# -- slow clients ----------------------------------------------------------------------------------


def test_slow_headers_and_bodies_are_cut_off(server: Served) -> None:
    starts = (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ",
        b"GET /",
        request(server, b"{", "Content-Length: 10000"),
    )
    for start in starts:
        with Raw(server) as connection:
            assert connection.send(start).drip() == 408, start
    with Raw(server) as connection:
        assert status(connection.rest()) == 408, "said nothing at all"
    with Raw(server) as connection:  # a second request on a connection that was good
        first = request(server, b'{"code": "1"}', "Content-Length: 13")
        connection.send(first.replace(b"Connection: close\r\n", b""))
        assert connection.until(b"}").startswith(b"HTTP/1.1 200 ")
        assert connection.send(b"GET /").drip() == 408


def test_many_idle_connections_do_not_keep_others_out(server: Served) -> None:
    idle = [Raw(server) for _ in range(60)]
    try:
        deadline = time.monotonic() + PLENTY_S
        while True:
            try:
                if server.ask("GET", "/health").status == 200:
                    break
            except OSError:
                pass
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        for connection in idle:
            connection.socket.close()


# -- bodies ----------------------------------------------------------------------------------------


def test_a_body_is_bounded_while_it_comes_in(server: Served) -> None:
    large = server.ask("POST", "/execute", b'{"code": "' + b"#" * (1 << 20) + b'"}')
    assert (large.status, code_of(large)) == (413, "body_too_large")
    with Raw(server) as connection:  # no length told
        connection.send(request(server, b"", "Transfer-Encoding: chunked"))
        sent, answer = 0, b""
        # Who sends on and on may be cut off before the answer is read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while not select.select([connection.socket], [], [], 0)[0]:
                connection.send(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
                sent += 0x10000
            answer = connection.socket.recv(65536)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 413 ")
        assert sent < 16 << 20


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"code":' * 50_000,
        b'{"code": "x", "env_vars": ' + b'{"a":' * 1000 + b"1" + b"}" * 1000 + b"}",
        b"[" + b"[]," * 200_000 + b"[]]",
        b'{"code": "x", "timeout": NaN}',
        b'{"code": "x", "timeout": Infinity}',
        b'{"code": "x", "timeout": -Infinity}',
        b'{"code": "x", "timeout": 1e999}',
        b'{"code": "x", "timeout": ' + b"9" * 5000 + b"}",
        b'{"code": "x", "code": "y"}',
        b'{"code": "\\ud800"}',
        b'{"code": "x", "env_vars": {"\\udfff": "x"}}',
        b'{"code": "x", "env_vars": {"A": "\\u0000"}}',
        b'{"code": "x", "language": "\\u0000"}',
        b'{"code": "\xff\xfe"}',
        '{"code": "print(1)"}'.encode("utf-16"),
        b"\xef\xbb\xbf{}",
        b"",
        b"\0",
        b'"code"',
        b"{}{}",
        b'{"code": "x", "__proto__": {}}',
    ],
    ids=range(22),
)
def test_json_bombs_and_nonsense_are_a_400(server: Served, body: bytes) -> None:
    for path in ("/execute", "/v1/runs"):
        answer = server.ask("POST", path, body, timeout_s=PLENTY_S)
        assert answer.status == 400, answer
        assert set(answer.json()["error"]) == {"code", "message", "hint", "retryable"}


def test_half_a_character_is_refused_everywhere_and_blinds_nobody(server: Served) -> None:
    """In names and values: it cannot be written as UTF-8, so one line of it in the trail kept an
    operator from reading the whole page."""
    half = "\ud800"
    box = server.ask("POST", "/v1/sandboxes", {}).json()["id"]
    routes = server.ask("GET", "/openapi.json").json()["paths"]
    asked = 0
    for path, operations in routes.items():
        for method, operation in operations.items():
            kinds = operation.get("requestBody", {}).get("content", {})
            if "application/json" not in kinds:
                continue
            target = path.replace("{sandbox_id}", box)
            target = re.sub(r"{\w+}", "1", target)
            texts = {"code": half, "stdin": half, "program": ["cat", half], "url": half}
            for body in (
                {half: 1},
                texts,
                {"code": "1", "program": ["cat"], "stdin": half},
                *({"code": "1", name: {half: "x"}} for name in ("files", "inputs", "env")),
                *({"code": "1", name: {"A": half}} for name in ("files", "inputs", "env")),
                {"code": "1", "secrets": {half: {"value": "12345678", "host": "a.example"}}},
                {"code": "1", "secrets": {"A": {"value": half, "host": "a.example"}}},
                {"files": {"a": half}},
                {"inputs": {"a": {"dataset": half}}},
            ):
                answer = server.ask(method.upper(), target, body)
                assert 400 <= answer.status < 500, (method, target, answer)
                asked += 1
    assert asked > 50
    message = {"jsonrpc": "2.0", "id": half, "method": "tools/call", "params": {half: half}}
    accept = {"Accept": "application/json, text/event-stream"}
    assert server.ask("POST", "/mcp", message, headers=accept).status == 400
    quoted = "%ed%a0%80"
    for path in (f"/v1/trail?tenant={quoted}", f"/v1/sandboxes/{box}/files?path={quoted}"):
        assert server.ask("GET", path).status < 500, path
    assert server.ask("POST", f"/v1/datasets?name={quoted}", b"x").status < 500
    server.ask("DELETE", f"/v1/sandboxes/{box}")
    pages, before = 0, ""
    while lines := server.ask("GET", f"/v1/trail?limit=20{before}").json()["lines"]:
        before = f"&before_seq={(lines[-1]['attempt'] or lines[-1]['end'])['seq']}"
        pages += 1
    assert pages


def test_code_with_null_bytes_is_the_codes_own_problem(server: Served) -> None:
    answer = server.execute("print(1)\0")
    assert answer.status in (200, 400)
    if answer.status == 200:
        assert not answer.json()["success"]


# -- the API probes, over HTTP ---------------------------------------------------------------------


def test_ap_limits_are_limits(server: Served) -> None:
    names = ("timeout_s", "memory_bytes", "cpus", "processes", "disk_bytes", "disk_files")
    for name in names:
        for value in (*NONSENSE, True, None):
            body = json.dumps({"code": "print(1)", name: value}).encode()
            answer = server.ask("POST", "/v1/runs", body)
            assert answer.status == (200 if value is None else 400), (name, value)


def test_ap_variables_stay_inside(server: Served, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    evil = f"open({str(marker)!r}, 'w')"
    for name in (*RUNTIME_VARIABLES, *NOT_NAMES):
        body: dict[str, Any] = {
            "code": "print(1)",
            "env": {name: "/workspace"},
            "files": {"sitecustomize.py": evil},
        }
        answer = server.ask("POST", "/v1/runs", body)
        assert answer.status == 400 or answer.json()["status"] in ("ok", "error"), name
        if name in NOT_NAMES:
            assert answer.status == 400, name
    assert not marker.exists()


def test_ap_file_names_stay_inside(server: Served) -> None:
    names = ("../x", "/etc/x", "a/../../x", "x\0.txt", "", ".", "..", "/", "x" * 300, "\ud800")
    for option in ("files", "inputs"):
        for name in names:
            body = {"code": "print(1)", option: {name: "x"}}
            assert server.ask("POST", "/v1/runs", body).status == 400, name
    wrong = {"code": "print(1)", "files": {"a": {"base64": "not base64!"}}}
    assert server.ask("POST", "/v1/runs", wrong).status == 400


def test_no_route_names_a_file_of_the_host(server: Served) -> None:
    climbing = ("/../etc/passwd", "/%2e%2e/etc/passwd", "/static/..%2f..%2fetc/passwd")
    for path in (*climbing, "//etc/passwd", "/v1/../metrics/x", "/%00", "/\xfc"):
        raw = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        raw += f"Authorization: Bearer {server.key}\r\n\r\n"
        with Raw(server) as connection:
            assert status(connection.send(raw.encode("latin-1")).rest()) in (400, 404), path


def test_errors_tell_nothing_of_the_host(server: Served) -> None:
    texts = [
        server.ask("POST", "/v1/runs", {"code": "1", "engine": "docker"}).content,
        server.ask("POST", "/v1/runs", {"code": "1", "environment": "../../etc"}).content,
        server.ask("POST", "/v1/runs", {"code": "1", "environment": "data"}).content,
        server.ask("POST", "/execute", b"{").content,
        server.ask("GET", "/health").content,
    ]
    for text in texts:
        assert b"Traceback" not in text and str(server.home).encode() not in text
        assert b"site-packages" not in text
