"""N1: what one sandbox can use up is bounded, and is its own."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from belljar.network import Allow
from tests.world.place import World
from tests.world.servers import Visit
from tests.world.ways import PATIENCE_S, Gate, Way, ended, eventually, resident_bytes

HOST = "api.example.com"
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def gate(world: World) -> Iterator[Gate]:
    """Small limits, so that they are met soon."""
    with Gate(
        world,
        network_connections=8,
        network_bytes=32 * MIB,
        network_idle_s=2.0,
        network_connection_s=5.0,
    ) as made:
        yield made


@pytest.fixture
def bystander(gate: Gate) -> Iterator[Way]:
    with gate.open(Allow(HOST)) as opened:
        yield opened
        eventually(lambda: opened.get(HOST).status == 200)


def start(path: str, more: str = "") -> bytes:
    return f"GET http://{HOST}{path} HTTP/1.1\r\nHost: {HOST}\r\n{more}\r\n".encode()


def test_bytes_received(way: Way, bystander: Way) -> None:
    answer = way.get(HOST, "/big")
    assert not answer.whole and len(answer.body) <= 32 * MIB
    way.told(lambda one: one.verdict == "refused" and "bytes" in one.why)
    assert way.get(HOST).status == 403  # for the rest of its life


def test_bytes_sent(way: Way, bystander: Way, world: World) -> None:
    with way.dial() as connection:
        connection.sendall(start("/x", f"Content-Length: {100 * MIB}\r\n"))
        with contextlib.suppress(OSError):
            for _ in range(1600):
                connection.sendall(b"x" * 65536)
    way.told(lambda one: one.verdict == "refused" and "bytes" in one.why)
    assert sum(visit.received_bytes for visit in world.visits) <= 32 * MIB


def test_slow_reader(gate: Gate, way: Way, bystander: Way) -> None:
    """Who asks for much and reads nothing costs a few buffers, for a while."""
    before = resident_bytes(gate.pid)
    connections = [way.dial() for _ in range(8)]
    for connection in connections:
        connection.sendall(start("/big"))
    way.told(lambda one: one.verdict == "failed", count=8)
    assert resident_bytes(gate.pid) < before + 64 * MIB
    for connection in connections:
        connection.close()


def test_slow_writers(way: Way, bystander: Way) -> None:
    """A head, a body, a handshake and a tunnel that never come to their end."""
    beginnings = {
        "head": start("/hello")[:-2],
        "body": start("/x", "Content-Length: 10\r\n") + b"x",
        "chunk": start("/x", "Transfer-Encoding: chunked\r\n") + b"5\r\nx",
        "tunnel": f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode(),
        "handshake": f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode() + b"\x16\3\1",
        "socks": b"\x05\x01",
        "nothing": b"",
    }
    connections = []
    for data in beginnings.values():
        connection = way.dial()
        connection.sendall(data)
        connections.append(connection)
    assert all(ended(connection) for connection in connections)


def test_a_trickle(way: Way, bystander: Way) -> None:
    """A byte now and then is a sign of life, but not forever."""
    connection = way.dial()
    connection.sendall(start("/x", "Content-Length: 1000\r\n"))
    with pytest.raises(OSError):
        for _ in range(200):
            connection.sendall(b"x")
            time.sleep(0.3)
    way.told(lambda one: one.verdict == "failed" and "longer" in one.why)


def test_servers_that_do_not_answer(way: Way, bystander: Way) -> None:
    answer = way.get(HOST, "/deaf")
    assert answer.status == 504 and b"nothing moved for 2 s" in answer.body
    way.told(lambda one: one.verdict == "failed")


@pytest.mark.parametrize("secure", [True, False])
def test_code_that_hangs_up_frees_its_place(world: World, secure: bool) -> None:
    """Within seconds, though the host may take its time to answer."""
    with (
        Gate(world, network_connections=1, network_idle_s=3600) as gate,
        gate.open(Allow(HOST)) as way,
    ):
        connection: socket.socket = way.secure(f"{HOST}:443") if secure else way.dial()
        path = "/deaf" if secure else f"http://{HOST}/deaf"
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        eventually(lambda: any(visit.heads for visit in world.visits))
        assert not way.egress
        connection.close()
        way.told(lambda one: one.verdict == "failed" and "hung up" in one.why)
        assert way.get(HOST).status == 200


@pytest.fixture
def patient(world: World) -> Iterator[Way]:
    """Connections may last, but not be idle."""
    with Gate(world, network_idle_s=1.0) as gate, gate.open(Allow(HOST)) as opened:
        yield opened


def idle_for_too_long(way: Way) -> None:
    """When it returns, whatever moved no later than now is overdue."""
    assert way.get(HOST, "/deaf").status == 504


def test_a_websocket_may_be_silent(patient: Way) -> None:
    with patient.secure(f"{HOST}:443") as connection:
        connection.sendall(
            f"GET /ws HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\n"
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        assert connection.recv(1000).startswith(b"HTTP/1.1 101")
        idle_for_too_long(patient)
        connection.sendall(b"\x81\x05hello")
        assert connection.recv(100) == b"\x81\x05hello"


def test_events_may_be_far_apart(patient: Way, world: World) -> None:
    more = threading.Event()

    async def events(_: Visit) -> AsyncIterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: one\n\n"
        while not more.is_set():
            await asyncio.sleep(0.05)
        yield b"data: two\n\n"

    world.servers.raw["events"] = events
    with patient.secure(f"{HOST}:443") as connection:
        connection.sendall(f"GET /raw/events HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        got = b""
        while b"one" not in got:
            got += connection.recv(1000)
        idle_for_too_long(patient)
        more.set()
        while b"two" not in got:
            piece = connection.recv(1000)
            assert piece, got
            got += piece


def test_tiny_pieces(way: Way, bystander: Way) -> None:
    """Ten thousand chunks in 60 KB are work without a wait; others have their turn meanwhile."""
    done = threading.Event()

    def send() -> None:
        with contextlib.suppress(OSError), way.dial() as connection:
            connection.sendall(start("/x", "Transfer-Encoding: chunked\r\n"))
            while not done.is_set():
                connection.sendall(b"1\r\nx\r\n" * 10_000)

    senders = [threading.Thread(target=send) for _ in range(4)]
    for sender in senders:
        sender.start()
    try:
        way.world.run(asyncio.sleep(0.5))
        assert [bystander.get(HOST).status for _ in range(3)] == [200] * 3
    finally:
        done.set()
        for sender in senders:
            sender.join()


def test_the_pace_of_requests(world: World) -> None:
    """Slowed down, and beyond that turned away; never more than the bucket holds."""
    with Gate(world, network_requests_per_s=5.0) as gate, gate.open(Allow(HOST)) as way:
        began = time.monotonic()
        threads = [threading.Thread(target=way.get, args=(HOST,)) for _ in range(15)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - began
        assert len(world.visits) <= 5 + 5 * seconds + 1


@pytest.mark.slow
def test_a_flood_of_refusals_is_counted(way: Way) -> None:
    """After a thousand, those that are alike are one record; none is lost."""
    for _ in range(1300):
        with way.dial() as connection:
            connection.sendall(b"CONNECT other.example.com:443 HTTP/1.1\r\nHost: x.y\r\n\r\n")
            connection.recv(1000)
    way.stopped(count=1300)
    assert len(way.egress) < 1290


def test_what_went_out_is_told_by_itself_after_any_flood(way: Way, world: World) -> None:
    for number in range(1001):
        with way.dial() as connection:
            head = f"DELETE http://other.example.com/{number % 2} HTTP/1.1\r\nHost: x.y\r\n\r\n"
            connection.sendall(head.encode())
            connection.recv(1000)
    methods = ["GET", "DELETE", "PUT", "PATCH"]
    for method in methods:
        with way.dial() as connection:
            connection.sendall(start("/deaf").replace(b"GET", method.encode()))
            seen = method.encode()
            eventually(lambda seen=seen: any(seen in bytes(one.raw) for one in world.visits))
    told = way.told(lambda one: one.host == HOST, count=len(methods))
    assert sorted((one.verdict, one.method, one.count) for one in told) == sorted(
        ("failed", method, 1) for method in methods
    )


@pytest.mark.slow
def test_10_000_connections(world: World) -> None:
    """At once, from one sandbox: bounded memory, no descriptor too many, others are served."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000), hard))
    try:
        with Gate(world) as gate, gate.open(Allow(HOST)) as way, gate.open(Allow(HOST)) as other:
            assert other.get(HOST).status == 200
            before = resident_bytes(gate.pid)
            connections: list[socket.socket] = []
            for number in range(10_000):
                try:
                    connection = way.dial(timeout_s=0.5)
                    connection.setblocking(False)
                    connection.send(start("/deaf" if number % 2 else "/hello"))
                except OSError:
                    continue  # no room to wait in is a bound, too
                connections.append(connection)
                if number % 1000 == 0:
                    assert other.get(HOST).status == 200
            assert resident_bytes(gate.pid) < before + 128 * MIB
            assert len(world.visits) < 10_000
            for connection in connections:
                connection.close()
            assert other.get(HOST).status == 200
            eventually(lambda: way.get(HOST).status == 200, within_s=3 * PATIENCE_S)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
