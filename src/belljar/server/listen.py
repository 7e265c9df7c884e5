"""uvicorn, with what it lacks: time-outs for headers and for who does not read, bounds, room for
those who have a key, a drain that ends."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from asyncio import TimerHandle
from collections import Counter
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from belljar.errors import Unavailable
from belljar.server.app import build
from belljar.server.errors import body
from belljar.server.reading import Reading
from belljar.server.server import Server

HEADER_BYTES = 64 * 1024
MOST_PIPELINED = 8
"""Requests that a client sends ahead while an answer is under way."""
MESSAGE_BYTES = 1 << 20
"""The largest that comes through a WebSocket."""
LEAST_STRANGERS = 16
"""Connections of one address that may wait to show a key, however few there are in all."""
GRACE_S = 5.0
"""Of a crowd that comes at once all are accepted before the first is read."""
LINGER_S = 5.0
"""How long the rest of a refused body is thrown away before the connection is closed."""


def open_socket(host: str, port: int) -> socket.socket:
    """Bound now, so that the port is known before anything is printed."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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
    config = uvicorn.Config(
        build(server),
        http=_protocol(server),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        backlog=min(4096, settings.connections),
        ws=_sockets(server),
        ws_max_size=MESSAGE_BYTES,
        ws_per_message_deflate=False,  # a message says how large it is
        timeout_keep_alive=int(max(1, settings.keep_alive_s)),
        timeout_graceful_shutdown=int(settings.drain_s) + 10,
    )
    # All that was loaded stays to the end: looking for garbage in it would stop every run now and
    # then for tens of milliseconds.
    gc.collect()
    gc.freeze()
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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts no more, then drains within the operator's time, then uvicorn's own way."""
        draining = asyncio.ensure_future(self._server.drain())
        await super().shutdown(sockets)
        await draining


def _protocol(server: Server) -> type[HttpToolsProtocol]:
    return type("BelljarProtocol", (_Bounded,), {"belljar": server, "strangers": {}})


def _sockets(server: Server) -> type[WebSocketsSansIOProtocol]:
    return type("BelljarSockets", (_Socket,), {"belljar": server})


class _Socket(Reading, WebSocketsSansIOProtocol):
    """Who does not read is told first (see `Talk`), and then cut off. A long message is sent in
    fragments: those that have `more`, until it is false."""

    patience = 2
    _in_message = False

    async def send(self, message: Any) -> None:
        if "more" not in message:
            await super().send(message)
            return
        await self.writable.wait()
        if self.disconnected or self.close_sent:
            raise ClientDisconnected
        put = self.conn.send_continuation if self._in_message else self.conn.send_text
        put(message["text"].encode(), fin=not message["more"])
        self._in_message = message["more"]
        self.transport.write(b"".join(self.conn.data_to_send()))


class _Bounded(Reading, HttpToolsProtocol):
    """A client may not hold a connection by sending slowly, nor memory by long headers or by not
    reading its answer."""

    belljar: Server
    strangers: dict[str, dict[_Bounded, None]]
    """Connections on which nobody has shown a key yet, by address, the oldest first."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tenant = ""
        """Whose key came last."""
        self._idle_since = self.loop.time()
        self._clock: TimerHandle | None = None
        self._head_bytes = 0
        """That came since the last headers, piece of a body or message were whole."""
        self._answering: RequestResponseCycle | None = None
        """Not the newest one, if the client has sent requests ahead."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        most = self.belljar.settings.connections
        strangers = self.strangers.setdefault(self._address, {})
        if len(strangers) >= max(LEAST_STRANGERS, most // 4):
            oldest = next(iter(strangers))
            if self.loop.time() - oldest._idle_since >= GRACE_S:
                oldest._give_way()
        strangers[self] = None
        if len(self.connections) > most and not self._found_room(most):
            self._refuse(503, body("overloaded", "too many connections", "try again", True))
        else:
            self._start_clock()

    def _found_room(self, most: int) -> bool:
        """Closes a connection on which nothing is under way: a stranger's if there is one, else one
        of the tenant that has the most of them; of these the one that was idle longest."""
        there = [
            one
            for one in self.connections
            if not (isinstance(one, _Bounded) and one.transport.is_closing())
        ]
        if len(there) <= most:
            return True  # others close already
        idle = [
            one
            for one in there
            if isinstance(one, _Bounded) and one is not self and one._between_requests()
        ]
        if not idle:
            return False
        by_tenant = Counter(one._tenant for one in idle)
        whose = "" if "" in by_tenant else by_tenant.most_common(1)[0][0]
        mine = (one for one in idle if one._tenant == whose)
        min(mine, key=lambda one: one._idle_since)._give_way()
        return True

    def _give_way(self) -> None:
        self._is_known()
        if self.transport.get_write_buffer_size():
            self.cut()  # closing would wait until it is read
        else:
            self.transport.close()

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def _is_known(self) -> None:
        """Or gone."""
        if strangers := self.strangers.get(self._address):
            strangers.pop(self, None)
        if not strangers:
            self.strangers.pop(self._address, None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        self._is_known()
        if (cycle := self._answering) and not cycle.response_complete:
            cycle.disconnected = True  # uvicorn tells the newest only
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._clock is None and self._between_requests():
            self._idle_since = self.loop.time()
            self._start_clock()
        if self._head_bytes > HEADER_BYTES:
            self._too_large()
            return
        self._head_bytes += len(data)
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        self._stop_clock()
        if len(self.pipeline) >= MOST_PIPELINED:
            self.transport.abort()
        if not self.transport.is_closing():
            super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        self._is_known()  # or it is closed with the answer
        super()._start_asgi_task(cycle, app)

    def handle_websocket_upgrade(self) -> None:
        if self._between_requests():
            self._is_known()
            super().handle_websocket_upgrade()
        else:  # nobody would tell the answer under way when the client goes
            self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        if not self.transport.is_closing():
            self._give_way()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()
        if self.cycle and self.cycle.response_complete:
            self.cycle.more_body = False
            self._stop_clock()

    def on_response_complete(self) -> None:
        more = self._answering is self.cycle and self.cycle.more_body
        self._idle_since = self.loop.time()
        visit: Any = self._answering.scope.get("belljar") if self._answering else None
        self._tenant = visit.tenant.name if visit and visit.tenant else ""
        super().on_response_complete()
        if more and not self.transport.is_closing():
            self._clock = self.loop.call_later(LINGER_S, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, body("invalid_request", msg, "is it HTTP/1.1?"))

    def _between_requests(self) -> bool:
        return self.cycle is None or (self.cycle.response_complete and not self.cycle.more_body)

    def _start_clock(self) -> None:
        self._head_bytes = 0
        self._clock = self.loop.call_later(self.belljar.settings.header_timeout_s, self._too_slow)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _too_slow(self) -> None:
        self._refuse(408, body("too_slow", "the request took too long to arrive", "", True))

    def _too_large(self) -> None:
        if not self._between_requests():
            # Headers sent ahead, or after a body: an answer may be half written.
            self.transport.abort()
            return
        self._refuse(431, body("headers_too_large", "the headers are too large"))

    def _refuse(self, status: int, content: bytes) -> None:
        from uvicorn.protocols.http.httptools_impl import STATUS_LINE

        self.transport.write(
            STATUS_LINE[status]
            + b"content-type: application/json\r\nconnection: close\r\ncontent-length: "
            + str(len(content)).encode()
            + b"\r\n\r\n"
            + content
        )
        self.transport.close()
