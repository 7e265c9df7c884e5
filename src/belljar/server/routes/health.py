"""Whether it lives, whether it is ready, what it counts."""

from __future__ import annotations

import json
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import HTMLResponse, RedirectResponse, Response

from belljar import threads
from belljar.server.errors import ApiError
from belljar.server.gate import visit_of
from belljar.server.openapi import responses
from belljar.server.schemas import HealthAnswer, ReadyAnswer
from belljar.server.server import Server

router = APIRouter(tags=["server"])
OPEN = {"x-open": True}


@router.get(
    "/health",
    summary="Alive, which engines, what waits in the pools",
    operation_id="health",
    response_class=Response,
    responses=responses(HealthAnswer, 403),
    openapi_extra=OPEN,
)
async def health(request: Request) -> Response:
    server: Server = request.app.state.server
    engines = await server.surveys.engines()
    return _json(
        {
            "status": "ok",
            "engines": [engine["name"] for engine in engines if engine["available"]],
            "pools": server.jar.waiting(),
            "running": server.admission.running,
            "queued": server.admission.waiting,
        }
    )


@router.get(
    "/ready",
    summary="Whether runs are welcome: sandboxes wait, the trail can be written, and the server "
    "does not end",
    operation_id="ready",
    response_class=Response,
    responses=responses(ReadyAnswer, 403, 503),
    openapi_extra=OPEN,
)
async def ready(request: Request) -> Response:
    server: Server = request.app.state.server
    if server.draining:
        raise ApiError("shutting_down", "the server is shutting down", retry_after_s=5)
    if not server.ready:
        raise ApiError("starting", "sandboxes are being prepared", retry_after_s=1)
    if server.jar.trail_trouble():
        raise ApiError(
            "trail_error", "the trail cannot be written, so nothing runs", retry_after_s=5
        )
    if trouble := server.keys_trouble():
        raise ApiError("storage_unavailable", trouble, retry_after_s=5)
    return _json({"ready": True})


@router.get(
    "/metrics",
    summary="For Prometheus; with an operator's key",
    operation_id="metrics",
    response_class=Response,
    responses=responses(None, 401, 403, content={"text/plain": {}}),
)
async def metrics(request: Request) -> Response:
    server: Server = request.app.state.server
    if not visit_of(request).operator:
        raise ApiError(
            "forbidden", "this is for operators", hint="belljar keys add NAME --operator"
        )
    content = await threads.STATE.do_for(threads.OURS, server.metrics.text, server)
    return Response(content, media_type=CONTENT_TYPE_LATEST)


@router.get("/", include_in_schema=False)
async def home(request: Request) -> Response:
    """Where the printed URL leads: the token becomes a cookie and leaves the address bar."""
    server: Server = request.app.state.server
    tokens = parse_qs(request.url.query).get("token")
    if tokens and server.sign_in and (session := server.sign_in.exchange(tokens[0])):
        response: Response = RedirectResponse("/", 303)
        response.set_cookie(server.sign_in.cookie, session, httponly=True, samesite="strict")
        return response
    if tokens:
        return HTMLResponse(
            _PAGE.format("This link was used already, or is not this server's."), 401
        )
    if visit_of(request).tenant is None:
        return HTMLResponse(
            _PAGE.format("Open the link that <code>belljar serve</code> printed."), 401
        )
    return HTMLResponse(_PAGE.format('Signed in. See <a href="/openapi.json">the routes</a>.'))


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Belljar</title><h1>Belljar</h1><p>{}</p></html>
"""


def _json(content: object, status: int = 200) -> Response:
    return Response(json.dumps(content).encode(), status, media_type="application/json")
