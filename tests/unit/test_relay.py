"""The sandbox's end of the network: many connections in one stream, against a peer that keeps to
the protocol and watches that the relay does (N1)."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belljar.runtimes.guest import relay
from belljar.runtimes.guest.doors import Doors
from belljar.runtimes.guest.relay import (
    CREDIT,
    DATA,
    HEADER,
    MOST,
    OPEN,
    PIECE,
    RESET,
    ROOM,
    WINDOW,
    Broken,
    Relay,
)
from tests.muxpeer import Peer, Serve, Visit, echo

WITHIN_S = 20.0


class Line:
    """A relay on free ports with the peer at its other end, in one thread."""

    def __init__(self, serve: Serve = echo, doors: int = 1) -> None:
        self.peer = Peer(serve)
        self.relay = Relay(self.peer.feed, (0,) * doors)

    def turn(self) -> None:
        self.relay.turn()
        while self.peer.out:
            data = bytes(self.peer.out)
            self.peer.out.clear()
            self.relay.feed(data)

    def until(self, done: Callable[[], object]) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not done():
            assert time.monotonic() < deadline, "it came to no end"
            select.select([self.relay.descriptor], [], [], 0.01)
            self.turn()

    def dial(self, door: int = 0) -> socket.socket:
        client = socket.create_connection((relay.ADDRESS, self.relay.ports[door]), timeout=WITHIN_S)
        client.setblocking(False)
        return client

    def answer(self, client: socket.socket) -> bytes:
        """All that comes until the end."""
        got = bytearray()
        ended = False

        def more() -> bool:
            nonlocal ended
            with contextlib.suppress(BlockingIOError):
                while data := client.recv(1 << 16):
                    got.extend(data)
                ended = True
            return ended

        self.until(more)
        return bytes(got)


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.relay.close()


def test_n1_bytes_go_out_and_come_back(line: Line) -> None:
    with line.dial() as client:
        client.send(b"hello")
        client.shutdown(socket.SHUT_WR)
        assert line.answer(client) == b"hello"
    line.until(lambda: not line.relay._connections)
    (visit,) = line.peer.visits.values()
    assert (visit.number, visit.door, visit.over) == (1, 0, True)


def test_n1_each_door_is_told(line: Line) -> None:
    other = Line(doors=3)
    try:
        clients = [other.dial(door) for door in (2, 0, 1)]
        other.until(lambda: len(other.peer.visits) == 3)
        assert sorted(visit.door for visit in other.peer.visits.values()) == [0, 1, 2]
        for client in clients:
            client.close()
    finally:
        other.relay.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=st.lists(st.integers(0, 200_000), min_size=1, max_size=6),
    seed=st.integers(0, 255),
)
def test_n1_any_number_of_bytes_in_any_number_of_connections(sizes: list[int], seed: int) -> None:
    """Nothing is lost, doubled or mixed up, and neither side sends more than there is room for: the
    peer says so if it does."""
    line = Line()
    try:
        contents = [
            bytes((seed + n + i) % 251 for i in range(size)) for n, size in enumerate(sizes)
        ]
        clients = [line.dial() for _ in sizes]
        got = [bytearray() for _ in sizes]
        left = [memoryview(content) for content in contents]
        open_ = set(range(len(sizes)))
        for client, content in zip(clients, contents, strict=True):
            if not content:
                client.shutdown(socket.SHUT_WR)

        def move() -> bool:
            for n in list(open_):
                client = clients[n]
                with contextlib.suppress(BlockingIOError):
                    if left[n]:
                        left[n] = left[n][client.send(left[n][:50_000]) :]
                        if not left[n]:
                            client.shutdown(socket.SHUT_WR)
                with contextlib.suppress(BlockingIOError):
                    data = client.recv(70_000)
                    got[n] += data
                    if not data:
                        open_.discard(n)
            return not open_

        line.until(move)
        assert [bytes(one) for one in got] == contents
        line.until(lambda: not line.relay._connections)
        for client in clients:
            client.close()
    finally:
        line.relay.close()


def test_n1_a_reader_that_does_not_read_holds_up_only_itself() -> None:
    """And what waits for it is bounded: the peer has 10 MB for it, and room for 64 KiB."""

    def serve(visit: Visit) -> None:
        if visit.received and not visit.reset:
            visit.send(bytes(10 << 20) if visit.received == b"much" else bytes(visit.received))
            visit.received.clear()

    line = Line(serve)
    try:
        with line.dial() as slow, line.dial() as quick:
            slow.send(b"much")
            line.until(lambda: any(c.waiting for c in line.relay._connections.values()))
            for _ in range(20):
                quick.send(b"quick")
                line.until(lambda: select.select([quick], [], [], 0)[0])
                assert quick.recv(100) == b"quick"
            held = [len(c.waiting) for c in line.relay._connections.values()]
            assert max(held) <= WINDOW
    finally:
        line.relay.close()


def test_n1_a_peer_that_gives_no_room_is_sent_no_more(line: Line) -> None:
    silent: list[bytes] = []
    deaf = Relay(silent.append, (0,))
    try:
        with socket.create_connection((relay.ADDRESS, deaf.ports[0])) as client:
            client.setblocking(False)
            for _ in range(200):
                with contextlib.suppress(BlockingIOError):
                    client.send(bytes(1 << 16))
                deaf.turn()
        sent = b"".join(silent)
        frames = 1 + WINDOW // PIECE
        assert len(sent) <= frames * HEADER.size + 1 + WINDOW + 64 * HEADER.size
    finally:
        deaf.close()


def test_n1_whoever_vanishes_is_reset(line: Line) -> None:
    client = line.dial()
    line.until(lambda: line.peer.visits)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, relay._EVERYTHING_ENDS)
    client.close()
    line.until(lambda: line.peer.visits[1].reset)
    assert not line.relay._connections


def test_n1_what_the_gateway_cuts_is_cut_for_the_code(line: Line) -> None:
    with line.dial() as client:
        line.until(lambda: line.peer.visits)
        line.peer.visits[1].kill()
        line.turn()
        with pytest.raises(ConnectionResetError):
            line.answer(client)
    assert not line.relay._connections


def test_n1_the_gateway_may_end_first(line: Line) -> None:
    """The other direction goes on."""
    bye = Line(lambda visit: None)
    try:
        with bye.dial() as client:
            bye.until(lambda: bye.peer.visits)
            visit = bye.peer.visits[1]
            visit.send(b"all I say")
            visit.close()
            assert bye.answer(client) == b"all I say"
            client.send(b"but I go on")
            client.shutdown(socket.SHUT_WR)
            bye.until(lambda: visit.ended)
            assert visit.received == b"but I go on"
            bye.until(lambda: not bye.relay._connections)
    finally:
        bye.relay.close()


def test_n1_no_more_than_the_most_at_once(line: Line) -> None:
    """Who comes later waits in the kernel's queue, and is served when there is room."""
    clients = []
    for _ in range(MOST):
        clients.append(line.dial())
        line.turn()
    line.until(lambda: len(line.peer.visits) == MOST)
    late = line.dial()
    for _ in range(20):
        line.turn()
    assert len(line.peer.visits) == MOST
    late.send(b"late")
    late.shutdown(socket.SHUT_WR)
    clients.pop().close()
    assert line.answer(late) == b"late"
    assert line.peer.most == MOST
    for client in clients:
        client.close()
    late.close()


