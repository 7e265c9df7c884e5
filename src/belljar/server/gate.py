"""What every request passes, in plain ASGI: one layer, since each costs every run its time.

Closed by default: a route is open only if it stands in OPEN.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from belljar.server.errors import ApiError, answer
from belljar.server.keys import KEYS_HOLD_S
from belljar.server.origins import Origins
from belljar.server.tenants import Tenant

if TYPE_CHECKING:
    from belljar.server.server import Server

OPEN = frozenset({"/", "/health", "/ready"})
LOCAL_TENANT = "local"
PIECE_BYTES = 1 << 18
LEAST_SHARE = 16
"""Requests and sockets of one tenant that may be under way, however few connections there are."""
REFUSALS_PER_S = 100
"""Of one tenant, on all its connections: so many cost others little."""
REST_S = 2.0
CROWDED_S = 1.0

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ONCE = frozenset({b"host", b"origin", b"authorization", b"x-request-id", b"content-type"})
_READ = _ONCE | {b"cookie", b"sec-fetch-site"}
_HEADERS = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]

_ENDING = ApiError(
    "shutting_down", "the server is shutting down", hint="try again", retry_after_s=5
)


@dataclass(slots=True)
class Visit:
    """Who asks. Routes find it in the scope."""

    request_id: str
    door: str = "http"
    """By which it came, for the trail."""
    tenant: Tenant | None = None
    operator: bool = False
    by_cookie: bool = False
    still_valid: Callable[[], bool] = lambda: True
    """For connections that stay: whether the key is still one."""
    ran: bool = False
    """Code did, at least in part: whatever goes wrong from then on, nobody is told to try again."""
    crowded: bool = False
    """Its tenant has too many under way, and too many wait to be told so."""
    after: list[Callable[[], None]] = field(default_factory=list)
    """Done when the request is over: what its answer took is given back."""


class Refusals:
    """What is refused at once takes time all the same, and no quota counts it. So a tenant that is
    refused too often rests: its next requests wait, on whichever connections they come."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[float, float]] = {}
        """How many more, and when that was, by tenant."""

    def one_more(self, tenant: str) -> None:
        left = self._left_now(tenant) - 1
        self._left[tenant] = (max(left, -REST_S * REFUSALS_PER_S), time.monotonic())

    def rest_s(self, tenant: str) -> float:
        """How long it still rests."""
        if tenant not in self._left:  # as nearly all
            return 0.0
        return max(0.0, -self._left_now(tenant) / REFUSALS_PER_S)

    def _left_now(self, tenant: str) -> float:
        now = time.monotonic()
        left, since = self._left.get(tenant, (REFUSALS_PER_S, now))
        return min(REFUSALS_PER_S, left + (now - since) * REFUSALS_PER_S)


