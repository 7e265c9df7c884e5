"""What every request passes, without a server behind it: shares of connections, removed keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from belljar.server import keys, streams
from belljar.server.gate import LEAST_SHARE, Gate, Visit
from belljar.server.settings import ServerSettings
from belljar.server.tenants import Quotas, Tenant


class Behind:
    """An app that stays until it is told to end."""

    def __init__(self) -> None:
        made = [keys.make(name, now=0.0) for name in ("many", "few")]
        self.keys = {key.tenant: text for key, text in made}
        self.end = asyncio.Event()
        server: Any = SimpleNamespace(
            settings=ServerSettings(connections=40),
            sign_in=None,
            keyring=keys.Keyring([key for key, _ in made]),
            tenant=lambda name: Tenant(name, Quotas()),
            seen=lambda *_: None,
            draining=False,
            keys_age_s=lambda: 0.0,
        )
        self.server = server
        self.gate = Gate(self._app, server)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        await self.end.wait()
        await send({"type": "http.response.start", "status": 200})

    async def ask(self, tenant: str, kind: str = "http") -> int:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "websocket.connect"}

        key = f"Bearer {self.keys[tenant]}".encode()
        scope = {
            "type": kind, "scheme": "http", "path": "/v1/usage", "method": "GET",
            "headers": [(b"host", b"localhost"), (b"authorization", key)],
        }  # fmt: skip
        await self.gate(scope, receive, send)
        return int(sent[0].get("status") or sent[0]["code"])


def test_one_tenant_cannot_have_every_connection() -> None:
    async def play() -> None:
        behind = Behind()
        crowd = [asyncio.create_task(behind.ask("many")) for _ in range(LEAST_SHARE)]
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            assert await behind.ask("many") == 429
            assert await behind.ask("many", "websocket") == 1008
            other = asyncio.create_task(behind.ask("few"))
            crowd[0].cancel()  # who goes makes room
            await asyncio.sleep(0)
            behind.end.set()
            assert await behind.ask("many") == 200
            assert [await one for one in (other, *crowd[1:])] == [200] * LEAST_SHARE
            assert not behind.gate._under_way

    asyncio.run(play())


def test_a_stream_ends_with_its_key() -> None:
    async def play() -> None:
        valid, sent = True, []

        async def told() -> AsyncIterator[streams.Told]:
            nonlocal valid
            yield "output", {"text": "before"}
            valid = False
            yield "output", {"text": "after"}
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message.get("body", b""))

        gone = asyncio.Event()
        visit = Visit(request_id="", still_valid=lambda: valid)
        scope = {"type": "http", "asgi": {"spec_version": "2.4"}, "belljar": visit}
        server: Any = SimpleNamespace(settings=SimpleNamespace(send_timeout_s=5))
        response = await streams.respond(server, Request(scope), told(), gone=gone.set)
        async with asyncio.timeout(5):
            await response(scope, asyncio.Event().wait, send)  # type: ignore[arg-type]
        assert gone.is_set()
        assert b"before" in b"".join(sent) and b"after" not in b"".join(sent)

    asyncio.run(play())


@pytest.mark.parametrize(("draining", "status"), [(True, 503), (False, 500)])
def test_only_a_server_that_ends_says_so(draining: bool, status: int) -> None:
    """A sandbox's end that cancelled a request was told as the server's."""

    async def play() -> None:
        behind = Behind()
        behind.server.draining = draining
        asking = asyncio.create_task(behind.ask("many"))
        await asyncio.sleep(0)
        asking.cancel()
        async with asyncio.timeout(5):
            assert await asking == status

    asyncio.run(play())
