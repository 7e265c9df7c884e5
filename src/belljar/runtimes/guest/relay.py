"""The sandbox's end of the network: connections to ports of loopback, carried to the gateway.

Nothing is decided here, and no name is known: whatever the code says to a door goes out as it is,
and the gateway judges it. It runs in pid 1, which the code can neither kill nor look into.

Many connections share one stream of bytes, in frames:
    frame = kind (1 byte) + connection (4 bytes) + payload length (4 bytes), big endian, + payload
    OPEN    which door was knocked at (1 byte); only from inside, with a number never used before
    DATA    at most 16 KiB, and no more than the other side has room for: 64 KiB at first
    CREDIT  room for so many bytes more (4 bytes)
    CLOSE   no more DATA from this side; when both have said so the connection is over
    RESET   it is over at once
What is said of a connection that is over was on its way when it ended, and means nothing.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable

OPEN, DATA, CREDIT, CLOSE, RESET = 1, 2, 3, 4, 5
HEADER = struct.Struct(">BII")
ROOM = struct.Struct(">I")
WINDOW = 64 * 1024
PIECE = 16 * 1024
MOST = 256
"""Connections at once; who comes later waits to be accepted."""
ADDRESS = "127.0.0.1"
DOORS = (3128, 80, 443)
"""A proxy, and what clients dial that know of no proxy."""
_BACKLOG = 128
_AT_ONCE = 64
"""Connections looked after before the caller has its turn again."""
_SEND = 64 * 1024
_EVERYTHING_ENDS = struct.pack("ii", 1, 0)


class Broken(Exception):
    """The other end does not keep to the rules."""


class Relay:
    """The caller waits until `descriptor` is readable, then calls `turn`; what comes from the
    gateway it gives to `feed`. `send` gets what goes there."""

    def __init__(self, send: Callable[[bytes], None], doors: tuple[int, ...] = DOORS) -> None:
        """The first door has to be opened; where the others cannot, there is only that one."""
        self._send = send
        self._out = bytearray()
        self._in = bytearray()
        self._poll = select.epoll()
        self._connections: dict[int, _Connection] = {}
        self._by_descriptor: dict[int, _Connection] = {}
        self._listeners: dict[int, tuple[int, socket.socket]] = {}
        self._accepting = False
        self._next = 1
        self.ports: list[int] = []
        """Those that are open."""
        for door, port in enumerate(doors):
            try:
                listener = _listen(port)
            except OSError:
                if door == 0:
                    self.close()
                    raise
                continue
            self._listeners[listener.fileno()] = (door, listener)
            self.ports.append(listener.getsockname()[1])
        self._accept(True)

    @property
    def descriptor(self) -> int:
        return self._poll.fileno()

    def turn(self) -> None:
        for descriptor, events in self._poll.poll(0, _AT_ONCE):
            connection = self._by_descriptor.get(descriptor)
            if connection:
                self._serve(connection, events)
            elif descriptor in self._listeners:
                self._knocked(*self._listeners[descriptor])
        self._flush()

    def feed(self, data: bytes) -> None:
        self._in += data
        position = 0
        while len(self._in) - position >= HEADER.size:
            kind, number, length = HEADER.unpack_from(self._in, position)
            if length > PIECE:
                raise Broken("a frame of %d bytes" % length)
            end = position + HEADER.size + length
            if end > len(self._in):
                break
            self._take(kind, number, bytes(self._in[position + HEADER.size : end]))
            position = end
        del self._in[:position]
        self._flush()

    def close(self) -> None:
        for _, listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        for connection in list(self._connections.values()):
            self._drop(connection, abruptly=True)
        self._poll.close()

    # -- from the gateway ------------------------------------------------------------------------

    def _take(self, kind: int, number: int, payload: bytes) -> None:
        if kind not in (DATA, CREDIT, CLOSE, RESET):
            raise Broken("a frame of kind %d" % kind)
        connection = self._connections.get(number)
        if connection is None:  # it ended here while this was on its way
            return
        if kind == DATA:
            connection.waiting += payload
            if len(connection.waiting) > WINDOW or connection.last_came:
                raise Broken("more bytes than there is room for")
            self._write(connection)
        elif kind == CREDIT:
            (more,) = ROOM.unpack(payload)
            connection.room += more
            if connection.room > WINDOW:
                raise Broken("more room than there can be")
            self._listen_to(connection)
        elif kind == CLOSE:
            connection.last_came = True
            self._write(connection)
        else:
            self._drop(connection, abruptly=True)

    # -- from the code ---------------------------------------------------------------------------

    def _knocked(self, door: int, listener: socket.socket) -> None:
        for _ in range(
            _AT_ONCE
        ):  # few can wait: the kernel lets who comes then try again in a second
            if not self._accepting:
                return
            try:
                endpoint, _ = listener.accept()
            except OSError:  # nobody, or gone again
                return
            self._welcome(door, endpoint)

    def _welcome(self, door: int, endpoint: socket.socket) -> None:
        endpoint.setblocking(False)
        try:
            endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:  # it has gone again, which reading will tell
            pass
        connection = _Connection(self._next, endpoint)
        self._next += 1
        self._connections[connection.number] = connection
        self._by_descriptor[endpoint.fileno()] = connection
        self._post(OPEN, connection, bytes((door,)))
        self._listen_to(connection)
        if len(self._connections) >= MOST:
            self._accept(False)

    def _serve(self, connection: _Connection, events: int) -> None:
        trouble = events & (select.EPOLLERR | select.EPOLLHUP)
        if connection.waiting and (events & select.EPOLLOUT or trouble):
            self._write(connection)
        if connection.reads and (events & select.EPOLLIN or trouble):
            self._read(connection)

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.endpoint.recv(min(PIECE, connection.room))
        except BlockingIOError:
            return
        except OSError:
            self._reset(connection)
            return
        if data:
            connection.room -= len(data)
            self._post(DATA, connection, data)
            self._listen_to(connection)
        else:
            connection.last_went = True
            self._post(CLOSE, connection)
            self._settle(connection)

    def _write(self, connection: _Connection) -> None:
        written = 0
        try:
            while connection.waiting:
                count = connection.endpoint.send(connection.waiting)
                del connection.waiting[:count]
                written += count
        except BlockingIOError:
            pass
        except OSError:
            self._reset(connection)
            return
        if written and not connection.last_came:
            self._post(CREDIT, connection, ROOM.pack(written))
        self._settle(connection)

    def _settle(self, connection: _Connection) -> None:
        """All that there was to say in one direction may have been said."""
        if connection.last_came and not connection.waiting:
            if connection.last_went:
                self._drop(connection, abruptly=False)
                return
            if not connection.shut:
                connection.shut = True
                try:
                    connection.endpoint.shutdown(socket.SHUT_WR)
                except OSError:
                    self._reset(connection)
                    return
        self._listen_to(connection)

    def _reset(self, connection: _Connection) -> None:
        self._post(RESET, connection)
        self._drop(connection, abruptly=True)

    def _drop(self, connection: _Connection, *, abruptly: bool) -> None:
        if connection.events:
            self._poll.unregister(connection.endpoint)
        del self._connections[connection.number]
        del self._by_descriptor[connection.endpoint.fileno()]
        if abruptly:
            try:
                connection.endpoint.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, _EVERYTHING_ENDS
                )
            except OSError:
                pass
        connection.endpoint.close()
        self._accept(True)

    def _listen_to(self, connection: _Connection) -> None:
        """Not at all if nothing is wanted: the end of a connection would be reported for ever."""
        wanted = select.EPOLLIN if connection.reads else 0
        if connection.waiting:
            wanted |= select.EPOLLOUT
        if wanted == connection.events:
            return
        if not wanted:
            self._poll.unregister(connection.endpoint)
        elif connection.events:
            self._poll.modify(connection.endpoint, wanted)
        else:
            self._poll.register(connection.endpoint, wanted)
        connection.events = wanted

    def _accept(self, accepting: bool) -> None:
        if accepting == self._accepting:
            return
        self._accepting = accepting
        for _, listener in self._listeners.values():
            if accepting:
                self._poll.register(listener, select.EPOLLIN)
            else:
                self._poll.unregister(listener)

    # -- to the gateway --------------------------------------------------------------------------

    def _post(self, kind: int, connection: _Connection, payload: bytes = b"") -> None:
        self._out += HEADER.pack(kind, connection.number, len(payload)) + payload
        if len(self._out) > _SEND:
            self._flush()

    def _flush(self) -> None:
        if self._out:
            data = bytes(self._out)
            self._out.clear()
            self._send(data)


class _Connection:
    def __init__(self, number: int, endpoint: socket.socket) -> None:
        self.number = number
        self.endpoint = endpoint
        self.waiting = bytearray()
        """For the code, which has not taken it yet."""
        self.room = WINDOW
        """So much may still go to the gateway."""
        self.events = 0
        self.last_went = False
        self.last_came = False
        self.shut = False

    @property
    def reads(self) -> bool:
        return self.room > 0 and not self.last_went


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ADDRESS, port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
