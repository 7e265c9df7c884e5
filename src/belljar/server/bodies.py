"""Request bodies of JSON: bounded while they come in, read strictly.

A body is at most `body_bytes`, all bodies at once `bodies_bytes`, of one tenant a share of that.
"""

from __future__ import annotations

import asyncio
import marshal
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from belljar import threads
from belljar.server import budget, strict_json
from belljar.server.errors import ApiError
from belljar.server.gate import Visit
from belljar.server.parsers import Unread
from belljar.server.strict import refusal
from belljar.server.tenants import Tenant

if TYPE_CHECKING:
    from belljar.server.server import Server

IN_PLACE_BYTES, IN_PLACE_PIECES = 1 << 16, 2_000
"""What has more is read in another process: others are served meanwhile."""
REFUSED_S = 0.25
"""How long a large body that is refused keeps its tenant's next one waiting."""
COPIES = 2
"""A run has what it was given in bytes, beside the texts of the request."""
_READ_OFF = 4 << 20
"""So much of a body that is refused is read all the same: else its sender would see a broken
connection and not the answer."""


class StrictRoute(APIRoute):
    """A FastAPI route whose JSON is read by `StrictRequest`, and that ignores nothing."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        known = {field.alias for field in self.dependant.query_params}
        model: Any = self.body_field.field_info.annotation if self.body_field else None

        async def handle(request: Request) -> Response:
            if request.scope["query_string"]:
                _check_query(request.scope["query_string"], known)
            if model is not None:
                request = StrictRequest(request.scope, request.receive, request._send, model)
            return await handler(request)

        return handle


class StrictRequest(Request):
    """Its body counts as what the tenant's requests bring, from its first byte on: then what was
    read from it does, until the request is over."""

    _content: list[bytes] | None = None
    """In the pieces in which it came: one large piece would be copied again and again."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        model: type[BaseModel] | None = None,
        *,
        most_bytes: int | None = None,
    ) -> None:
        """`most_bytes`: if that is less than the operator's `body_bytes`."""
        super().__init__(scope, receive, send)
        self._model = model
        most = self._server.settings.body_bytes
        self._most_bytes = most if most_bytes is None else min(most, most_bytes)
        visit: Visit = scope["belljar"]
        assert visit.tenant is not None  # the gate lets nobody else in
        self._tenant = visit.tenant
        self._held = self._server.bodies.hold(visit.tenant)
        visit.after.append(self._held)

    async def body(self) -> bytes:
        """Whether there is one. FastAPI keeps what it is given here as long as the run lasts."""
        return b"{}" if await self.content() else b""

    async def content(self) -> list[bytes]:
        if self._content is None:
            self._check_type()
            self._content = await self._read()
        return self._content

    async def json(self) -> Any:
        """What the route is given: its model, which FastAPI takes as it is. The body is gone."""
        content, self._content = await self.content(), []
        try:
            if sum(map(len, content)) <= IN_PLACE_BYTES and is_small(whole := b"".join(content)):
                return _checked(parse(whole), self._model)
            async with self._server.bodies.turns.of(self._tenant.name):
                found, weight = await read(self._server, self._tenant, content, self._model)
        except ApiError as error:
            if error.code == "invalid_request":
                self._tenant.start(runs=False)  # what is refused takes its time as well
            raise
        self._held.become(weight)
        return found

    @property
    def _server(self) -> Server:
        server: Server = self.app.state.server
        return server

    def _check_type(self) -> None:
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(
                "unsupported_media_type",
                "the body must be JSON",
                hint="send Content-Type: application/json",
            )
        if "content-encoding" in self.headers:
            raise ApiError(
                "unsupported_media_type",
                "the body must not be compressed",
                hint="send no Content-Encoding",
            )

    async def _read(self) -> list[bytes]:
        server, most = self._server, self._most_bytes
        declared = self.headers.get("content-length", "")
        announced = int(declared) if declared.isdigit() else 0
        if announced > most + _READ_OFF:
            await self._rest()
            raise _too_large(most)
        refused: ApiError | None = None
        content: list[bytes] = []
        size = 0
        unread = _READ_OFF
        try:
            self._take(0, announced)
        except ApiError as error:
            refused = error
        try:
            async with asyncio.timeout(server.settings.body_timeout_s):
                async for part in self.stream():
                    if refused is None:
                        try:
                            size += len(part)
                            self._take(size, announced)
                            content.append(part)
                        except ApiError as error:
                            refused, content = error, []
                    else:
                        unread -= len(part)
                        if unread < 0:
                            break
        except TimeoutError:
            raise ApiError(
                "too_slow", "the body took too long to arrive", hint="send it faster"
            ) from None
        except ClientDisconnect:
            raise ApiError("client_gone", "the client has gone") from None
        if refused:
            await self._rest()
            raise refused
        return content

    async def _rest(self) -> None:
        """Behind the tenant's others that were refused."""
        async with self._server.bodies.turns.of(self._tenant.name):
            await asyncio.sleep(REFUSED_S)

    def _take(self, size: int, announced: int) -> None:
        """Room for so much, if there is. Room for all that was announced is taken at once: half a
        body is of no use to anybody."""
        most = self._most_bytes
        size = max(announced, size)
        if size > most:
            raise _too_large(most)
        self._held.become(COPIES * size)


