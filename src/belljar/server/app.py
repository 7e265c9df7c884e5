"""The application: routes behind the gate, every error in one shape."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp

from belljar import __version__
from belljar.errors import BelljarError
from belljar.server import openapi
from belljar.server.errors import ApiError, answer
from belljar.server.gate import Gate, visit_of
from belljar.server.routes import (
    about,
    datasets,
    execute,
    fetch,
    files,
    health,
    mcp,
    processes,
    runs,
    sandboxes,
    sockets,
    trail,
)
from belljar.server.server import Server

ROUTERS = (
    *(health.router, execute.router, runs.router, fetch.router, about.router, trail.router),
    *(sandboxes.router, files.router, processes.router, datasets.router, sockets.router),
)


def build(server: Server) -> ASGIApp:
    doors = mcp.Doors()

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        await server.start()
        yield
        await doors.close()
        await server.stop()

    app = _with_routes(lifespan=life)
    app.router.routes.append(Route(mcp.PATH, doors, include_in_schema=False))
    app.state.server = server
    openapi.serve(app)
    return Gate(app, server)


def description() -> dict[str, Any]:
    """What /openapi.json says; no server is needed for it."""
    return _with_routes().openapi()


def _with_routes(**options: Any) -> FastAPI:
    app = FastAPI(
        title="Belljar",
        description="Runs code that nobody vouches for.",
        version=__version__,
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        openapi_url=None,  # see openapi.serve
        redirect_slashes=False,
        **options,
    )
    for router in ROUTERS:
        app.include_router(router)
    openapi.describe(app)
    app.add_exception_handler(RequestValidationError, _invalid)
    for kind in (BelljarError, HTTPException, Exception):
        app.add_exception_handler(kind, _refused)
    return app


def _refused(request: Request, error: Exception) -> Response:
    response = answer(error, ran=visit_of(request).ran)
    if response.status_code == 405:
        response.headers["Allow"] = ", ".join(sorted(_methods(request)))
    return response


def _methods(request: Request) -> set[str]:
    """Of all routes with this path: each has one method, and knows of no other."""
    found: set[str] = set()
    for route in request.app.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            found |= getattr(route, "methods", None) or set()
    return found


def _invalid(_: Request, error: Exception) -> Response:
    """A query or a path; what is wrong with a body is said where that is read."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    message = f"{place}: {first['msg']}" if place else str(first["msg"])
    return answer(
        ApiError("invalid_request", message[:500], hint="see GET /openapi.json"), ran=False
    )
