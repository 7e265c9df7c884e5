"""`/v1/datasets`: upload once, look inside, mount into sandboxes (S4)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from belljar.server import describing, running, uploads
from belljar.server.bodies import StrictRoute
from belljar.server.datasets import Dataset
from belljar.server.gate import visit_of
from belljar.server.openapi import responses
from belljar.server.schemas_kept import (
    DatasetAnswer,
    DatasetsAnswer,
    DescriptionAnswer,
    DoneAnswer,
)
from belljar.server.server import Server
from belljar.server.streams import reply
from belljar.server.tenants import Tenant

router = APIRouter(prefix="/v1/datasets", route_class=StrictRoute, tags=["datasets"])


def shown(dataset: Dataset) -> dict[str, Any]:
    found = asdict(dataset)
    del found["tenant"]
    return found


def _asking(request: Request) -> tuple[Server, Tenant]:
    tenant = visit_of(request).tenant
    assert tenant is not None
    server: Server = request.app.state.server
    return server, tenant


@router.post(
    "",
    summary="Upload a dataset, streamed; what breaks off leaves nothing",
    operation_id="add_dataset",
    response_class=Response,
    responses=responses(DatasetAnswer, 400, 401, 403, 408, 413, 415, 429, 503, 507),
    openapi_extra=uploads.BODY,
)
async def add(
    request: Request,
    name: Annotated[
        str, Query(min_length=1, max_length=200, description="For people; it is no path.")
    ],
) -> Response:
    server, tenant = _asking(request)
    uploads.check(request)
    found = await server.datasets.add(
        tenant,
        "".join(char if char.isprintable() else "_" for char in name),
        uploads.arriving(server, request),
        declared=uploads.declared_bytes(request),
    )
    return reply(request, shown(found))


@router.get(
    "",
    summary="The datasets of this key's tenant",
    operation_id="datasets",
    response_class=Response,
    responses=responses(DatasetsAnswer, 401, 403),
)
async def every(request: Request) -> Response:
    server, tenant = _asking(request)
    return reply(request, {"datasets": map(shown, server.datasets.of(tenant.name))})


@router.get(
    "/{dataset_id}",
    summary="One dataset",
    operation_id="dataset",
    response_class=Response,
    responses=responses(DatasetAnswer, 401, 403, 404),
)
async def one(dataset_id: str, request: Request) -> Response:
    server, tenant = _asking(request)
    return reply(request, shown(server.datasets.find(tenant.name, dataset_id)))


@router.get(
    "/{dataset_id}/description",
    summary="Columns, rows and a sample, found out in a sandbox",
    description="The first time this is one of the tenant's runs; then it is remembered.",
    operation_id="describe_dataset",
    response_class=Response,
    responses=responses(DescriptionAnswer, 401, 403, 404, 409, 429, 503),
)
async def description(dataset_id: str, request: Request) -> Response:
    server, tenant = _asking(request)
    dataset = server.datasets.find(tenant.name, dataset_id)
    held = await server.answers.hold(tenant, describing.MOST_BYTES)
    visit_of(request).after.append(held)
    if content := await server.datasets.described(dataset):
        held.shrink(len(content))
        return Response(content, media_type="application/json")
    held()
    path = server.datasets.path(tenant.name, dataset_id)
    found, sure = await running.while_client_waits(
        server,
        request,
        lambda: describing.describe(server, request, path, dataset.name),
    )
    if sure:
        await server.datasets.remember(dataset, found)
    return reply(request, found)


@router.delete(
    "/{dataset_id}",
    summary="Remove a dataset that no sandbox has mounted",
    operation_id="remove_dataset",
    response_class=Response,
    responses=responses(DoneAnswer, 401, 403, 404, 409, 503),
)
async def remove(dataset_id: str, request: Request) -> Response:
    server, tenant = _asking(request)
    dataset = server.datasets.find(tenant.name, dataset_id)
    await server.datasets.remove(dataset, in_use=server.book.uses(dataset.id))
    return reply(request, {"done": True})