@pytest.mark.parametrize(
    "said",
    [
        HEADER.pack(DATA, 1, PIECE + 1),
        HEADER.pack(OPEN, 7, 1) + b"\0",
        HEADER.pack(9, 1, 0),
        HEADER.pack(0, 1, 0),
        HEADER.pack(CREDIT, 1, 4) + ROOM.pack(1),
        HEADER.pack(DATA, 1, PIECE) * 1 + bytes(PIECE) + HEADER.pack(CREDIT, 1, 4) + ROOM.pack(9),
    ],
)
def test_a_gateway_that_breaks_the_rules_is_not_listened_to(line: Line, said: bytes) -> None:
    with line.dial():
        line.until(lambda: line.peer.visits)
        with pytest.raises(Broken):
            line.relay.feed(said)


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(st.binary(max_size=60), max_size=10), kinds=st.lists(st.integers(0, 6)))
def test_whatever_comes_pid_1_lives_on(pieces: list[bytes], kinds: list[int]) -> None:
    """It is the host's own gateway that speaks; and yet nothing but the network may be lost."""
    sent: list[bytes] = []
    listening: set[int] = set()
    doors = Doors(sent.append, lambda _: None, listening.add, listening.discard)
    real, relay.DOORS = relay.DOORS, (0,)
    try:
        doors._relay = made = Relay(sent.append, (0,))
        doors.descriptor = made.descriptor
        doors._listen(made.descriptor)
        with socket.create_connection((relay.ADDRESS, made.ports[0])):
            doors.turn()
            framed = [HEADER.pack(kind, 1, 4) + b"\0\0\0\1" for kind in kinds]
            for piece in [*pieces, *framed]:
                doors.take(piece or b"x")
                doors.turn()
            if doors.descriptor < 0:
                assert sent[-1] == b"" and not listening
        doors.take(b"")
        assert doors.descriptor == -1 and not listening
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((relay.ADDRESS, made.ports[0]))
    finally:
        relay.DOORS = real
        doors.close()


def test_only_the_first_door_has_to_be_had() -> None:
    """Ports below 1024 are not everywhere to be had."""
    with socket.socket() as taken:
        taken.bind((relay.ADDRESS, 0))
        taken.listen()
        port = taken.getsockname()[1]
        made = Relay(lambda _: None, (0, port, 0))
        assert len(made.ports) == 2 and port not in made.ports
        made.close()
        with pytest.raises(OSError, match="in use"):
            Relay(lambda _: None, (port, 0, 0))


def test_a_reset_that_crosses_bytes_on_their_way_is_no_fault(line: Line) -> None:
    line.relay.feed(HEADER.pack(DATA, 99, 3) + b"abc" + HEADER.pack(RESET, 99, 0))
    with line.dial() as client:
        client.send(b"still here")
        client.shutdown(socket.SHUT_WR)
        assert line.answer(client) == b"still here"
