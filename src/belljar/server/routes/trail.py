"""`/v1/trail`: what was attempted, and how it ended (P2). A tenant sees its own."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from belljar import threads
from belljar.server.bodies import StrictRoute
from belljar.server.errors import ApiError
from belljar.server.gate import visit_of
from belljar.server.openapi import responses
from belljar.server.schemas import EgressAnswer, TrailAnswer, TrailEntry
from belljar.server.server import Server

router = APIRouter(prefix="/v1", route_class=StrictRoute, tags=["trail"])

MOST_BYTES = 8 << 20
"""Of lines in one answer."""
Ending = Literal[
    "ok", "error", "timeout", "out_of_memory", "killed", "denied",
    "refused", "failed", "cancelled", "lost", "open",
]  # fmt: skip


@router.get(
    "/trail",
    summary="The newest attempts first",
    description="An operator's key sees every tenant's, or those of the one it names.",
    operation_id="trail",
    response_class=Response,
    responses=responses(TrailAnswer, 400, 401, 403, 503),
)
async def trail(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    status: Annotated[Ending | None, Query()] = None,
    before_seq: Annotated[
        int | None, Query(ge=0, le=2**53, description="Older than this line.")
    ] = None,
    tenant: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    server: Server = request.app.state.server
    whose = _whose(request, tenant or None)
    found = await threads.READING.do_for(
        _asking(request),
        lambda: server.trail().recent(
            tenant=whose, status=status, before_seq=before_seq, limit=limit, most_bytes=MOST_BYTES
        ),
    )
    lines = [one.to_dict() for one in found]
    return await threads.JSON.do_for(_asking(request), _reply, {"lines": lines})


@router.get(
    "/trail/egress",
    summary="What code tried to reach, the newest first",
    operation_id="trail_egress",
    response_class=Response,
    responses=responses(EgressAnswer, 400, 401, 403, 503),
)
async def egress(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    verdict: Annotated[Literal["allowed", "refused", "blocked", "failed"] | None, Query()] = None,
    execution_id: Annotated[
        str, Query(pattern="^([0-9a-f]{32})?$", description="Of one run, or of one kept sandbox.")
    ] = "",
    before_seq: Annotated[
        int | None, Query(ge=0, le=2**53, description="Older than this line.")
    ] = None,
    tenant: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    server: Server = request.app.state.server
    whose = _whose(request, tenant or None)
    found = await threads.READING.do_for(
        _asking(request),
        lambda: server.trail().egress(
            id_=execution_id, tenant=whose, verdict=verdict, before_seq=before_seq, limit=limit
        ),
    )
    return await threads.JSON.do_for(_asking(request), _reply, {"lines": found})


@router.get(
    "/trail/{execution_id}",
    summary="One attempt, by the execution_id of its answer",
    operation_id="trail_entry",
    response_class=Response,
    responses=responses(TrailEntry, 400, 401, 403, 404, 503),
)
async def entry(
    request: Request,
    execution_id: Annotated[str, Path(pattern="^[0-9a-f]{32}$", examples=["0" * 32])],
) -> Response:
    server: Server = request.app.state.server
    whose = _whose(request, None)
    found = await threads.READING.do_for(
        _asking(request), lambda: server.trail().find(execution_id, tenant=whose)
    )
    if found is None:
        raise ApiError("not_found", "there is no such execution")
    return _reply(found.to_dict())


def _reply(said: Any) -> Response:
    """ASCII alone: names are data, and may have half a character."""
    return Response(json.dumps(said), media_type="application/json")


def _asking(request: Request) -> str:
    """Whose share of the threads this takes."""
    tenant = visit_of(request).tenant
    assert tenant is not None
    return tenant.name


def _whose(request: Request, asked: str | None) -> str | None:
    """The tenant to look at; None for all."""
    visit = visit_of(request)
    assert visit.tenant is not None
    if visit.operator:
        return asked
    if asked not in (None, visit.tenant.name):
        raise ApiError(
            "forbidden", "another tenant's trail is not for this key", hint="leave `tenant` out"
        )
    return visit.tenant.name
