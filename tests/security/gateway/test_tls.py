"""N1: the name in the handshake, certificates of servers, and what comes to port 443."""

from __future__ import annotations

import contextlib
import socket
import ssl

import pytest

from belljar.network import Allow
from tests.world.place import World
from tests.world.ways import Gate, Way, ended, eventually, reply

HOST = "api.example.com"
OTHER = "other.example.com"


def careless(*, protocols: tuple[str, ...] = ()) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols(protocols)
    return context


def hello(name: str, *, protocols: tuple[str, ...] = ()) -> bytes:
    """The first message of a client."""
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = careless(protocols=protocols).wrap_bio(into, out, server_hostname=name or None)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


@pytest.fixture
def blind(gate: Gate) -> object:
    """A way whose TLS is not opened."""
    with gate.open(Allow(HOST, inspect=False)) as opened:
        yield opened


def test_both_kinds_work(way: Way, blind: Way, world: World) -> None:
    assert way.get_secure(HOST, "/hello?q=1").body == b"hello\n"
    assert world.visits[-1].name == HOST
    (told,) = way.told(lambda one: one.verdict == "allowed")
    assert (told.scheme, told.method, told.path, told.status) == ("https", "GET", "/hello", 200)
    with blind.secure(f"{HOST}:443", context=trusts(world)) as connection:
        connection.sendall(f"GET /hello HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        assert reply(connection).body == b"hello\n"
    (told,) = blind.told(lambda one: one.verdict == "allowed")
    assert (told.scheme, told.method, told.host) == ("tunnel", "", HOST)
    assert told.bytes_received > 0 < told.bytes_sent


def trusts(world: World) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=world.authority.file)


@pytest.mark.parametrize("name", [OTHER, "", "localhost", "api.example.com.evil.example"])
@pytest.mark.parametrize("door", ["proxy", "https", "socks"])
@pytest.mark.parametrize("kind", ["way", "blind"])
def test_the_name_is_the_targets(
    request: pytest.FixtureRequest, world: World, kind: str, door: str, name: str
) -> None:
    chosen: Way = request.getfixturevalue(kind)
    world.answers(OTHER)
    if door == "proxy":
        connection, answer = chosen.connect(f"{HOST}:443")
        assert answer.status == 200
    else:
        connection = chosen.dial("https" if door == "https" else "proxy")
    with connection:
        if door == "socks":
            target = bytes([len(HOST)]) + HOST.encode() + b"\x01\xbb"
            connection.sendall(b"\x05\x01\x00")
            assert connection.recv(2) == b"\x05\x00"
            connection.sendall(b"\x05\x01\x00\x03" + target)
            assert connection.recv(10)[:2] == b"\x05\x00"
        with pytest.raises((ssl.SSLError, OSError)):
            careless().wrap_socket(connection, server_hostname=name or None)
    chosen.stopped()
    assert not any(visit.raw or visit.name for visit in world.visits)


def test_a_handshake_in_small_pieces(blind: Way, way: Way, world: World) -> None:
    """The name is looked at when it is there, not before."""
    for chosen in (blind, way):
        connection, _ = chosen.connect(f"{HOST}:443")
        with connection:
            data = hello(OTHER)
            for at in range(0, len(data), 40):
                with contextlib.suppress(OSError):
                    connection.sendall(data[at : at + 40])
            assert ended(connection)
        chosen.stopped()
    assert not any(visit.name for visit in world.visits)


def fragmented(data: bytes, size: int) -> bytes:
    """One handshake message in several records: what only looks at the first sees no name."""
    body = data[5:]
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(data[:3] + len(piece).to_bytes(2, "big") + piece for piece in pieces)


@pytest.mark.parametrize("size", [1, 10, 100])
def test_a_handshake_in_many_records(blind: Way, world: World, size: int) -> None:
    connection, _ = blind.connect(f"{HOST}:443")
    with connection:
        with contextlib.suppress(OSError):
            connection.sendall(fragmented(hello(OTHER), size))
        assert ended(connection)
    blind.stopped()
    assert not any(visit.name for visit in world.visits)


