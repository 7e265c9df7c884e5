"""N1, N2: the gateway by itself, on loopback: what goes through, what code is given, how it lives.

What attacks it is in tests/security/gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import http.server
import os
import re
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from belljar.egress.gateway import Gateway, Lease
from belljar.errors import BelljarError, Closed, InvalidRequest, Unavailable
from belljar.network import Allow, Egress, Secret, rules
from belljar.settings import Settings
from tests.world.certificates import Authority

T = TypeVar("T")
WITHIN_S = 30.0
VALUE = "sk-a-value-that-nobody-may-see-0123"


class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        lines = [f"{self.command} {self.path}", *(f"{k}: {v}" for k, v in self.headers.items())]
        body = "\n".join(lines).encode() + b"\n\n" + sent
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


class Portal:
    """A loop in a thread, as a service has one."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(WITHIN_S)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


class Place:
    """Servers, a gateway, and leases with doors on loopback."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.portal = Portal()
        self.servers = [_server(None), _server(self.authority.context("api.test"))]
        self.http, self.https = (server.server_address[1] for server in self.servers)
        given = {
            "home": folder / "home",
            "network_private": ("127.0.0.0/8",),
            "network_names": {"api.test": "127.0.0.1", "bad.test": "127.0.0.1"},
            "network_authorities": self.authority.file,
            "network_denied": ("bad.test",),
        }
        self.gateway = Gateway(Settings(**(given | settings)))

    def close(self) -> None:
        self.portal.run(self.gateway.close())
        self.portal.close()
        for server in self.servers:
            server.shutdown()
            server.server_close()

    @contextlib.contextmanager
    def open(self, *given: Allow | str, **secrets: Secret) -> Iterator[Way]:
        told: list[Egress] = []
        lease = self.portal.run(self.gateway.open(rules(given), secrets, on_egress=told.append))
        try:
            yield Way(self, lease, told)
        finally:
            self.portal.run(lease.close())

    @property
    def pid(self) -> int:
        (process,) = self.gateway.processes
        return process.pid


class Way:
    def __init__(self, place: Place, lease: Lease, told: list[Egress]) -> None:
        self.place, self.lease, self.told = place, lease, told
        doors = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        self.ports = [door.getsockname()[1] for door in doors]
        with lease.wire() as wire:
            socket.send_fds(wire, [b"L"], [door.fileno() for door in doors])
        for door in doors:
            door.close()
        pem = lease.files[".belljar/ca.pem"].decode()
        self.trusting = ssl.create_default_context(cadata=pem)

    def get(self, url: str, data: bytes | None = None, **headers: str) -> tuple[int, str]:
        proxy = f"http://127.0.0.1:{self.ports[0]}"
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({"http": proxy, "https": proxy}),
            urllib.request.HTTPSHandler(context=self.trusting),
        )
        asked = urllib.request.Request(url, data, headers)
        try:
            with opener.open(asked, timeout=WITHIN_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, f"{error.reason}\n{error.read().decode()}"

    def last(self) -> Egress:
        """Told as soon as it is over, which the client may know a moment earlier."""
        _eventually(lambda: bool(self.told))
        return self.told[-1]


def _server(context: ssl.SSLContext | None) -> http.server.ThreadingHTTPServer:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _eventually(wanted: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not wanted():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("gateway"))
    yield made
    made.close()


@pytest.fixture
def way(place: Place) -> Iterator[Way]:
    hosts = [f"{name}.test:{port}" for name in ("api", "bad") for port in (place.http, place.https)]
    with place.open(*hosts) as opened:
        yield opened


def test_plain_http(way: Way) -> None:
    status, body = way.get(f"http://api.test:{way.place.http}/a/b?q=secret", **{"X-Mine": "1"})
    assert status == 200 and body.startswith("GET /a/b?q=secret\n") and "X-Mine: 1" in body
    assert f"Host: api.test:{way.place.http}" in body and "Proxy" not in body
    told = way.last()
    assert (told.verdict, told.host, told.port) == ("allowed", "api.test", way.place.http)
    assert (told.address, told.scheme, told.method) == ("127.0.0.1", "http", "GET")
    assert (told.path, told.status, told.rule) == ("/a/b", 200, f"api.test:{way.place.http}")
    assert told.bytes_sent > 0 < told.bytes_received


def test_bodies_in_both_directions(way: Way) -> None:
    data = os.urandom(300_000).hex().encode()
    for scheme, port in (("http", way.place.http), ("https", way.place.https)):
        status, body = way.get(f"{scheme}://api.test:{port}/", data)
        assert status == 200 and body.endswith(data.decode())


def test_https_is_opened_and_looked_into(way: Way) -> None:
    status, body = way.get(f"https://api.test:{way.place.https}/x?y")
    assert status == 200 and body.startswith("GET /x?y\n")
    told = way.last()
    assert (told.scheme, told.method, told.path, told.status) == ("https", "GET", "/x", 200)
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        way.trusting = ssl.create_default_context()  # of the host: does not know the gateway
        way.get(f"https://api.test:{way.place.https}/")


def test_a_refusal_says_what_to_ask_for(way: Way) -> None:
    status, said = way.get("http://other.test/")
    assert status == 403 and "no rule allows other.test:80" in said.splitlines()[0]
    assert way.last().verdict == "refused" and way.last().why in said
    with pytest.raises(urllib.error.URLError, match=r"no rule allows other\.test:443"):
        way.get("https://other.test/")
    status, said = way.get(f"http://bad.test:{way.place.http}/")
    assert status == 403 and "denied" in said


def test_socks(way: Way) -> None:
    def ask(name: str) -> tuple[socket.socket, int]:
        dialled = socket.create_connection(("127.0.0.1", way.ports[0]), WITHIN_S)
        dialled.sendall(b"\5\1\0" + b"\5\1\0\3" + bytes([len(name)]) + name.encode())
        dialled.sendall(struct.pack(">H", way.place.https))
        assert dialled.recv(2) == b"\5\0"
        return dialled, dialled.recv(10)[1]

    dialled, reply = ask("api.test")
    assert reply == 0
    with way.trusting.wrap_socket(dialled, server_hostname="api.test") as secured:
        host = f"api.test:{way.place.https}"
        secured.sendall(f"GET /s HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        assert secured.recv(100).startswith(b"HTTP/1.1 200")
    dialled, reply = ask("other.test")
    dialled.close()
    assert reply == 2
    assert {one.verdict for one in way.told} <= {"allowed", "refused"}


def test_without_a_proxy(place: Place) -> None:
    """Doors 80 and 443: the name is in the request, or in the handshake."""
    with place.open("api.test") as way:
        with socket.create_connection(("127.0.0.1", way.ports[1]), WITHIN_S) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n")
            assert plain.recv(1000).startswith(b"HTTP/1.1 403 belljar: no rule allows other.test")
        dialled = socket.create_connection(("127.0.0.1", way.ports[2]), WITHIN_S)
        with pytest.raises(ssl.SSLError), dialled:
            way.trusting.wrap_socket(dialled, server_hostname="other.test")
        dialled = socket.create_connection(("127.0.0.1", way.ports[2]), WITHIN_S)
        with way.trusting.wrap_socket(dialled, server_hostname="api.test") as secured:
            secured.sendall(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
            # The way is there; on port 443 of this machine nobody listens for it.
            assert secured.recv(1000).startswith(b"HTTP/1.1 502 belljar: api.test:443 cannot")
        _eventually(lambda: len(way.told) == 3)
        assert [one.verdict for one in way.told] == ["refused", "refused", "failed"]


def test_many_requests_on_one_connection(way: Way) -> None:
    host = f"api.test:{way.place.http}"
    kept = http.client.HTTPConnection("127.0.0.1", way.ports[0], timeout=WITHIN_S)
    for number in range(5):
        kept.request("GET", f"http://{host}/{number}")
        used = kept.sock
        assert f"GET /{number}\n".encode() in kept.getresponse().read()
        assert kept.sock is used
    kept.close()
    _eventually(lambda: len(way.told) == 5)


def test_what_code_is_given(place: Place) -> None:
    with place.open(Allow("api.test", "*.wild.test", "odd.test:8080"), KEY=_secret()) as way:
        variables = way.lease.variables
        for name in ("HTTP_PROXY", "https_proxy"):
            assert variables[name] == "http://127.0.0.1:3128"
        assert not {"ALL_PROXY", "all_proxy"} & set(variables)
        assert variables["NO_PROXY"] == variables["no_proxy"] == "localhost,127.0.0.1,::1"
        assert variables["SSL_CERT_FILE"] == "/data/input/.belljar/ca.pem"
        assert len(variables["KEY"]) == len(VALUE) and variables["KEY"] != VALUE
        assert way.lease.hosts == {"api.test": "127.0.0.1"}
        (pem,) = way.lease.files.values()
        assert pem.count(b"BEGIN CERTIFICATE") == 1 and b"PRIVATE" not in pem
    with place.open(Allow("api.test", inspect=False)) as way:
        (pem,) = way.lease.files.values()
        assert place.authority.file.read_bytes().strip() in pem


def _secret() -> Secret:
    return Secret(VALUE, host="api.test")


def test_n2_a_secret_is_put_in_and_taken_out(place: Place) -> None:
    with place.open(f"api.test:{place.https}", f"api.test:{place.http}", KEY=_secret()) as way:
        key = way.lease.variables["KEY"]
        authorization = {"Authorization": f"Bearer {key}"}
        seen: list[str] = []
        Echo.log_request = lambda self, *_: seen.append(self.headers["Authorization"])  # type: ignore[method-assign,assignment]
        try:
            status, body = way.get(f"https://api.test:{place.https}/", **authorization)
            assert status == 200 and seen == [f"Bearer {VALUE}"]
            assert key in body and VALUE not in body
            status, said = way.get(f"http://api.test:{place.http}/", **authorization)
            assert status == 403 and "https only" in said and len(seen) == 1
        finally:
            del Echo.log_request
    _eventually(lambda: len(way.told) == 2)
    assert [one.verdict for one in way.told] == ["allowed", "blocked"]
    assert VALUE not in repr(way.told)


def test_secrets_need_inspection(place: Place) -> None:
    with (
        pytest.raises(InvalidRequest, match="inspect=False"),
        place.open(Allow("api.test", inspect=False), KEY=_secret()),
    ):
        pass


def test_rules_change_while_it_lives(way: Way) -> None:
    url = f"http://api.test:{way.place.http}/"
    assert way.get(url)[0] == 200
    way.place.portal.run(way.lease.change(rules("other.test")))
    assert way.get(url)[0] == 403
    assert way.lease.hosts == {"other.test": "127.0.0.1"}


def test_a_closed_lease_lets_nothing_through_and_has_told_all(place: Place) -> None:
    with place.open(f"api.test:{place.http}") as way:
        for _ in range(20):
            assert way.get(f"http://api.test:{place.http}/")[0] == 200
        place.portal.run(way.lease.close())
        assert len(way.told) == 20
        with pytest.raises(OSError):
            way.get(f"http://api.test:{place.http}/")
        with pytest.raises(Closed):
            way.lease.wire()


def test_own_addresses_are_not_dialled(tmp_path: Path) -> None:
    """Without network_private; also what only this machine's interfaces have."""
    other = Place(tmp_path, network_private=())
    try:
        with other.open(f"api.test:{other.http}", f"localhost:{other.http}") as way:
            for name in ("api.test", "localhost"):
                status, said = way.get(f"http://{name}:{other.http}/")
                assert status == 403 and "not a public address" in said
            _eventually(lambda: len(way.told) == 2)  # the code may hear of it first
            assert [one.verdict for one in way.told] == ["blocked", "blocked"]
    finally:
        other.close()