def is_small(content: bytes) -> bool:
    """Whether reading it takes so little that nobody notices."""
    return len(content) <= IN_PLACE_BYTES and strict_json.pieces(content) <= IN_PLACE_PIECES


async def read(
    server: Server,
    tenant: Tenant,
    content: list[bytes],
    model: type[BaseModel] | None = None,
) -> tuple[Any, int]:
    """What a large body says, and what that takes; to be called in the tenant's turn. One that is
    refused took time from everybody and counts against nothing where there is no quota, so the
    tenant's next one waits."""
    try:
        try:
            marshalled = await server.parsers.parse(content)
        except strict_json.NotRead as error:
            raise _not_read(error) from None
        except Unread:
            raise ApiError(
                "overloaded", "the body could not be parsed now", hint="try again"
            ) from None
        return await threads.JSON.do_for(tenant.name, _weighed, marshalled, model)
    except ApiError:
        await asyncio.sleep(REFUSED_S)
        raise


def parse(content: bytes) -> Any:
    """A small one, in place."""
    try:
        return strict_json.parse(content)
    except strict_json.NotRead as error:
        raise _not_read(error) from None


def _checked(found: Any, model: type[BaseModel] | None) -> Any:
    if model is None:
        return found
    try:
        return model.model_validate(found)
    except ValidationError as error:
        raise refusal(error) from None


def _weighed(marshalled: bytearray, model: type[BaseModel] | None) -> tuple[Any, int]:
    found = _checked(marshal.loads(marshalled), model)
    return found, COPIES * budget.weight(found)


def _not_read(error: strict_json.NotRead) -> ApiError:
    return ApiError("invalid_request", str(error), hint="send one JSON object")


def _check_query(query: bytes, known: set[str]) -> None:
    """Unknown names, and known ones twice, mean that something else was meant."""
    try:
        names = [name for name, _ in parse_qsl(query.decode("latin-1"), True, max_num_fields=64)]
    except ValueError:
        raise ApiError("invalid_request", "the query has too many fields") from None
    for name in names:
        if name not in known:
            hint = f"parameters: {', '.join(sorted(known))}" if known else "there are none"
            raise ApiError("invalid_request", f"{name[:64]!r} is no parameter", hint=hint)
    if len(set(names)) != len(names):
        raise ApiError("invalid_request", "a parameter stands twice in the query")


def _too_large(most: int) -> ApiError:
    return ApiError(
        "body_too_large",
        f"the body is larger than {most} bytes",
        hint="upload what is large (POST /v1/datasets); the operator can raise body_bytes",
    )
