"""The gateway's end of a multiplexed wire as the protocol says it, and nothing more: it answers
what it is told with what a test wants. For tests of the sandbox's end."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from belljar.engines.base import Doors
from belljar.runtimes.guest.relay import (
    CLOSE,
    CREDIT,
    DATA,
    HEADER,
    OPEN,
    PIECE,
    RESET,
    ROOM,
    WINDOW,
)


class Visit:
    """One connection. Everything it is given goes out as far as there is room for it."""

    def __init__(self, peer: Peer, number: int, door: int) -> None:
        self.peer = peer
        self.number = number
        self.door = door
        self.received = bytearray()
        self.ended = False
        """No more comes from inside."""
        self.reset = False
        self._room = WINDOW
        self._credit = WINDOW
        self._waiting = bytearray()
        self._closing = False
        self._closed = False

    def send(self, data: bytes) -> None:
        self._waiting += data
        self._push()

    def close(self) -> None:
        self._closing = True
        self._push()

    def kill(self) -> None:
        self.reset = True
        self.peer.put(RESET, self.number)

    def take(self, kind: int, payload: bytes) -> None:
        assert not self.reset
        if kind == DATA:
            assert payload and not self.ended
            self._credit -= len(payload)
            assert self._credit >= 0, "more than the window"
            self.received += payload
            self._credit += len(payload)
            self.peer.put(CREDIT, self.number, ROOM.pack(len(payload)))
        elif kind == CREDIT:
            (more,) = ROOM.unpack(payload)
            assert more > 0
            self._room += more
            assert self._room <= WINDOW
            self._push()
        elif kind == CLOSE:
            assert not self.ended and not payload
            self.ended = True
        else:
            assert not payload
            self.reset = True

    def _push(self) -> None:
        while self._waiting and self._room:
            piece = bytes(self._waiting[: min(PIECE, self._room)])
            del self._waiting[: len(piece)]
            self._room -= len(piece)
            self.peer.put(DATA, self.number, piece)
        if self._closing and not self._waiting and not self._closed and not self.reset:
            self._closed = True
            self.peer.put(CLOSE, self.number)

    @property
    def over(self) -> bool:
        return self.reset or (self.ended and self._closed)


Serve = Callable[[Visit], None]
"""Called when something has come for a visit, and when it began."""


class Peer:
    """Pure: bytes in by `feed`, bytes out by `out`."""

    def __init__(self, serve: Serve) -> None:
        self.out = bytearray()
        self.visits: dict[int, Visit] = {}
        self.most = 0
        """Connections there were at once."""
        self._serve = serve
        self._in = bytearray()
        self._last = 0

    def put(self, kind: int, number: int, payload: bytes = b"") -> None:
        self.out += HEADER.pack(kind, number, len(payload)) + payload

    def feed(self, data: bytes) -> None:
        self._in += data
        while len(self._in) >= HEADER.size:
            kind, number, length = HEADER.unpack_from(self._in)
            assert length <= PIECE
            if len(self._in) < HEADER.size + length:
                return
            payload = bytes(self._in[HEADER.size : HEADER.size + length])
            del self._in[: HEADER.size + length]
            self._take(kind, number, payload)

    def _take(self, kind: int, number: int, payload: bytes) -> None:
        if kind == OPEN:
            assert number > self._last, "a number that was used before"
            self._last = number
            self.visits[number] = Visit(self, number, payload[0])
            assert len(payload) == 1
            self.most = max(self.most, sum(not visit.over for visit in self.visits.values()))
        else:
            assert kind in (DATA, CREDIT, CLOSE, RESET)
            visit = self.visits[number]
            if visit.reset:  # it was on its way
                return
            visit.take(kind, payload)
        self._serve(self.visits[number])


def echo(visit: Visit) -> None:
    visit.send(bytes(visit.received))
    visit.received.clear()
    if visit.ended:
        visit.close()


class Answering:
    """A peer at the other end of real wires, each in a thread of its own."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._threads: list[threading.Thread] = []
        self._ends: list[socket.socket] = []
        self.peers: list[Peer] = []
        self.problems: list[BaseException] = []

    def wire(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        peer = Peer(self._serve)
        self.peers.append(peer)
        self._ends.append(ours)
        thread = threading.Thread(target=self._live, args=(ours, peer), daemon=True)
        thread.start()
        self._threads.append(thread)
        return theirs

    def doors(self, **hosts: str) -> Doors:
        return Doors(
            wire=self.wire, hosts={name.replace("_", "."): ip for name, ip in hosts.items()}
        )

    def hang_up(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):  # it has ended
                end.shutdown(socket.SHUT_RDWR)

    def _live(self, end: socket.socket, peer: Peer) -> None:
        try:
            first = end.recv(1)
            assert first in (b"M", b"")
            while data := end.recv(1 << 16):
                peer.feed(data)
                end.sendall(peer.out)
                peer.out.clear()
        except OSError:
            pass
        except BaseException as problem:
            self.problems.append(problem)
        finally:
            end.close()