@pytest.mark.parametrize("kind", ["way", "blind"])
@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\xff\xff" + b"\x01" + b"\xff" * 70_000,
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
        b"\x16\x03\x01\x00\x00" * 5000,
        b"\x15\x03\x01\x00\x02\x02\x28",
        b"\x80\x2e\x01\x03\x01" + b"\0" * 60,
        b"\x14\x03\x03\x00\x01\x01" * 100,
    ],
)
def test_no_handshake_at_all(
    request: pytest.FixtureRequest, world: World, kind: str, data: bytes
) -> None:
    chosen: Way = request.getfixturevalue(kind)
    connection, _ = chosen.connect(f"{HOST}:443")
    with connection:
        with contextlib.suppress(OSError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        assert ended(connection)
    chosen.told(lambda one: one.verdict != "allowed")
    assert not any(visit.raw or visit.name for visit in world.visits)


def with_extension(data: bytes, kind: int, content: bytes) -> bytes:
    """A ClientHello with one extension more."""
    body = data[9:]  # after record and handshake headers
    at = 34
    at += 1 + body[at]
    at += 2 + int.from_bytes(body[at : at + 2], "big")
    at += 1 + body[at]
    more = kind.to_bytes(2, "big") + len(content).to_bytes(2, "big") + content
    length = int.from_bytes(body[at : at + 2], "big") + len(more)
    body = body[:at] + length.to_bytes(2, "big") + more + body[at + 2 :]
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return data[:3] + len(message).to_bytes(2, "big") + message


def test_an_encrypted_hello_hides_another_name(blind: Way, world: World) -> None:
    """ECH: the name outside is allowed, the one that counts cannot be seen. So none is let through
    where TLS is not opened."""
    content = b"\x00\x00\x01\x00\x01\x07\x00\x20" + b"k" * 32 + b"\x00\x90" + b"p" * 144
    connection, _ = blind.connect(f"{HOST}:443")
    with connection:
        with contextlib.suppress(OSError):
            connection.sendall(with_extension(hello(HOST), 0xFE0D, content))
        assert ended(connection)
    blind.stopped()
    assert not any(visit.name for visit in world.visits)


def test_the_extension_was_put_where_it_belongs(blind: Way, world: World) -> None:
    """The same message with something harmless gets through, so it is ECH that does not."""
    connection, _ = blind.connect(f"{HOST}:443")
    with connection:
        connection.sendall(with_extension(hello(HOST), 0x1A1A, b"grease"))
        assert connection.recv(1) == b"\x16"
    assert world.visits[0].name == HOST


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"


def test_http_2_is_refused_in_its_own_words(way: Way, world: World) -> None:
    """At once, to clients that speak nothing else; the others speak HTTP/1.1."""
    for secure in (True, False):
        if secure:
            connection: socket.socket = way.secure(
                f"{HOST}:443", context=careless(protocols=("h2",))
            )
        else:
            connection = way.dial()
        with connection:
            connection.sendall(PREFACE)
            got = b""
            with contextlib.suppress(OSError):
                while piece := connection.recv(1000):
                    got += piece
        assert got[:9] == b"\0\0\0\4\0\0\0\0\0" and got[12] == 7, got
        assert b"belljar: the gateway speaks HTTP/1.1" in got and b"inspect=False" in got
    assert not any(visit.heads for visit in world.visits)
    assert all("not HTTP/2" in one.why for one in way.stopped(count=2))
    context = careless(protocols=("h2", "http/1.1"))
    with way.secure(f"{HOST}:443", context=context) as connection:
        assert connection.selected_alpn_protocol() == "http/1.1"


@pytest.mark.parametrize("kind", ["another name", "expired", "self-signed", "unknown authority"])
def test_certificates_of_servers(way: Way, world: World, kind: str) -> None:
    """Nothing of a request is sent to who cannot show that it is the host."""
    name = f"{kind.replace(' ', '-')}.wild.example.com"
    world.answers(name)
    make = world.authority.context
    world.certificate(
        name,
        {
            "another name": lambda: make(OTHER),
            "expired": lambda: make(name, expired=True),
            "self-signed": lambda: make(name, self_signed=True),
            "unknown authority": lambda: world.stranger.context(name),
        }[kind](),
    )
    answer = way.get_secure(name, **{"X-Secret": "1"})
    assert answer.status == 502 and "certificate" in (answer.reason + answer.body.decode()).lower()
    (told,) = way.told(lambda one: one.verdict == "failed")
    assert told.host == name and "certificate" in told.why.lower()
    eventually(lambda: world.visits and all(visit.ended.is_set() for visit in world.visits))
    assert not any(visit.raw for visit in world.visits)


def test_the_certificate_inside_is_for_that_name_alone(way: Way) -> None:
    """Who pretends to be another host inside finds no trust either."""
    with pytest.raises(ssl.SSLCertVerificationError):
        way.secure(f"{HOST}:443", context=ssl.create_default_context())
    with way.secure(f"{HOST}:443") as connection:
        shown = connection.getpeercert()
    assert shown and shown["subjectAltName"] == (("DNS", HOST),)
