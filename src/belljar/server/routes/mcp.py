"""`/mcp`: the same tools as `belljar mcp`, for tenants, over streamable HTTP (A4)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import structlog
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from belljar import threads
from belljar.errors import EngineError, Unavailable
from belljar.extras import install
from belljar.model import Result
from belljar.server import running
from belljar.server.bodies import StrictRequest
from belljar.server.errors import OF_THE_HOST, ApiError, told_to_others
from belljar.server.gate import Visit, visit_of
from belljar.server.sandboxes import Owned
from belljar.server.server import Server
from belljar.server.steps import Step, finished, noted
from belljar.server.tenants import Tenant

if TYPE_CHECKING:  # the SDK is loaded when somebody comes
    from belljar.mcp.host import Asked, Kept
    from belljar.mcp.http import Door
    from belljar.network import Secret

PATH = "/mcp"
DOOR = "mcp"
MOST_BYTES, MOST_VALUES = 2 << 20, 2_000
"""Of one message: the protocol's library reads it once more, and not beside the others."""
log = structlog.get_logger("belljar.server")


class Doors:
    """The route, an ASGI application: each tenant comes to a door of its own."""

    def __init__(self) -> None:
        self._doors: dict[str, Door] = {}
        self._making = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server: Server = scope["app"].state.server
        visit: Visit = scope["belljar"]
        assert visit.tenant is not None  # the gate lets nobody else in
        visit.door = DOOR
        if scope["method"] not in ("POST", "DELETE"):
            # Nothing is ever sent to clients unasked, so there is no stream to open with GET.
            refusal = ApiError("method_not_allowed", "send POST, or DELETE to end a session")
            refusal.headers = {"Allow": "POST, DELETE"}
            raise refusal
        content = b""
        if scope["method"] == "POST":
            strict = StrictRequest(scope, receive, send, most_bytes=MOST_BYTES)
            content = b"".join(await strict.content())
            if _values(await strict.json(), MOST_VALUES) > MOST_VALUES:
                raise ApiError(
                    "body_too_large",
                    f"a message may have {MOST_VALUES} values",
                    hint="upload what is large: POST /v1/datasets, or a sandbox's files",
                )
        door = await self._door(server, visit.tenant)
        await door.handle(scope, content, receive, send)

    async def close(self) -> None:
        for door in self._doors.values():
            await door.close()

    async def _door(self, server: Server, tenant: Tenant) -> Door:
        async with self._making:
            door = self._doors.get(tenant.name)
            if door is None:
                if find_spec("mcp") is None:
                    raise Unavailable(
                        "this server has no MCP: its extra is not installed",
                        hint=install("mcp"),
                    )
                make = await threads.ENGINES.do_for(threads.OURS, _load)
                host = TenantHost(server, tenant)
                door = make(host, body_bytes=server.settings.body_bytes)
                self._doors[tenant.name] = door
            return door


def _values(message: Any, most: int) -> int:
    """How many there are in it, counted up to `most` and a little more."""
    found, left = 0, [message]
    while left and found <= most:
        one = left.pop()
        found += 1
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list):
            left += one
    return found


def _load() -> type[Door]:
    """Takes a second; other requests go on meanwhile."""
    from belljar.mcp.http import Door

    return Door


class TenantHost:
    """Runs what the tools ask for on behalf of one tenant: its quotas, its place in the queue."""

    def __init__(self, server: Server, tenant: Tenant) -> None:
        from belljar.mcp.host import Terms

        self.settings = server.settings.jar
        self.terms = Terms(idle_s=min(600.0, server.settings.sandbox_idle_s))
        self.tenant = tenant.name
        self.secrets: Mapping[str, Secret] = {}
        self._server = server
        self._tenant = tenant

    async def once(self, asked: Asked, code: str, options: Mapping[str, Any]) -> Result:
        from belljar.mcp.once import once

        async def execute(code: str, **chosen: Any) -> Result:
            most_s = self._tenant.maximum_s(self.settings.maxima)
            return await once(self._server.jar, code, chosen, maximum_s=most_s)

        with _refusals():
            return await running.run(
                self._server, self._request(asked), code, options, execute=execute
            )

    async def open(self, asked: Asked, options: Mapping[str, Any]) -> Kept:
        visit = visit_of(self._request(asked))
        with _refusals():
            async with noted(self._server, visit, None, ""):
                return _kept(
                    await self._server.book.make(
                        self._tenant,
                        {**options, "idle_s": self.terms.idle_s},
                        datasets={},
                        caller=running.caller(visit),
                    )
                )

    async def run(self, asked: Asked, kept: Kept, code: str, timeout_s: float | None) -> Result:
        request = self._request(asked)
        visit, owned = visit_of(request), _owned(kept)
        with _refusals():
            step = Step(self._server, visit, owned, code, tell=False, timeout_s=timeout_s)
            try:
                return await step.result(request)
            finally:
                step.abandon()

    async def install(self, asked: Asked, kept: Kept, packages: Sequence[str]) -> Mapping[str, str]:
        visit, owned = visit_of(self._request(asked)), _owned(kept)
        with _refusals():
            async with noted(self._server, visit, owned, ""):
                self._tenant.start()
                return await finished(self._server, owned, lambda: kept.box.install(*packages))

    async def fork(
        self, asked: Asked, kept: Kept, count: int, before_run: int | None
    ) -> list[Kept]:
        visit, owned, book = visit_of(self._request(asked)), _owned(kept), self._server.book
        with _refusals():
            async with noted(self._server, visit, owned, ""):
                made = await finished(
                    self._server, owned, lambda: book.fork(owned, count, before_run)
                )
            return [_kept(one) for one in made]

    async def rollback(self, asked: Asked, kept: Kept, run_id: int) -> None:
        visit, owned = visit_of(self._request(asked)), _owned(kept)
        with _refusals():
            async with noted(self._server, visit, owned, ""):
                self._tenant.start()
                await finished(self._server, owned, lambda: kept.box.rollback(run_id))

    async def end(self, kept: Kept) -> None:
        if not kept.box.ended:
            await self._server.book.end(_owned(kept))

    def _request(self, asked: Asked) -> Request:
        """Of this tenant, whatever brought it here."""
        request: Request = asked.request
        visit = visit_of(request)
        if visit.tenant is None or visit.tenant.name != self._tenant.name:
            raise RuntimeError("a call came to another tenant's door")
        return request


def _kept(owned: Owned) -> Kept:
    from belljar.mcp.host import Kept

    return Kept(box=owned.box, own=owned)


def _owned(kept: Kept) -> Owned:
    owned: Owned = kept.own
    return owned


@contextmanager
def _refusals() -> Iterator[None]:
    """What this server says no with, in the words of the tools."""
    from belljar.mcp.host import Refused

    try:
        yield
    except ApiError as error:
        hint = "close_sandbox ends one" if "/v1/sandboxes" in error.hint else error.hint
        after = (error.headers or {}).get("Retry-After")
        if after:
            hint = f"{hint}; again after {after} s"
        raise Refused(f"{error.code}: {error.message}", hint=hint) from None
    except OF_THE_HOST as error:
        message, hint = told_to_others(error)
        raise type(error)(message, hint=hint) from None
    except EngineError as error:
        # Its words describe the host; the operator reads them in the log.
        log.error("engine", error=str(error))
        raise Refused("the sandbox could not be made, or broke", hint="try again") from None
