"""Streamable HTTP for one tenant. Who that is, and where the request came from, was checked before.

Every tenant has a door of its own, with its own sessions and sandboxes: another's cannot be found
behind it, whatever id is asked for.
"""

from __future__ import annotations

import asyncio

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from sse_starlette.sse import AppStatus
from starlette.types import Message, Receive, Scope, Send

from belljar.mcp.host import Host
from belljar.mcp.server import SESSION_HEADER, Desk, Gone, build

SESSIONS = 100
"""Of clients that shake hands, at once."""
SESSION_IDLE_S = 1800.0
NO_BOUND = 1_000_000
"""Clients without a session share what the tenant may keep; its quota says how much."""

# It would cut every answer short when the server is told to end, and end what code is running for
# it. An answer here ends with its run, and those end with the server's own drain.
AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]


class Door:
    def __init__(self, host: Host, *, body_bytes: int) -> None:
        self._desk = Desk(host)
        self._manager = StreamableHTTPSessionManager(
            build(self._desk, sessionless=NO_BOUND),
            max_sessions=SESSIONS,
            session_idle_timeout=SESSION_IDLE_S,
            max_request_body_size=body_bytes,
        )
        self._open = asyncio.Event()
        self._ending = asyncio.Event()
        # A task of its own: what the manager starts must end where it was started.
        self._life = asyncio.create_task(self._live())

    async def _live(self) -> None:
        async with self._manager.run():
            self._open.set()
            await self._ending.wait()

    async def handle(self, scope: Scope, content: bytes, receive: Receive, send: Send) -> None:
        """One request whose body, `content`, was read. What it started ends when its client goes,
        also where the protocol would let it go on."""
        await self._open.wait()
        gone: Gone = asyncio.get_running_loop().create_future()
        scope["belljar.gone"] = gone
        watching = asyncio.create_task(_watch(receive, gone))
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._manager.handle_request(scope, _again(content, gone), sending)
        finally:
            watching.cancel()
        if scope["method"] == "DELETE" and status < 400:
            await self._desk.end_session(_session(scope))

    async def close(self) -> None:
        self._ending.set()
        await self._life


async def _watch(receive: Receive, gone: Gone) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    gone.set_result(None)


def _again(content: bytes, gone: Gone) -> Receive:
    """The request for whoever reads it now."""
    read = False

    async def receive() -> Message:
        nonlocal read
        if not read:
            read = True
            return {"type": "http.request", "body": content, "more_body": False}
        await asyncio.wait((gone,))
        return {"type": "http.disconnect"}

    return receive


def _session(scope: Scope) -> str:
    wanted = SESSION_HEADER.encode()
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == wanted), "")
