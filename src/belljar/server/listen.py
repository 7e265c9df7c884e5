"""uvicorn, with what it lacks: time-outs for headers and for who does not read, bounds, room for
those who have a key, a drain that ends."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

from belljar import threads
from belljar.errors import Unavailable
from belljar.server.app import build
from belljar.server.errors import body
from belljar.server.reading import Reading
from belljar.server.server import Server
from belljar.server.slices import Sliced
from belljar.server.strangers import Stranger

HEADER_BYTES = 64 * 1024
MOST_PIPELINED = 8
"""Requests that a client sends ahead while an answer is under way."""
MESSAGE_BYTES = 1 << 20
"""The largest that comes through a WebSocket."""
MESSAGE_S = 0.0003
"""What one counts as beside its bytes: somebody answers it."""
MOST_FRAGMENTS = 4096
"""Of a message: its bytes are bounded, and fragments of nothing have none."""
MOST_FIELDS = 128
"""Of a head: each is looked at several times."""
UNREAD_BYTES = 1 << 18
"""Of an answer, in the kernel; it takes twice as much memory, and would take megabytes by itself,
for each client that does not read."""
AHEAD_BYTES = 1 << 18
"""The same of what a client sends and we have not read."""
UNREAD_MS = 60_000
"""How long the kernel keeps what a client does not take, also when we have closed the connection
and nobody counts it any more."""
LINGER_S = 5.0
"""How long the rest of a refused body is thrown away before the connection is closed."""


def open_socket(host: str, port: int) -> socket.socket:
    """Bound now, so that the port is known before anything is printed."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD_BYTES)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, AHEAD_BYTES)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
        listening.bind(address)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {host} port {port}: {error.strerror or error}",
            hint="is another server running? try --port 0",
        ) from error
    return listening


