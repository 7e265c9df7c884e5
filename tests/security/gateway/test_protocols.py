"""N1: what is said besides a request: floods, upgrades, tunnels and SOCKS."""

from __future__ import annotations

import socket
import struct

import pytest

from tests.world.place import World
from tests.world.ways import PATIENCE_S, Way, ended, reply

HOST = "api.example.com"
INNER = "GET /smuggled HTTP/1.1\r\nHost: other.example.com\r\n\r\n"
START = f"POST http://{HOST}/first HTTP/1.1\r\nHost: {HOST}\r\n"


def not_smuggled(world: World) -> None:
    for visit in world.visits:
        assert not any(head.startswith(b"GET /smuggled") for head in visit.heads), visit.raw


FLOODS = {
    "a long head": b"X: " + b"a" * (1 << 20) + b"\r\n\r\n",
    "many headers": b"".join(b"X-%d: a\r\n" % number for number in range(50_000)) + b"\r\n",
    "a long extension": b"Transfer-Encoding: chunked\r\n\r\n1;" + b"e" * (1 << 20) + b"\r\na\r\n",
    "long trailers": b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"t" * (1 << 20) + b"\r\n\r\n",
    "an endless name": b"X" * (1 << 20),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_floods(way: Way, world: World, kind: str) -> None:
    answer = way.ask(START.encode() + FLOODS[kind])
    assert answer.status in (0, 400, 403, 413, 431), answer
    way.told(lambda one: one.verdict != "allowed")
    assert sum(visit.received_bytes for visit in world.visits) < 200_000


def test_a_long_address(way: Way, world: World) -> None:
    assert way.get(HOST, "/" + "a" * (1 << 20)).status in (0, 400, 403, 414, 431)
    assert world.visits == []
    way.stopped()
    assert all(len(one.path) < 10_000 for one in way.egress)


@pytest.mark.parametrize("door", ["proxy", "tls"])
def test_upgrades_to_anything_but_websocket(way: Way, world: World, door: str) -> None:
    for protocol in ("h2c", "TLS/1.0", "websocket, h2c", "connect-udp"):
        lines = f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {protocol}\r\n"
        lines += "HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
        if door == "proxy":
            answer = way.ask(f"GET http://{HOST}/x HTTP/1.1\r\nHost: {HOST}\r\n{lines}".encode())
        else:
            with way.secure(f"{HOST}:443") as connection:
                connection.sendall(f"GET /x HTTP/1.1\r\nHost: {HOST}\r\n{lines}".encode())
                answer = reply(connection)
        assert answer.status in (200, 400, 403)
    for visit in world.visits:
        assert b"upgrade" not in visit.raw.lower() and b"http2" not in visit.raw.lower()


def handshake(path: str) -> bytes:
    return (
        f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()


def test_websocket(way: Way, world: World) -> None:
    with way.secure(f"{HOST}:443") as connection:
        connection.sendall(handshake("/ws"))
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(1000)
        assert head.startswith(b"HTTP/1.1 101")
        connection.sendall(b"\x81\x05hello")
        assert connection.recv(100) == b"\x81\x05hello"


def test_an_upgrade_that_was_not_is_no_tunnel(way: Way, world: World) -> None:
    """The server says 200 to it; what follows is a request again, and judged."""
    world.servers.raw["no"] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno"
    with way.secure(f"{HOST}:443") as connection:
        connection.sendall(handshake("/raw/no") + INNER.encode())
        reply(connection)
        assert ended(connection) or reply(connection).status in (0, 400, 403)
    not_smuggled(world)


def test_an_upgrade_nobody_asked_for(way: Way, world: World) -> None:
    world.servers.raw["101"] = (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nraw"
    )
    with way.dial() as connection:
        connection.sendall(f"GET http://{HOST}/raw/101 HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        answer = reply(connection)
    assert answer.status in (0, 502), answer
    way.told(lambda one: one.verdict in ("failed", "blocked"))


def test_connect_and_then_no_tls(way: Way, world: World) -> None:
    for data in (f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode(), b"SSH-2.0-x\r\n", b"\0" * 100):
        connection, answer = way.connect(f"{HOST}:443")
        assert answer.status == 200
        with connection:
            connection.sendall(data)
            assert ended(connection)
    way.stopped(count=3)
    assert not any(visit.raw for visit in world.visits)


def test_data_ahead_of_the_tunnel_is_not_raw(way: Way, world: World) -> None:
    """A request right behind CONNECT: in the tunnel it is no TLS, outside no request."""
    with way.dial() as connection:
        connection.sendall(f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}:443\r\n\r\n".encode())
        connection.sendall(INNER.encode())
        reply(connection)
    not_smuggled(world)
    way.stopped()


def test_socks_verbs(way: Way, world: World) -> None:
    name = HOST.encode()
    for verb in (2, 3, 0, 9, 0xF0):  # BIND, UDP ASSOCIATE, Tor's RESOLVE
        with way.dial() as connection:
            connection.sendall(b"\x05\x01\x00")
            assert connection.recv(2) == b"\x05\x00"
            request = b"\x05%c\x00\x03%c" % (verb, len(name))
            connection.sendall(request + name + b"\x00\x50")
            assert connection.recv(10)[1:2] != b"\0"
            assert ended(connection)
    for hello in (b"\x05\x00", b"\x05\x01\x02", b"\x05\xff" + bytes(range(1, 256)) + b"\x01"):
        with way.dial() as connection:
            connection.sendall(hello)
            assert connection.recv(2) in (b"\x05\xff", b"")
    way.stopped(count=8)
    assert world.visits == []


def test_socks_and_gone_is_told(way: Way, world: World) -> None:
    """Who resets the connection before there is an answer has tried all the same."""
    name = b"evil.example.org"
    for _ in range(10):
        connection = way.dial()
        connection.sendall(b"\x05\x01\x00\x05\x01\x00\x03%c%b\x00\x50" % (len(name), name))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    way.told(lambda one: one.scheme == "socks", count=10)


def test_socks_is_no_tunnel_for_anything(way: Way, world: World) -> None:
    """Behind SOCKS comes what comes to port 80 or 443, judged the same."""
    name = HOST.encode()
    for port, data in (
        (80, INNER.encode()),
        (443, INNER.encode()),
        (80, b"SSH-2.0-x\r\n\r\n"),
    ):
        with way.dial() as connection:
            connection.sendall(b"\x05\x01\x00")
            assert connection.recv(2) == b"\x05\x00"
            request = b"\x05\x01\x00\x03" + bytes([len(name)]) + name + port.to_bytes(2, "big")
            connection.sendall(request)
            assert connection.recv(10)[:2] == b"\x05\x00"
            connection.sendall(data)
            connection.settimeout(PATIENCE_S)
            assert reply(connection).status in (0, 400, 403)
    assert not any(visit.raw for visit in world.visits)
    way.stopped(count=3)
