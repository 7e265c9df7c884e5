"""`/v1/trail`: what was attempted, and how it ended (P2). A tenant sees its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from belljar import threads
from belljar.server import budget, cursors
from belljar.server.bodies import StrictRoute
from belljar.server.errors import ApiError
from belljar.server.gate import visit_of
from belljar.server.openapi import responses
from belljar.server.schemas import EgressAnswer, TrailAnswer, TrailEntry
from belljar.server.server import Server
from belljar.server.streams import reply
from belljar.threads import Rests
from belljar.trail.trail import Recorded

router = APIRouter(prefix="/v1", route_class=StrictRoute, tags=["trail"])

MOST_BYTES = 8 << 20
"""Of lines in one answer."""
_PARSED = 4
"""How much more a line takes when it was read."""
Before = Annotated[str, Query(max_length=64, description="`next` of the page before.")]
BeforeSeq = Annotated[
    int | None, Query(ge=0, le=2**53, description="Older than this line; for operators.")
]
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
    before: Before = "",
    before_seq: BeforeSeq = None,
    tenant: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    server: Server = request.app.state.server
    whose = _whose(request, tenant or None)
    older = _older(request, before, before_seq)

    def look(rests: Rests) -> Iterator[tuple[int, dict[str, Any]]]:
        for one in server.trail().recent(
            tenant=whose,
            status=status,
            before_seq=older,
            limit=limit,
            most_bytes=MOST_BYTES,
            after_each=rests.after_each,
        ):
            yield one.attempt["seq"], _entry(request, one)

    return reply(request, await _found(request, look))


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
    before: Before = "",
    before_seq: BeforeSeq = None,
    tenant: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    server: Server = request.app.state.server
    whose = _whose(request, tenant or None)
    older = _older(request, before, before_seq)
    operator = visit_of(request).operator

    def look(rests: Rests) -> Iterator[tuple[int, dict[str, Any]]]:
        for one in server.trail().egress(
            id_=execution_id,
            tenant=whose,
            verdict=verdict,
            before_seq=older,
            limit=limit,
            after_each=rests.after_each,
        ):
            yield one["seq"], dict(cursors.shown(one, operator=operator) or {})

    return reply(request, await _found(request, look))


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
    return reply(request, _entry(request, found))


def _entry(request: Request, found: Recorded) -> dict[str, Any]:
    operator = visit_of(request).operator
    told = found.to_dict()
    parts = {name: cursors.shown(told[name], operator=operator) for name in ("attempt", "end")}
    return {**told, **parts}


def _older(request: Request, before: str, before_seq: int | None) -> int | None:
    """Than which line."""
    server: Server = request.app.state.server
    if before_seq is not None and not visit_of(request).operator:
        raise ApiError(
            "forbidden",
            "before_seq: numbers of the whole trail are for operators",
            hint="send `next` of the page before as `before`",
        )
    return server.cursors.read(before) if before else before_seq


async def _found(
    request: Request, look: Callable[[Rests], Iterable[tuple[int, dict[str, Any]]]]
) -> dict[str, Any]:
    """Lines of the trail, which are held as long as they are read, and where they go on. `look`:
    each with its number, which a damaged line may have lost."""
    server: Server = request.app.state.server
    visit = visit_of(request)
    assert visit.tenant is not None
    held = await server.answers.hold(visit.tenant, _PARSED * MOST_BYTES)
    visit.after.append(held)

    def read() -> tuple[list[dict[str, Any]], int, int]:
        rests = Rests()
        lines: list[dict[str, Any]] = []
        oldest = weight = 0
        for seq, line in look(rests):
            lines.append(line)
            oldest = min(seq, oldest or seq) if seq > 0 else oldest
            weight += budget.weight(line)
            rests.after_each()
        return lines, oldest, weight

    lines, oldest, weight = await threads.READING.do_for(visit.tenant.name, read)
    held.shrink(weight)
    return {"lines": lines, "next": server.cursors.make(oldest) if oldest else ""}


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