def serve(server: Server, listening: socket.socket) -> bool:
    """Returns when the server was told to end (SIGTERM, SIGINT) and has; False if not all of it
    could be put away."""
    settings = server.settings
    protocol, sockets = _protocols(server)
    config = uvicorn.Config(
        build(server),
        http=protocol,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        backlog=min(4096, settings.connections),
        ws=sockets,
        ws_max_size=MESSAGE_BYTES,
        ws_per_message_deflate=False,  # a message says how large it is
        timeout_keep_alive=int(max(1, settings.keep_alive_s)),
        timeout_graceful_shutdown=int(settings.drain_s) + 10,
    )
    # All that was loaded stays to the end: looking for garbage in it would stop every run now and
    # then for tens of milliseconds.
    gc.collect()
    gc.freeze()
    threads.stay()
    _Uvicorn(config, server).run(sockets=[listening])
    return not server.failed


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._server = server

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first asks it to end, a second SIGINT does not wait. Uvicorn's own would also raise
        the signal again when all is done, as if it had not been."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Every tenth of a second."""
        if counter % 10 == 0:
            for one in list(self.server_state.connections):
                if isinstance(one, Reading):
                    one.look_at_close()
                if isinstance(one, _Bounded):
                    one.look_at_key()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts no more, then drains within the operator's time, then uvicorn's own way."""
        draining = asyncio.ensure_future(self._server.drain())
        await super().shutdown(sockets)
        await draining


def _protocols(server: Server) -> tuple[type[HttpToolsProtocol], type[WebSocketsSansIOProtocol]]:
    shared = {"belljar": server, "strangers": {}, "idle": {}, "closing": {}, "resting_until": {}}
    return type("BelljarProtocol", (_Bounded,), shared), type("BelljarSockets", (_Socket,), shared)


class _Socket(Sliced, Stranger, WebSocketsSansIOProtocol):
    """Who does not read is told first (see `Talk`), and then cut off. A long message is sent in
    fragments: those that have `more`, until it is false."""

    patience = 2
    _in_message = False

    def begin(self, head: bytes) -> None:
        """Hands the request to the gate, or refuses it: what the library below cannot read it would
        neither answer nor close."""
        self.is_strange()
        self.start_clock()
        self.expect_head(0)
        try:
            self.read(head)
        except ValueError:  # a path that is not ASCII
            self.handshake_initiated = False
        if not self.handshake_initiated:
            why = "this is not a valid WebSocket handshake"
            _refuse(self.transport, 400, body("invalid_request", why, "see RFC 6455"))

    def whose(self) -> str:
        return _tenant_of(self.scope) if self.handshake_initiated else ""

    def is_held_up(self) -> bool:
        # Who does not read is not read from either: each ping would be answered.
        return self.read_paused or not self.writable.is_set() or not self.handshake_complete

    def resume_writing(self) -> None:
        super().resume_writing()
        self.go_on()

    def read(self, data: bytes) -> None:
        super().read(data)
        if len(self.frames) > MOST_FRAGMENTS:
            self.cut()

    async def receive(self) -> Any:
        received = await super().receive()
        self.wait()
        self.has_worked(MESSAGE_S)
        if rest_s := self.rest_s():
            await asyncio.sleep(rest_s)
        self.go_on()
        return received

    def may_give_way(self) -> bool:
        return not self._is_admitted()

    def too_slow(self) -> None:
        if not self._is_admitted():
            self.cut()

    def _is_admitted(self) -> bool:
        return not self.close_sent and self.whose() != ""

    async def send(self, message: Any) -> None:
        if self._is_admitted():
            self.stop_clock()
            self.is_known()
        if "more" not in message:
            await super().send(message)
            self.go_on()
            return
        await self.writable.wait()
        if self.disconnected or self.close_sent:
            raise ClientDisconnected
        put = self.conn.send_continuation if self._in_message else self.conn.send_text
        try:
            put(message["text"].encode(), fin=not message["more"])
        except InvalidState:  # its Close came meanwhile
            raise ClientDisconnected from None
        self._in_message = message["more"]
        self.transport.write(b"".join(self.conn.data_to_send()))


class _Flow(FlowControl):
    def __init__(self, transport: asyncio.Transport, reader: Sliced) -> None:
        super().__init__(transport)
        self._reader = reader

    def resume_reading(self) -> None:
        if self.read_paused:
            super().resume_reading()
            if self._reader.wait():
                self._reader.loop.call_soon(self._reader.go_on)


class _Bounded(Sliced, Stranger, HttpToolsProtocol):
    """A client may not hold a connection by sending slowly, nor memory by long headers or by not
    reading its answer; and a connection carries nothing behind a request whose end is in doubt."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        """That came since the last headers, piece of a body or message were whole."""
        self._in_head = False
        self._read_all = False
        """Nothing that comes from now on is read."""
        self._answering: RequestResponseCycle | None = None
        """Not the newest one, if the client has sent requests ahead."""
        self._is_keyless = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport, self)
        most = self.belljar.settings.connections
        self.is_strange()
        if len(self.connections) > most and not self._found_room(most):
            self._refuse(503, body("overloaded", "too many connections", "try again", True))
        else:
            self.start_clock()

    def _found_room(self, most: int) -> bool:
        if len(self.closing) > most // 4:  # their clients do not read what is left of the answer
            next(iter(self.closing)).cut()
        # Or others close already.
        return len(self.connections) - len(self.closing) <= most or self.found_room()

    def connection_lost(self, exc: Exception | None) -> None:
        if (cycle := self._answering) and not cycle.response_complete:
            cycle.disconnected = True  # uvicorn tells the newest only
            cycle.message_event.set()
        super().connection_lost(exc)

    def whose(self) -> str:
        cycle = self._answering
        return _tenant_of(cycle.scope) if cycle and not self.may_give_way() else ""

    def is_held_up(self) -> bool:
        return self.flow.read_paused

    def read(self, data: bytes) -> None:
        if self._read_all or self.transport.is_closing():
            return
        if self._clock is None and self.may_give_way():
            if self.tenant_name:
                self.is_idle()
            self.start_clock()
        if self._head_bytes > HEADER_BYTES:
            self._too_large()
            return
        self._head_bytes += len(data)
        super().read(data)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Fields behind a chunked body come here as well. They are dropped: a proxy in front checks
        and strips headers, and passes these on."""
        if not self._in_head or self._read_all:
            return
        super().on_header(name, value)
        if len(self.headers) > MOST_FIELDS:
            self._read_all = True
            self._too_large()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        self.stop_clock()
        if len(self.pipeline) >= MOST_PIPELINED:
            self.transport.abort()
        if self.transport.is_closing():
            return
        upgrade = self.parser.should_upgrade()
        if upgrade:
            # The parser takes whatever follows for something else than HTTP, so nobody would read
            # the body: to a proxy it is one, here it would be the next request.
            self._read_all = True
            if self._has_body() or self.parser.get_method() == b"CONNECT":
                self._refuse(400, _NO_UPGRADE)
                return
        if not self._is_coded_plainly():
            self._read_all = True
            self._refuse(400, _NO_CODING)
            return
        super().on_headers_complete()
        if self.expect_100_continue or (upgrade and not self._should_upgrade()):
            # Who gets a final answer instead of 100 may send the body, or not.
            self.cycle.keep_alive = False

    def _has_body(self) -> bool:
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0")
            for name, value in self.headers
        )

    def _is_coded_plainly(self) -> bool:
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        return all(one.strip().lower() == b"chunked" for one in codings) and len(codings) <= 1

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        self.is_known()  # or it is closed with the answer
        super()._start_asgi_task(cycle, app)

    def handle_websocket_upgrade(self) -> None:
        if self.transport.is_closing():
            return
        if not self.may_give_way():  # nobody would tell the answer under way when the client goes
            self.transport.abort()
            return
        lines = [b"%s %s HTTP/1.1" % (self.parser.get_method(), self.url)]
        lines += [b"%s: %s" % header for header in self.headers]
        self.connections.discard(self)
        self.is_known()
        make: Any = self.ws_protocol_class
        socket = make(config=self.config, server_state=self.server_state, app_state=self.app_state)
        self.transport.set_protocol(socket)  # from now on it is told when the client goes
        socket.connection_made(self.transport)
        socket.begin(b"\r\n".join([*lines, b"", b""]))

    def timeout_keep_alive_handler(self) -> None:
        if not self.transport.is_closing():
            self.give_way()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        if self.transport.is_closing():
            return
        super().on_message_complete()
        if self.cycle and self.cycle.response_complete:
            self.cycle.more_body = False
            self.stop_clock()
            if self.tenant_name:
                self.is_idle()

    def on_response_complete(self) -> None:
        more = self._answering is self.cycle and self.cycle.more_body
        self.tenant_name = _tenant_of(self._answering.scope) if self._answering else ""
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if more:
            self._clock = self.loop.call_later(LINGER_S, self.transport.close)
        elif self.tenant_name and self.may_give_way():
            self.is_idle()
        self.expect_head()

    def look_at_key(self) -> None:
        """What is still under way a while after its key was removed loses its client, and ends as
        for any that goes: an upload, say, or a tool call. Runs are told why before (`waiting`)."""
        cycle = self._answering
        visit: Any = cycle.scope.get("belljar") if cycle and not cycle.response_complete else None
        was, self._is_keyless = self._is_keyless, False
        if visit and visit.tenant and not visit.still_valid():
            self._is_keyless = True
            if was:
                self.cut()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, body("invalid_request", msg, "is it HTTP/1.1?"))

    def may_give_way(self) -> bool:
        """Between two requests."""
        return self.cycle is None or (self.cycle.response_complete and not self.cycle.more_body)

    def start_clock(self) -> None:
        self._head_bytes = 0
        super().start_clock()

    def too_slow(self) -> None:
        self._refuse(408, body("too_slow", "the request took too long to arrive", "", True))

    def _too_large(self) -> None:
        if not self.may_give_way():
            # Headers sent ahead, or after a body: an answer may be half written.
            self.transport.abort()
            return
        self._refuse(431, body("headers_too_large", "the headers are too large"))

    def _refuse(self, status: int, content: bytes) -> None:
        cycle = self._answering
        if cycle and cycle.response_complete and cycle.more_body:
            self.transport.abort()  # it was answered already
            return
        if cycle and not cycle.response_complete:
            if cycle.response_started or cycle is not self.cycle or not cycle.more_body:
                # It would be read as the answer to the request before, or as a part of it.
                self.transport.abort()
                return
            cycle.disconnected = True  # this is its answer
            cycle.message_event.set()
        _refuse(self.transport, status, content)


_NO_CODING = body(
    "invalid_request",
    "Transfer-Encoding may be chunked, and nothing else",
    "send the body plain, with Content-Length or chunked",
)
_NO_UPGRADE = body(
    "invalid_request",
    "CONNECT, and Upgrade with a body, are not served",
    "send no Upgrade header; this server speaks HTTP/1.1",
)


def _tenant_of(scope: Any) -> str:
    """The name; empty if there is none, or nobody knows yet."""
    visit = scope.get("belljar")
    return visit.tenant.name if visit and visit.tenant else ""


def _refuse(transport: asyncio.Transport, status: int, content: bytes) -> None:
    transport.write(
        STATUS_LINE[status]
        + b"content-type: application/json\r\nconnection: close\r\ncontent-length: "
        + str(len(content)).encode()
        + b"\r\n\r\n"
        + content
    )
    transport.close()
