"""What there is to choose from, and what one has used."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from belljar.server.gate import visit_of
from belljar.server.openapi import responses
from belljar.server.schemas import EnginesAnswer, EnvironmentsAnswer, UsageAnswer
from belljar.server.server import Server
from belljar.server.streams import reply

router = APIRouter(prefix="/v1", tags=["about"])


@router.get(
    "/engines",
    summary="The walls, what each is for, and whether it works here",
    operation_id="engines",
    response_class=Response,
    responses=responses(EnginesAnswer, 401, 403),
)
async def engines(request: Request) -> Response:
    server: Server = request.app.state.server
    tenant = visit_of(request).tenant
    allowed = tenant.quotas.engines if tenant else ()
    found = await server.surveys.engines()
    return reply(
        request, {"engines": [row for row in found if not allowed or row["name"] in allowed]}
    )


@router.get(
    "/environments",
    summary="Runtimes with their packages",
    operation_id="environments",
    response_class=Response,
    responses=responses(EnvironmentsAnswer, 401, 403),
)
async def environments(request: Request) -> Response:
    server: Server = request.app.state.server
    return reply(request, {"environments": await server.surveys.environments()})


@router.get(
    "/usage",
    summary="This key's quotas, and what is used of them",
    operation_id="usage",
    response_class=Response,
    responses=responses(UsageAnswer, 401, 403),
)
async def usage(request: Request) -> Response:
    server: Server = request.app.state.server
    tenant = visit_of(request).tenant
    assert tenant is not None
    under_way, queued = server.admission.counts(tenant.name)
    return reply(
        request,
        {
            "tenant": tenant.name,
            "quotas": tenant.quotas.model_dump(mode="json"),
            "running": under_way,
            "queued": queued,
            "runs": tenant.runs,
            "runs_last_minute": tenant.runs_last_minute(),
            "cpu_s_today": round(tenant.cpu_s(), 3),
        },
    )
