"""N1: the gateway's own wires, spoken to by a hostile guest. At worst it loses its own."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
import tempfile
from collections.abc import Iterator

import pytest

from belljar.egress import mux
from belljar.egress.burning import Account
from belljar.egress.limits import Crowd, Turns
from belljar.network import Allow
from tests.world.place import World
from tests.world.ways import PATIENCE_S, Gate, Way, ended, eventually

HOST = "api.example.com"
OPEN, DATA, CREDIT, CLOSE, RESET = 1, 2, 3, 4, 5
GET = f"GET http://{HOST}/hello HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode()


def frame(kind: int, number: int, payload: bytes = b"") -> bytes:
    return struct.pack(">BII", kind, number, len(payload)) + payload


@pytest.fixture
def wired(gate: Gate) -> Iterator[Way]:
    """Without doors: the test speaks on wires itself."""
    with gate.open(Allow(HOST), doors=False) as opened:
        yield opened


@pytest.fixture
def bystander(gate: Gate) -> Iterator[Way]:
    """Another sandbox, which notices nothing."""
    with gate.open(Allow(HOST)) as opened:
        yield opened
        assert opened.get(HOST).status == 200


def new(way: Way) -> socket.socket:
    wire = way.lease.wire()
    wire.settimeout(PATIENCE_S)
    return wire


def test_many_connections_on_one_wire(wired: Way, world: World) -> None:
    with new(wired) as wire:
        wire.sendall(b"M")
        for number in range(20):
            wire.sendall(frame(OPEN, number, b"\0") + frame(DATA, number, GET))
        answers: dict[int, bytes] = {}
        over = 0
        while over < 20:
            kind, number, length = struct.unpack(">BII", wire.recv(9, socket.MSG_WAITALL))
            payload = wire.recv(length, socket.MSG_WAITALL) if length else b""
            if kind == DATA:
                answers[number] = answers.get(number, b"") + payload
            over += kind in (CLOSE, RESET)
    assert all(answer.endswith(b"hello\n") for answer in answers.values())
    assert len(world.visits) == len(answers) == 20


BROKEN = {
    "no such wire": b"X",
    "nothing": b"",
    "no such kind": b"M" + frame(9, 1),
    "kind 0": b"M" + frame(0, 1),
    "a huge frame": b"M" + struct.pack(">BII", DATA, 1, 0xFFFFFFFF),
    "data too long": b"M" + frame(OPEN, 1, b"\0") + frame(DATA, 1, b"x" * 16_385),
    "empty data": b"M" + frame(OPEN, 1, b"\0") + frame(DATA, 1),
    "a door that is none": b"M" + frame(OPEN, 1, b"\3"),
    "no door": b"M" + frame(OPEN, 1),
    "two doors": b"M" + frame(OPEN, 1, b"\0\0"),
    "a number in use": b"M" + frame(OPEN, 1, b"\0") * 2,
    "credit in words": b"M" + frame(OPEN, 1, b"\0") + frame(CREDIT, 1, b"many"),
    "credit of 2^32": b"M" + frame(OPEN, 1, b"\0") + frame(CREDIT, 1, b"\xff" * 4),
    "short credit": b"M" + frame(OPEN, 1, b"\0") + frame(CREDIT, 1, b"\1"),
    "closed twice": b"M" + frame(OPEN, 1, b"\0") + frame(CLOSE, 1) + frame(CLOSE, 1),
    "data after the end": b"M" + frame(OPEN, 1, b"\0") + frame(CLOSE, 1) + frame(DATA, 1, b"x"),
    "a close that says something": b"M" + frame(OPEN, 1, b"\0") + frame(CLOSE, 1, b"x"),
    "300 connections": b"M" + b"".join(frame(OPEN, number, b"\0") for number in range(300)),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_who_breaks_the_rules_loses_the_wire(
    wired: Way, bystander: Way, world: World, kind: str
) -> None:
    with new(wired) as wire:
        wire.sendall(BROKEN[kind])
        if not BROKEN[kind]:
            wire.shutdown(socket.SHUT_WR)
        assert ended(wire)
    assert world.visits == []
    with new(wired) as wire:  # the lease itself lives
        wire.sendall(b"M" + frame(OPEN, 7, b"\0") + frame(DATA, 7, GET))
        eventually(lambda: world.visits)


def test_more_than_the_window(wired: Way, bystander: Way, world: World) -> None:
    head = f"POST http://{HOST}/deaf HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 99999999\r\n\r\n"
    with new(wired) as wire:
        wire.sendall(b"M" + frame(OPEN, 1, b"\0") + frame(DATA, 1, head.encode()))
        with pytest.raises(OSError):
            for _ in range(10_000):
                wire.sendall(frame(DATA, 1, b"x" * 16_384))


def test_frames_for_nobody_are_dropped(wired: Way, world: World) -> None:
    with new(wired) as wire:
        stray = frame(DATA, 5, b"x") + frame(CREDIT, 6, b"\0\0\0\1") + frame(RESET, 9)
        wire.sendall(b"M" + stray * 1000 + frame(OPEN, 1, b"\0") + frame(DATA, 1, GET))
        eventually(lambda: world.visits)


FOR_NOTHING = {
    "for nobody": frame(CREDIT, 6, b"\0\0\0\1"),
    "no credit": frame(CREDIT, 1, b"\0\0\0\0"),
    "resets": frame(RESET, 9),
}


@pytest.mark.parametrize("kind", FOR_NOTHING)
def test_a_flood_of_frames_for_nothing_ends_the_wire(wired: Way, bystander: Way, kind: str) -> None:
    """They cost a guest nothing to send; others wait while they are read."""
    with new(wired) as wire:
        wire.sendall(b"M" + frame(OPEN, 1, b"\0"))
        with pytest.raises(OSError):
            for _ in range(20_000):
                wire.sendall(FOR_NOTHING[kind] * 1000)


@pytest.mark.parametrize("seed", range(5))
def test_noise(wired: Way, bystander: Way, seed: int) -> None:
    noise = random.Random(seed)
    with new(wired) as wire:
        wire.settimeout(1.0)
        data = b"M"
        for _ in range(2000):
            kind = noise.choice((OPEN, DATA, DATA, CREDIT, CLOSE, RESET))
            payload = {OPEN: b"\0", DATA: noise.randbytes(20), CREDIT: b"\0\0\0\0"}.get(kind, b"")
            data += frame(kind, noise.randrange(200), payload)
        try:
            wire.sendall(data)
        except OSError:
            pass


def test_what_waits_for_a_guest_that_never_reads_is_bounded() -> None:
    """Every byte that it sends is worth a word of credit, which it leaves lying."""

    async def flooded() -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        turns = Turns(Account(lambda _: None), Crowd())
        wire = mux.Wire(theirs, doors=3, opened=lambda *_: asyncio.sleep(0), turns=turns)
        with ours:
            living = asyncio.create_task(wire.live(b""))
            await asyncio.sleep(0)
            for _ in range(1 << 20):
                wire.post(CREDIT, 1, b"\0\0\0\1")
            await asyncio.wait_for(living, PATIENCE_S)

    asyncio.run(flooded())


def test_a_number_used_again_is_another_connection() -> None:
    """Both sides have closed number 1, and the guest opens it again before the gateway lets go of
    the first. That must not forget the second, which would then live uncounted and unheard."""

    async def used_again() -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        lanes: asyncio.Queue[mux.Lane] = asyncio.Queue()
        turns = Turns(Account(lambda _: None), Crowd())
        wire = mux.Wire(theirs, doors=3, opened=lambda lane, _: lanes.put(lane), turns=turns)
        with ours:
            living = asyncio.create_task(wire.live(b""))
            ours.sendall(frame(OPEN, 1, b"\0") + frame(CLOSE, 1))
            first = await asyncio.wait_for(lanes.get(), PATIENCE_S)
            await first.end()
            assert await asyncio.wait_for(first.read(), PATIENCE_S) == b""
            ours.sendall(frame(OPEN, 1, b"\0"))
            second = await asyncio.wait_for(lanes.get(), PATIENCE_S)
            first.close()
            ours.sendall(frame(DATA, 1, b"heard"))
            assert await asyncio.wait_for(second.read(), PATIENCE_S) == b"heard"
            ours.sendall(frame(OPEN, 1, b"\0"))  # it is still in use
            await asyncio.wait_for(living, PATIENCE_S)

    asyncio.run(used_again())


def test_resets_in_a_row(wired: Way, bystander: Way, world: World) -> None:
    """Opening and resetting costs the guest its own pace."""
    with new(wired) as wire:
        wire.settimeout(5.0)
        try:
            wire.sendall(b"M" + (frame(OPEN, 1, b"\0") + frame(RESET, 1)) * 20_000)
        except OSError:
            pass


def test_descriptors_that_are_no_listeners(wired: Way, bystander: Way, world: World) -> None:
    """Each of them would be something of the host's, if the gateway touched it."""
    connected, other = socket.socketpair()
    packets = socket.socket(type=socket.SOCK_DGRAM)
    unbound = socket.socket()
    local = socket.socket(socket.AF_UNIX)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as file:
        local.bind(f"{folder}/s")
        local.listen()
        pipe = os.pipe()
        for descriptor in (
            connected.fileno(),
            packets.fileno(),
            unbound.fileno(),
            local.fileno(),
            file.fileno(),
            *pipe,
        ):
            with new(wired) as wire:
                socket.send_fds(wire, [b"L"], [descriptor])
                assert ended(wire), descriptor
        for word, descriptors in ((b"L", []), (b"LL", [unbound.fileno()]), (b"M", [pipe[0]])):
            with new(wired) as wire:
                if descriptors:
                    socket.send_fds(wire, [word], descriptors)
                else:
                    wire.sendall(word)
                assert ended(wire), word
        for one in pipe:
            os.close(one)
    for one in (connected, other, packets, unbound, local):
        one.close()


def test_wires_that_say_nothing(gate: Gate, wired: Way, bystander: Way) -> None:
    """Two hundred of them, open at once, then dropped."""
    wires = [wired.lease.wire() for _ in range(200)]
    assert bystander.get(HOST).status == 200
    for wire in wires:
        wire.close()
