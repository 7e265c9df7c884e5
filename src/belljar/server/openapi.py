"""The parts of /openapi.json that routes share."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from belljar import threads
from belljar.server.errors import OF_HTTP
from belljar.server.schemas import ErrorAnswer

_WORDS = {
    400: "The request is wrong; `message` names the field.",
    401: "No key, or not a valid one.",
    403: "Not with this key, or not from this web page.",
    404: "There is no such thing, or it is another tenant's.",
    408: "The body took too long to arrive.",
    409: "Not in the present state of the server or the sandbox.",
    410: "It has ended.",
    413: "The body is too large.",
    415: "The body must be JSON.",
    429: "The queue is full or a quota is used up; see Retry-After.",
    500: "The server failed.",
    507: "The server's disk is full.",
    503: "The server starts, ends, or has too much to do; see Retry-After.",
}


EVERY = (400, 403, 429, 500, 503)
"""What the gate, a wrong query or the server's own trouble may answer anywhere."""


def responses(
    model: type[BaseModel] | None, *statuses: int, **more: Any
) -> dict[int | str, dict[str, Any]]:
    """What a route may answer: its own model, and errors by their status."""
    found: dict[int | str, dict[str, Any]] = {200: {"model": model, **more} if model else more}
    for status in statuses:
        found[status] = {"model": ErrorAnswer, **_refusal(status)}
    return found


def _refusal(status: int) -> dict[str, Any]:
    code = next((name for name, kind in OF_HTTP.items() if kind.status == status), "error")
    example = {"code": code, "message": "…", "hint": "…", "retryable": status in (429, 503)}
    found: dict[str, Any] = {
        "description": _WORDS[status],
        "content": {"application/json": {"example": {"error": example}}},
    }
    if status in (429, 503):
        found["headers"] = {
            "Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}
        }
    return found


def _complete(path: str, operation: dict[str, Any]) -> None:
    """Adds what any route of its kind may answer, whatever it does itself."""
    statuses = set(EVERY)
    if operation.pop("x-open", False):
        operation["security"] = [{}, {"key": []}]
    else:
        statuses.add(401)
    if "{" in path:
        statuses.add(404)
    if "{sandbox_id}" in path:
        statuses |= {409, 410}
    body = operation.get("requestBody", {}).get("content", {})
    if body:
        statuses |= {408, 415}
    if "application/json" in body:
        statuses.add(413)
    said = operation["responses"]
    for status in statuses - set(map(int, said)):
        entry = _refusal(status)
        schema = {"$ref": f"#/components/schemas/{ErrorAnswer.__name__}"}
        entry["content"]["application/json"]["schema"] = schema
        said[str(status)] = entry
    operation["responses"] = dict(sorted(said.items()))


def describe(app: FastAPI) -> None:
    """Adds how to authenticate, and drops FastAPI's own error shape, which is never sent."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = make()
            parts = schema.setdefault("components", {})
            parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{"key": []}]
            for name in ("HTTPValidationError", "ValidationError"):
                parts.get("schemas", {}).pop(name, None)
            for path, operations in schema["paths"].items():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
                    _complete(path, operation)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def serve(app: FastAPI) -> None:
    """`/openapi.json`, written once, when it is first asked for: that takes as long as a hundred
    runs, and any key may ask for it as often as it likes."""
    writing: asyncio.Future[bytes] | None = None

    async def openapi_json(_: Request) -> Response:
        nonlocal writing
        if writing is None:
            write = threads.JSON.do_for(threads.OURS, lambda: json.dumps(app.openapi()).encode())
            writing = asyncio.ensure_future(write)
        return Response(await asyncio.shield(writing), media_type="application/json")

    app.router.routes.append(Route("/openapi.json", openapi_json))