def test_the_operator_may_name_any_number_of_hosts(tmp_path: Path) -> None:
    many = tuple(f"host{number}.example" for number in range(300))

    async def opens() -> str:
        settings = Settings(home=tmp_path, network_allowed=many, network_denied=many[:150])
        gateway = Gateway(settings)
        try:
            lease = await gateway.open(rules(many[200]), on_egress=lambda _: None)
            return lease.variables["http_proxy"]
        finally:
            await gateway.close()

    assert asyncio.run(opens()).startswith("http://127.0.0.1:")


def test_the_process_has_given_up_what_it_does_not_need(way: Way) -> None:
    folder = Path(f"/proc/{way.place.pid}")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    assert status["NoNewPrivs"].strip() == "1" and status["Seccomp"].strip() == "2"
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[name], 16) == 0
    if os.geteuid() == 0:
        uids = {int(uid) for uid in status["Uid"].split()}
        assert 0 not in uids and len(uids) == 1 and not status["Groups"].strip()
        assert int(status["CapBnd"], 16) == 0
    else:
        with pytest.raises(PermissionError):  # not dumpable: not even who started it may look
            (folder / "environ").read_bytes()
    limits = (folder / "limits").read_text()
    assert re.search(r"Max data size +1073741824 +1073741824 ", limits), limits
    said = (folder / "cmdline").read_bytes()
    assert b"PRIVATE" not in said and str(way.place.folder).encode() not in said