class Gate:
    def __init__(self, app: ASGIApp, server: Server) -> None:
        self._app = app
        self._server = server
        self._origins = Origins(server.settings)
        self._under_way: Counter[str] = Counter()
        """Requests and sockets, by tenant."""
        self._held_back: Counter[str] = Counter()
        self._refusals = Refusals()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        visit = scope["belljar"] = Visit(request_id="")
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [*_HEADERS, (b"x-request-id", visit.request_id.encode())]
                if visit.tenant is None or visit.crowded:
                    # An open connection is for those who have a key, and room.
                    own.append((b"connection", b"close"))
                if visit.tenant and status >= 400:
                    self._refusals.one_more(visit.tenant.name)
                message["headers"] = [*message.get("headers", ()), *own]
            elif len(message.get("body", b"")) > PIECE_BYTES:
                await _in_pieces(message, send)
                return
            await send(message)

        failure: BaseException | None = None
        try:
            try:
                self._admit(scope, visit)
                staying = self._stay(visit)
            except ApiError as error:
                await self._hold_back(visit)
                await answer(error, ran=False)(scope, receive, sending)
            else:
                with staying:
                    if visit.tenant and (rest_s := self._refusals.rest_s(visit.tenant.name)):
                        await asyncio.sleep(rest_s)
                    await self._app(scope, receive, sending)
        except asyncio.CancelledError as cut:
            # The client went in the last moment, or the server ends: nobody above needs to know.
            if not self._server.draining:
                failure = cut
            if not status:
                told = _ENDING if self._server.draining else cut
                await answer(told, ran=visit.ran)(scope, receive, sending)
        except Exception as error:
            failure = error
            if not status:
                await answer(error, ran=visit.ran)(scope, receive, sending)
        finally:
            for give_back in visit.after:
                give_back()
            self._server.seen(scope, visit, status, time.perf_counter() - started, failure)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = scope["belljar"] = Visit(request_id="")
        try:
            self._admit(scope, visit)
            staying = self._stay(visit)
        except ApiError:
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            self._server.seen(scope, visit, 403, 0.0, None)
            return
        with staying:
            await self._app(scope, receive, send)

    def _stay(self, visit: Visit) -> AbstractContextManager[None]:
        """Counts one more of the tenant's, or refuses it: connections are everybody's."""
        if (tenant := visit.tenant) is None:
            return nullcontext()
        most = self._share
        if self._under_way[tenant.name] >= most:
            visit.crowded = True
            raise ApiError(
                "quota_exceeded",
                f"{most} requests and sockets are under way",
                hint="wait until some have ended; the operator's setting connections has the share",
                retry_after_s=1,
            )
        return self._counted(tenant.name)

    @property
    def _share(self) -> int:
        connections = self._server.settings.connections
        alone = self._server.sign_in is not None
        return max(LEAST_SHARE, connections * 3 // 4 if alone else connections // 4)

    async def _hold_back(self, visit: Visit) -> None:
        """Who has too many under way is told so a while later, and so comes again later: of those
        as many as may be under way. The rest lose their connections."""
        if visit.crowded and visit.tenant and self._held_back[visit.tenant.name] < self._share:
            visit.crowded = False
            self._held_back[visit.tenant.name] += 1
            try:
                await asyncio.sleep(CROWDED_S)
            finally:
                self._held_back[visit.tenant.name] -= 1

    @contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        self._under_way[name] += 1
        try:
            yield
        finally:
            self._under_way[name] -= 1
            if not self._under_way[name]:
                del self._under_way[name]

    def _admit(self, scope: Scope, visit: Visit) -> None:
        headers = _headers(scope, visit)
        host = headers.get(b"host", "")
        if not self._origins.host_is_ours(host):
            raise ApiError(
                "host_refused",
                "this server is not known by that name",
                hint="the operator can add it to allowed_hosts",
            )
        origin = headers.get(b"origin")
        scheme = "https" if scope["scheme"] in ("https", "wss") else "http"
        if origin is not None and not self._origins.origin_is_ours(origin, host, scheme):
            raise ApiError(
                "origin_refused",
                "web pages from elsewhere may not use this server",
                hint="the operator can add the page's origin to allowed_origins",
            )
        if self._server.keys_age_s() > KEYS_HOLD_S and scope["path"] not in OPEN:
            raise ApiError(
                "storage_unavailable",
                "the server cannot read its keys, and yours may have been removed since",
                hint="the server's log says why",
                retry_after_s=5,
            )
        self._identify(headers, visit)
        if visit.by_cookie and headers.get(b"sec-fetch-site", "none") not in (
            *("same-origin", "none"),
        ):
            # Pages on other ports of this host are "same-site": SameSite lets them through.
            visit.tenant = None
        if visit.tenant is None and scope["path"] not in OPEN:
            raise ApiError(
                "unauthenticated",
                "a valid key is needed",
                hint="send Authorization: Bearer KEY; belljar keys add makes one",
            )

    def _identify(self, headers: dict[bytes, str], visit: Visit) -> None:
        server = self._server
        given = headers.get(b"authorization")
        if given is not None:
            scheme, _, credential = given.partition(" ")
            if scheme.lower() != "bearer":
                return
            credential = credential.strip()
            if server.sign_in:
                if server.sign_in.is_token(credential):
                    visit.tenant, visit.operator = server.tenant(LOCAL_TENANT), True
            elif key := server.keyring.find(credential):
                visit.tenant, visit.operator = server.tenant(key.tenant), key.operator
                visit.still_valid = lambda: server.keyring.find(credential) is not None
            return
        if server.sign_in and (cookies := headers.get(b"cookie")):
            for pair in cookies.split(";"):
                name, _, value = pair.strip().partition("=")
                if name == server.sign_in.cookie and server.sign_in.is_session(value):
                    visit.tenant, visit.operator = server.tenant(LOCAL_TENANT), True
                    visit.by_cookie = True


async def _in_pieces(message: Message, send: Send) -> None:
    """So that the request lasts as long as its client reads: what it holds is counted as long."""
    body = memoryview(message["body"])
    for start in range(0, len(body), PIECE_BYTES):
        piece = bytes(body[start : start + PIECE_BYTES])
        more = start + PIECE_BYTES < len(body) or message.get("more_body", False)
        await send({"type": "http.response.body", "body": piece, "more_body": more})


def _headers(scope: Scope, visit: Visit) -> dict[bytes, str]:
    """The few that matter here; twice the same one is refused, since others may read the other."""
    found: dict[bytes, str] = {}
    twice = False
    for name, value in scope["headers"]:
        if name in _READ:
            if name in found:
                if name in _ONCE:
                    twice = True
                found[name] += "; " + value.decode("latin-1")
            else:
                found[name] = value.decode("latin-1")
    given = found.get(b"x-request-id", "")
    visit.request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
    if twice:
        raise ApiError("invalid_request", "a header that can be there once is there twice")
    return found


def visit_of(request: Any) -> Visit:
    visit: Visit = request.scope["belljar"]
    return visit
