"""Secrets through the real gateway: to the right host, and nothing of them back (N2)."""

from __future__ import annotations

import array
import asyncio
import base64
import datetime
import gzip
import http.client
import ipaddress
import json
import os
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from belljar.egress.gateway import Gateway, Lease
from belljar.network import Allow, Egress, Secret
from belljar.settings import Settings

API, OTHER = "api.example.test", "other.example.test"
VALUE = "sk-live-7Qw2Zx9Lm4Kp0Vb8Tn3Rd6Yh1"
FORMS = {
    "as it is": VALUE.encode(),
    "hex": VALUE.encode().hex().encode(),
    "base64": base64.b64encode(VALUE.encode()),
    "base64, 1": base64.b64encode(b"x" + VALUE.encode())[2:-4],
    "base64, 2": base64.b64encode(b"xx" + VALUE.encode())[3:-4],
}


class Upstream:
    """An HTTPS server that does what its paths say, with the credential that it got."""

    def __init__(self, folder: Path) -> None:
        self.seen: list[bytes] = []
        """Requests as they arrived."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "upstream")])
        now = datetime.datetime.now(datetime.UTC)
        names: list[x509.GeneralName] = [x509.DNSName(API), x509.DNSName(OTHER)]
        names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        self.certificate = folder / "upstream.pem"
        self.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        chain = folder / "upstream-key.pem"
        chain.write_bytes(
            self.certificate.read_bytes()
            + key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(chain)
        self._secure, self._plain = (
            socket.create_server(("127.0.0.1", 0)),
            socket.create_server(("127.0.0.1", 0)),
        )
        self.port = self._secure.getsockname()[1]
        self.plain_port = self._plain.getsockname()[1]
        for listener, secure in ((self._secure, True), (self._plain, False)):
            threading.Thread(target=self._listen, args=(listener, secure), daemon=True).start()

    def close(self) -> None:
        for listener in (self._secure, self._plain):
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _listen(self, listener: socket.socket, secure: bool) -> None:
        while True:
            try:
                taken, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(taken, secure), daemon=True).start()

    def _serve(self, taken: socket.socket, secure: bool) -> None:
        try:
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            taken.settimeout(60)
            stream = self._context.wrap_socket(taken, server_side=True) if secure else taken
            with stream, stream.makefile("rb") as reading:
                while self._one(reading, stream):
                    pass
        except (OSError, ValueError):
            pass

    def _one(self, reading: Any, stream: socket.socket) -> bool:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            if not (line := reading.readline()):
                return False
            head += line
        lines = head.decode("latin-1").split("\r\n")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:])}
        body = b""
        if "content-length" in headers:
            body = reading.read(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            while size := int(reading.readline(), 16):
                body += reading.read(size)
                reading.readline()
            reading.readline()
        self.seen.append(head + body)
        for piece in ANSWERS[lines[0].split()[1].partition("?")[0]](head + body, headers):
            stream.sendall(piece)
        return b"/no-length" not in head and b"/short" not in head


def _key(headers: dict[str, str]) -> bytes:
    return headers.get("authorization", "Bearer none").encode()[7:]


def _plainly(body: bytes, *headers: str, status: str = "200 OK") -> list[bytes]:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return ["\r\n".join([*lines, "", ""]).encode("latin-1") + body]


def _chunked(*pieces: bytes, end: bytes = b"\r\n", extension: bytes = b"") -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    for piece in pieces:
        yield b"%x%s\r\n%s\r\n" % (len(piece), extension, piece)
    yield b"0%s\r\n" % extension + end


def _slowly(data: bytes) -> Iterator[bytes]:
    for at in range(len(data)):
        time.sleep(0.001)
        yield data[at : at + 1]


def _echo_headers(asked: bytes, headers: dict[str, str]) -> list[bytes]:
    key = _key(headers).decode()
    encoded = base64.b64encode(f"user:{key}".encode()).decode()
    return _plainly(
        b"",
        f"X-Echo: {key}",
        f"X-{key}: 1",
        f"Set-Cookie: k={encoded}",
        status=f"400 bad {key}",
    )


ANSWERS: dict[str, Callable[[bytes, dict[str, str]], Any]] = {
    "/ok": lambda asked, headers: _plainly(b"fine"),
    "/echo": lambda asked, headers: _plainly(asked),
    "/echo-headers": _echo_headers,
    "/redirect": lambda asked, headers: _plainly(
        b"", f"Location: https://{OTHER}/ok?key={_key(headers).decode()}", status="302 Found"
    ),
    "/gzip": lambda asked, headers: _plainly(gzip.compress(asked), "Content-Encoding: gzip"),
    "/twice": lambda asked, headers: _plainly(
        zlib.compress(gzip.compress(asked)), "Content-Encoding: gzip, deflate"
    ),
    "/unreadable": lambda asked, headers: _plainly(asked, "Content-Encoding: br"),
    "/chunks": lambda asked, headers: _chunked(*_slowly(asked)),
    "/extensions": lambda asked, headers: _chunked(b"x", extension=b";k=" + _key(headers)),
    "/trailers": lambda asked, headers: _chunked(b"x", end=b"X-K: %s\r\n\r\n" % _key(headers)),
    "/early": lambda asked, headers: [
        b"HTTP/1.1 103 Early\r\nLink: %s\r\n\r\n" % _key(headers),
        *_plainly(b"fine"),
    ],
    "/upgrade": lambda asked, headers: [
        b"HTTP/1.1 101 Switching\r\nUpgrade: %s\r\nConnection: upgrade\r\n\r\n" % _key(headers),
        _key(headers),
    ],
    "/part": lambda asked, headers: _plainly(
        _key(headers)[:9], "Content-Range: bytes 0-8/40", status="206 Partial"
    ),
    "/bad-header": lambda asked, headers: [
        b"HTTP/1.1 200 OK\r\nX-Echo: \x01%s\r\nContent-Length: 0\r\n\r\n" % _key(headers)
    ],
    "/bad-status": lambda asked, headers: [b"%s\r\n\r\n" % _key(headers)],
    "/bad-chunk": lambda asked, headers: [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%s\r\n" % _key(headers)
    ],
    "/no-length": lambda asked, headers: [b"HTTP/1.0 200 OK\r\n\r\n" + _key(headers)],
    "/short": lambda asked, headers: [
        b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n" + _key(headers)[:-1]
    ],
}


USUAL = ("/ok", "/echo", "/echo-headers", "/redirect", "/gzip", "/twice", "/chunks", "/no-length")
ODD = [path for path in ANSWERS if path not in USUAL]


class Way:
    """A lease as a sandbox has it: its doors, opened here."""

    def __init__(self, lease: Lease, told: list[Egress]) -> None:
        self.lease = lease
        self.told = told
        self.key = lease.variables["KEY"].encode()
        self.doors = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        with lease.wire() as wire:
            rights = array.array("i", [door.fileno() for door in self.doors])
            wire.sendmsg([b"L"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            wire.shutdown(socket.SHUT_WR)
        self.trust = ssl.create_default_context(cadata=lease.files[".belljar/ca.pem"].decode())

    @property
    def proxy(self) -> tuple[str, int]:
        return self.doors[0].getsockname()

    def connection(self, host: str, port: int) -> http.client.HTTPSConnection:
        made = http.client.HTTPSConnection(*self.proxy, context=self.trust, timeout=60)
        made.set_tunnel(host, port)
        return made

    def raw(self, host: str, port: int) -> ssl.SSLSocket:
        stream = socket.create_connection(self.proxy, timeout=60)
        stream.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += stream.recv(1)
        assert b" 200 " in answer
        return self.trust.wrap_socket(stream, server_hostname=host)


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    server = Upstream(tmp_path_factory.mktemp("upstream"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def way(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    settings = Settings(
        home=tmp_path_factory.mktemp("home"),
        network_private=("127.0.0.0/8",),
        network_names={API: "127.0.0.1", OTHER: "127.0.0.1"},
        network_authorities=upstream.certificate,
        network_requests_per_s=10_000,
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def wait(work: Any) -> Any:
        done: Future[Any] = asyncio.run_coroutine_threadsafe(work, loop)
        return done.result(120)

    async def gateway_here() -> Gateway:
        return Gateway(settings)

    gateway: Gateway = wait(gateway_here())
    told: list[Egress] = []
    allowed = Allow(
        *(
            f"{host}:{port}"
            for host in (API, OTHER)
            for port in (upstream.port, upstream.plain_port)
        )
    )
    secrets = {
        "KEY": Secret(VALUE, host=API),
        "ANYWHERE": Secret("query and/body", host=OTHER, header="X-Key: {}", query=True, body=True),
    }
    way = Way(wait(gateway.open((allowed,), secrets, on_egress=told.append)), told)
    yield way
    wait(way.lease.close())
    wait(gateway.close())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    for one in told:
        assert VALUE not in repr(one) and "query and/body" not in repr(one)


@pytest.fixture(autouse=True)
def clean(upstream: Upstream, way: Way) -> None:
    upstream.seen.clear()
    way.told.clear()


def get(
    way: Way,
    upstream: Upstream,
    path: str,
    *,
    host: str = API,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    body: Any = None,
    chunked: bool = False,
) -> tuple[http.client.HTTPResponse, bytes]:
    with_key = {"Authorization": f"Bearer {way.key.decode()}"} if headers is None else headers
    connection = way.connection(host, upstream.port)
    try:
        connection.request(method, path, body, with_key, encode_chunked=chunked)
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def no_value(*texts: object) -> None:
    for text in texts:
        data = text if isinstance(text, bytes) else str(text).encode()
        for how, form in FORMS.items():
            assert form.lower() not in data.lower(), how


def arrived(upstream: Upstream) -> bytes:
    return b"".join(upstream.seen)


def blocked(way: Way, upstream: Upstream, words: str) -> None:
    """Nothing of a placeholder, let alone of a value, came out, and it was told. (What the test
    before this one did may be told only now.)"""
    deadline = time.monotonic() + 30
    while not any(one.verdict == "blocked" and words in one.why for one in list(way.told)):
        assert time.monotonic() < deadline, way.told
        time.sleep(0.01)
    assert way.key not in arrived(upstream)
    no_value(arrived(upstream))


def test_the_right_host_gets_the_value_and_the_code_reads_the_placeholder(
    way: Way, upstream: Upstream
) -> None:
    answer, body = get(way, upstream, "/echo?page=2")
    assert answer.status == 200
    assert f"Authorization: Bearer {VALUE}".encode() in arrived(upstream)
    assert b"Authorization: Bearer " + way.key in body
    assert int(answer.headers["Content-Length"]) == len(body)
    no_value(body, answer.headers)


@pytest.mark.parametrize("path", ["/gzip", "/twice", "/chunks", "/no-length"])
def test_however_it_is_packed_and_cut(way: Way, upstream: Upstream, path: str) -> None:
    headers = {
        "Authorization": f"Bearer {way.key.decode()}",
        "Accept-Encoding": "gzip, br",
        "Range": "bytes=200-",
    }
    answer, body = get(way, upstream, path, headers=headers)
    assert answer.status == 200
    assert way.key in body
    no_value(body)
    assert b"identity" in arrived(upstream) and b"gzip, br" not in arrived(upstream)
    assert b"range" not in arrived(upstream).lower()


def test_echoes_in_a_head(way: Way, upstream: Upstream) -> None:
    answer, body = get(way, upstream, "/echo-headers")
    assert answer.status == 400 and answer.headers["X-Echo"] == way.key.decode()
    no_value(answer.reason, answer.headers, body)
    answer, _ = get(way, upstream, "/redirect")
    assert answer.headers["Location"] == f"https://{OTHER}/ok?key={way.key.decode()}"
    # Who follows it takes the placeholder along, and is stopped.
    refused, words = get(way, upstream, f"/ok?key={way.key.decode()}", host=OTHER, headers={})
    assert refused.status == 403 and b"KEY belongs to api.example.test" in words
    assert len(upstream.seen) == 2


@pytest.mark.parametrize("path", ODD)
def test_odd_places(way: Way, upstream: Upstream, path: str) -> None:
    stream = way.raw(API, upstream.port)
    stream.sendall(
        b"GET %s HTTP/1.1\r\nHost: %s:%d\r\nConnection: close\r\nAuthorization: Bearer %s\r\n\r\n"
        % (path.encode(), API.encode(), upstream.port, way.key)
    )
    got = b""
    try:
        while piece := stream.recv(65536):
            got += piece
    except OSError:
        pass
    stream.close()
    assert VALUE.encode() in arrived(upstream)
    no_value(got, *way.told)
    if path == "/short":
        assert VALUE.encode()[:-1] not in got or way.key not in got


def test_laundering_through_another_host(way: Way, upstream: Upstream) -> None:
    for more in (
        {"path": "/ok"},
        {"path": f"/ok?key={way.key.decode()}", "headers": {}},
        {"path": "/ok", "headers": {"Cookie": way.key.decode()}},
        {"path": "/ok", "headers": {"X-Key": base64.b64encode(b"." + way.key).decode()}},
        {"path": "/ok", "headers": {}, "method": "POST", "body": b"k=" + way.key},
    ):
        answer, words = get(way, upstream, host=OTHER, **more)  # type: ignore[arg-type]
        assert answer.status == 403 and b"KEY belongs to api.example.test" in words
    blocked(way, upstream, "belongs to api.example.test")


def test_a_body_in_chunks_through_the_placeholder(way: Way, upstream: Upstream) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"begin" * 1000
        for at in range(len(way.key)):
            yield way.key[at : at + 1]
        yield b"end"

    headers = {"Transfer-Encoding": "chunked"}
    connection = way.connection(API, upstream.port)
    try:
        connection.request("POST", "/ok", pieces(), headers, encode_chunked=True)
        assert connection.getresponse().status == 403
    except OSError:
        pass  # it was cut off while it sent
    connection.close()
    blocked(way, upstream, "the body")


def test_query_and_body_where_asked(way: Way, upstream: Upstream) -> None:
    mine = way.lease.variables["ANYWHERE"]
    answer, body = get(
        way, upstream, f"/echo?k={mine}", host=OTHER, method="POST",
        headers={"Content-Type": "application/x-www-form-urlencoded", "X-Key": mine},
        body=f"k={mine}&again={mine}".encode(),
    )  # fmt: skip
    assert answer.status == 200
    text = arrived(upstream)
    assert b"POST /echo?k=query%20and%2Fbody " in text and b"X-Key: query and/body\r\n" in text
    assert text.endswith(b"\r\n\r\nk=query+and%2Fbody&again=query+and%2Fbody")
    assert b"query" not in body and unquote_to_bytes(body).count(mine.encode()) == 4
    assert not any("?" in one.path or "query" in one.path for one in way.told)


def test_over_http_it_stays_here(way: Way, upstream: Upstream) -> None:
    connection = http.client.HTTPConnection(*way.proxy, timeout=60)
    where = f"http://{API}:{upstream.plain_port}/echo"
    connection.request("GET", where, headers={"Authorization": f"Bearer {way.key.decode()}"})
    answer = connection.getresponse()
    assert answer.status == 403 and b"https only" in answer.read()
    connection.close()
    blocked(way, upstream, "https only")


def test_keep_alive_to_a_second_host(way: Way, upstream: Upstream) -> None:
    stream = way.raw(API, upstream.port)
    request = b"GET /ok HTTP/1.1\r\nHost: %s:%d\r\nAuthorization: Bearer %s\r\n\r\n"
    stream.sendall(request % (API.encode(), upstream.port, way.key))
    got = b""
    while not got.endswith(b"fine"):
        got += stream.recv(1)
    stream.sendall(request % (OTHER.encode(), upstream.port, way.key))
    rest = b""
    while piece := stream.recv(65536):
        rest += piece
    assert b" 403 " in rest.split(b"\r\n")[0]
    assert len(upstream.seen) == 1


def test_http2_is_not_spoken(way: Way, upstream: Upstream) -> None:
    way.trust.set_alpn_protocols(["h2"])
    try:
        stream = way.raw(API, upstream.port)
    finally:
        way.trust.set_alpn_protocols(["http/1.1"])
    assert stream.selected_alpn_protocol() == "h2"  # to be told so in its own words
    stream.sendall(
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00" + way.key
    )
    got = b""
    try:
        while piece := stream.recv(65536):
            got += piece
    except OSError:
        pass
    settings, farewell = got[:9], got[9:]
    assert settings == b"\0\0\0\4\0\0\0\0\0"
    assert farewell[3] == 7 and farewell[13:17] == b"\0\0\0\r"  # GOAWAY, HTTP_1_1_REQUIRED
    assert b"not HTTP/2" in farewell and b"inspect=False" in farewell
    assert not upstream.seen
    blocked(way, upstream, "not HTTP/2")


def test_the_gateway_keeps_it_to_itself(way: Way) -> None:
    process = way.lease._process._process
    proc = Path(f"/proc/{process.pid}")
    assert VALUE.encode() not in (proc / "cmdline").read_bytes()
    if os.geteuid() == 0:
        assert VALUE.encode() not in (proc / "environ").read_bytes()
    else:  # not even by the user whose process it is
        for what in ("environ", "mem", "maps"):
            with pytest.raises(PermissionError):
                (proc / what).read_bytes()
    assert json.dumps(dict(way.lease.variables)).count(way.key.decode()) == 1
    no_value(json.dumps(dict(way.lease.variables)), *way.lease.files.values())