def test_it_starts_anew_when_it_is_lost(place: Place) -> None:
    with place.open(f"api.test:{place.http}") as way:
        lost = place.pid
        os.kill(lost, signal.SIGKILL)
        _eventually(lambda: not way.lease._process.alive)
        with pytest.raises(Unavailable, match="has ended"):
            way.lease.wire()
    with place.open(f"api.test:{place.http}") as way:
        assert way.get(f"http://api.test:{place.http}/")[0] == 200
        assert place.pid != lost


def test_it_ends_with_its_owner(tmp_path: Path) -> None:
    program = f"""
import asyncio, os, signal
from pathlib import Path
from belljar.egress.gateway import Gateway
from belljar.network import rules
from belljar.settings import Settings
async def main():
    gateway = Gateway(Settings(home=Path({str(tmp_path)!r})))
    await gateway.open(rules("api.test"), on_egress=print)
    print(gateway.processes[0].pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    _eventually(lambda: not Path(f"/proc/{int(ended.stdout)}").exists())


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("network_private", ("10.0.0.0/99",)),
        ("network_denied", ("not a host",)),
        ("network_names", {"127.0.0.1": "127.0.0.1"}),
        ("network_authorities", Path("/nonexistent.pem")),
        ("network_namespace", "/nonexistent"),
    ],
)
def test_a_setting_that_cannot_be_is_said(tmp_path: Path, setting: str, value: object) -> None:
    place = Place(tmp_path, **{setting: value})
    try:
        with pytest.raises(BelljarError, match=r"network|nonexistent"), place.open("api.test"):
            pass
    finally:
        place.close()
