"""The parts of /openapi.json that routes share."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from belljar.server.errors import OF_HTTP
from belljar.server.schemas import ErrorAnswer

_WORDS = {
    400: "The request is wrong; `message` names the field.",
    401: "No key, or not a valid one.",
    403: "Not with this key, or not from this web page.",
    404: "There is no such thing, or it is another tenant's.",
    405: "Not with this method.",
    406: "No representation is acceptable.",
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


def responses(
    model: type[BaseModel] | None, *statuses: int, **more: Any
) -> dict[int | str, dict[str, Any]]:
    """What a route may answer: its own model, and errors by their status."""
    found: dict[int | str, dict[str, Any]] = {200: {"model": model, **more} if model else more}
    for status in statuses:
        code = next((name for name, kind in OF_HTTP.items() if kind.status == status), "error")
        example = {"code": code, "message": "…", "hint": "…", "retryable": status in (429, 503)}
        entry: dict[str, Any] = {
            "model": ErrorAnswer,
            "description": _WORDS[status],
            "content": {"application/json": {"example": {"error": example}}},
        }
        if status in (429, 503):
            entry["headers"] = {
                "Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}
            }
        found[status] = entry
    return found


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
            for path in schema["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
                    if operation.pop("x-open", False):
                        operation["security"] = [{}, {"key": []}]
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
