"""N1: an address is never dialled, however it is spelt and whichever door it comes to."""

from __future__ import annotations

import ssl
import struct

import pytest

from belljar.network import Allow
from tests.world.place import World
from tests.world.ways import Gate, Reply, Way, ended

HOST = "api.example.com"
SPELLINGS = [
    "127.0.0.1",
    "10.0.0.1",
    "169.254.169.254",
    "93.184.216.34",  # even a public one: rules are about names
    "2130706433",
    "0x7f000001",
    "0X7F.0.0.1",
    "0x7f.1",
    "0177.0.0.1",
    "017700000001",
    "127.1",
    "127.0.1",
    "0",
    "0.0.0.0",
    "127.0.0.1.",
    "2130706433.",
    "::1",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[0:0:0:0:0:ffff:7f00:1]",
    "[64:ff9b::7f00:1]",
    "[fe80::1%25way]",
    "[fe80::1%way]",
    "[::1",
    "localhost",
    "LocalHost",
    "localhost.",
    "api.example.com.",
    "api.example.com..",
    "user@127.0.0.1",
    "api.example.com@127.0.0.1",
    "127.0.0.1@api.example.com",
    "api.example.com:80@127.0.0.1",
    "api.example.com#@127.0.0.1",
    "api.example.com\\@127.0.0.1",
    "127.0.0.1\x00.api.example.com",
    "api.example.com\x00",
    "api.example.com\x00@127.0.0.1",
    "api.example.com\r\nX: ",
    "127.0.0.1\t",
    "127。0。0。1",
    "１２７.０.０.１",
    "①②⑦.⓪.⓪.①",
    "١٢٧.٠.٠.١",
    "%31%32%37.0.0.1",
    "127%2e0%2e0%2e1",
    "api.example.com%00.wild.example.com",
    "127.0.0.1%00.wild.example.com",
    "127.0.0.1.nip.invalid",
    "*.wild.example.com",
    ".wild.example.com",
    "wild.example.com",
    "-.wild.example.com",
    "a" * 64 + ".wild.example.com",
    "a." * 130 + "wild.example.com",
    "",
]


def fails_closed(way: Way, world: World, answer: Reply) -> None:
    assert answer.status in (0, 400, 403), answer
    assert world.visits == []
    told = way.stopped()
    assert all(one.why and one.address == "" for one in told), told


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_connect(way: Way, world: World, spelling: str) -> None:
    data = f"CONNECT {spelling}:443 HTTP/1.1\r\nHost: {HOST}:443\r\n\r\n".encode()
    fails_closed(way, world, way.ask(data))


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("honest", [True, False])
def test_absolute_address(way: Way, world: World, spelling: str, honest: bool) -> None:
    host = spelling if honest else HOST
    data = f"GET http://{spelling}/hello HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    fails_closed(way, world, way.ask(data))


@pytest.mark.parametrize("spelling", [one for one in SPELLINGS if "\r" not in one])
def test_host_header(way: Way, world: World, spelling: str) -> None:
    data = f"GET /hello HTTP/1.1\r\nHost: {spelling}\r\n\r\n".encode()
    fails_closed(way, world, way.ask(data, door="http"))


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_socks_name(way: Way, world: World, spelling: str) -> None:
    name = spelling.encode()[:255]
    with way.dial() as connection:
        connection.sendall(b"\x05\x01\x00")
        assert connection.recv(2) == b"\x05\x00"
        connection.sendall(b"\x05\x01\x00\x03" + bytes([len(name)]) + name + b"\x00\x50")
        answer = connection.recv(10)
        assert answer[1:2] != b"\x00", answer
        assert ended(connection)
    fails_closed(way, world, Reply())


@pytest.mark.parametrize(
    "address", [b"\x01\x7f\0\0\1", b"\x01\x5d\xb8\xd8\x22", b"\x04" + b"\0" * 15 + b"\1"]
)
def test_socks_address(way: Way, world: World, address: bytes) -> None:
    with way.dial() as connection:
        connection.sendall(b"\x05\x01\x00")
        assert connection.recv(2) == b"\x05\x00"
        connection.sendall(b"\x05\x01\x00" + address + b"\x00\x50")
        assert connection.recv(10)[1:2] != b"\x00"
        assert ended(connection)
    fails_closed(way, world, Reply())


@pytest.mark.parametrize(
    "name", ["127.0.0.1.", "localhost", "2130706433", "0x7f.1", "127.1", "1.wild.example.com.x.7"]
)
def test_name_of_a_handshake(way: Way, world: World, name: str) -> None:
    """What clients put into SNI if they are told to; the library here takes care of real addresses
    by leaving it out, which is refused as well."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with way.dial("https") as connection, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(connection, server_hostname=name)
    fails_closed(way, world, Reply())


PORTS = ("22", "25", "0", "00443", "65536", "-1", "+443", "443x", "٤٤٣", "4 43", "1e3")


@pytest.mark.parametrize(
    ("kind", "port"),
    # Only CONNECT needs one: http://host:/ is the usual port.
    [*((kind, port) for kind in ("CONNECT", "GET") for port in PORTS), ("CONNECT", "")],
)
def test_odd_ports(way: Way, world: World, kind: str, port: str) -> None:
    target = f"{HOST}:{port}" if kind == "CONNECT" else f"http://{HOST}:{port}/"
    data = f"{kind} {target} HTTP/1.1\r\nHost: {HOST}:{port}\r\n\r\n".encode()
    fails_closed(way, world, way.ask(data))


def test_odd_ports_by_socks(way: Way, world: World) -> None:
    for port in (0, 22, 25, 8080):
        with way.dial() as connection:
            connection.sendall(b"\x05\x01\x00")
            assert connection.recv(2) == b"\x05\x00"
            name = HOST.encode()
            head = b"\x05\x01\x00\x03" + bytes([len(name)]) + name
            connection.sendall(head + struct.pack(">H", port))
            assert connection.recv(10)[1:2] != b"\x00"
    fails_closed(way, world, Reply())
    way.stopped(count=4)


def test_names_that_rules_allow_and_nobody_should(gate: Gate, world: World) -> None:
    """A rule may say localhost; it is still this machine."""
    with gate.open(Allow("localhost"), Allow("ip6-localhost", "gateway.internal")) as way:
        world.answers("gateway.internal", "127.0.0.1", "::1")
        for name in ("localhost", "ip6-localhost", "gateway.internal"):
            assert way.get(name).status in (403, 502)
        assert world.visits == []
        way.told(lambda one: one.verdict != "allowed", count=3)


def test_a_refusal_says_what_to_ask_for(way: Way) -> None:
    """The reason phrase, since that is all that clients show of an answer to CONNECT."""
    connection, answer = way.connect("other.example.com:443")
    connection.close()
    assert answer.status == 403 and "other.example.com" in answer.reason
    told = way.get("other.example.com")
    assert told.status == 403 and b"other.example.com" in told.body
    (first, second) = way.stopped(count=2)
    assert first.host == second.host == "other.example.com"
    assert (first.port, second.port) == (443, 80)
    assert first.verdict == second.verdict == "refused"
