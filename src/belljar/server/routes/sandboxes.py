"""`/v1/sandboxes`: make, list, look at, end; run in them, go back, branch (S1, S6, L6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from belljar.errors import LimitExceeded, NetworkRefused
from belljar.kept import events
from belljar.server import running, streams, writing
from belljar.server.bodies import StrictRoute
from belljar.server.errors import ApiError
from belljar.server.gate import visit_of
from belljar.server.openapi import responses
from belljar.server.sandboxes import Owned, described
from belljar.server.schemas import RunAnswer
from belljar.server.schemas_kept import (
    CheckpointsAnswer,
    DoneAnswer,
    ExtendRequest,
    ForkRequest,
    InstallAnswer,
    InstallRequest,
    RollbackRequest,
    SandboxAnswer,
    SandboxesAnswer,
    SandboxRequest,
    StepRequest,
)
from belljar.server.schemas_network import NetworkRequest, rules
from belljar.server.server import Server
from belljar.server.steps import Step, finished, noted
from belljar.server.streams import EVENTS, reply
from belljar.server.strict import content

router = APIRouter(prefix="/v1/sandboxes", route_class=StrictRoute, tags=["sandboxes"])
T = TypeVar("T")

ASKING = (401, 403, 404, 410)
"""What any question to a sandbox may be answered with."""
SENDING = (400, *ASKING, 408, 409, 413, 415, 429, 503)

_EXAMPLE = """\
event: output
data: {"stream": "stdout", "text": "42\\n"}

event: usage
data: {"cpu_ms": 3.1, "peak_memory_bytes": 9000000, "peak_processes": 1}

event: sandbox
data: {"id": "0123456789abcdef0123456789abcdef", "runs": 1, "checkpoints": [1]}

event: end
data: {"status": "ok", "exit_code": 0, "run_id": 1, "state_kept": true}

"""


def owned_by(request: Request, sandbox_id: str) -> tuple[Server, Owned]:
    """The caller's own sandbox, or 404."""
    server: Server = request.app.state.server
    return server, server.book.find(visit_of(request), sandbox_id)


@router.post(
    "",
    summary="Make a sandbox that is kept",
    operation_id="make_sandbox",
    response_class=Response,
    responses=responses(SandboxAnswer, 400, 401, 403, 404, 408, 409, 413, 415, 429, 503),
)
async def make(asked: SandboxRequest, request: Request) -> Response:
    server: Server = request.app.state.server
    visit = visit_of(request)
    tenant = visit.tenant
    assert tenant is not None
    options = asked.options()
    datasets = {
        name: (found, server.datasets.path(tenant.name, found))
        for name, found in asked.datasets().items()
    }

    async def do() -> Owned:
        async with noted(server, visit, None, ""):
            return await server.book.make(
                tenant, options, datasets=datasets, caller=running.caller(visit)
            )

    owned = await running.while_client_waits(server, request, do)
    return reply(request, described(owned))


@router.get(
    "",
    summary="The sandboxes of this key's tenant; with `everyone`, for operators, those of all",
    operation_id="sandboxes",
    response_class=Response,
    responses=responses(SandboxesAnswer, 401, 403),
)
async def every(request: Request, everyone: bool = False) -> Response:
    server: Server = request.app.state.server
    visit = visit_of(request)
    assert visit.tenant is not None
    if everyone and not visit.operator:
        raise ApiError(
            "forbidden", "this is for operators", hint="belljar keys add NAME --operator"
        )
    found = server.book.everybodys() if everyone else server.book.of(visit.tenant)
    return reply(request, {"sandboxes": map(described, found)})


@router.get(
    "/{sandbox_id}",
    summary="One sandbox",
    operation_id="sandbox",
    response_class=Response,
    responses=responses(SandboxAnswer, *ASKING),
)
async def one(sandbox_id: str, request: Request) -> Response:
    _, owned = owned_by(request, sandbox_id)
    return reply(request, described(owned))


@router.delete(
    "/{sandbox_id}",
    summary="End a sandbox and everything in it; branches of it live on. Operators can end any",
    operation_id="end_sandbox",
    response_class=Response,
    responses=responses(DoneAnswer, *ASKING),
)
async def end(sandbox_id: str, request: Request) -> Response:
    server: Server = request.app.state.server
    visit = visit_of(request)
    assert visit.tenant is not None
    owned = server.book.find(visit, sandbox_id, any_tenant=True)
    own = owned.tenant.name == visit.tenant.name
    why = "it was closed" if own else "an operator ended it"
    await asyncio.shield(server.book.end(owned, why))
    return reply(request, {"done": True})


@router.post(
    "/{sandbox_id}/runs",
    summary="Run code after everything that ran before",
    description="With `Accept: text/event-stream`: events `output`, `shown`, `usage`, `progress`, "
    "then `sandbox` and one `end` with the whole result, or `error`. When the client goes, the run "
    "is interrupted.",
    operation_id="run_in_sandbox",
    response_class=Response,
    responses=responses(
        RunAnswer,
        *SENDING,
        content={EVENTS: {"schema": {"type": "string"}, "example": _EXAMPLE}},
    ),
)
async def run(sandbox_id: str, asked: StepRequest, request: Request) -> Response:
    server, owned = owned_by(request, sandbox_id)
    tell = streams.wanted(request)
    options = {"timeout_s": asked.timeout_s, "stdin": content(asked.stdin)}
    step = Step(server, visit_of(request), owned, asked.code, tell=tell, **options)
    if tell:
        return await streams.respond(server, request, happening(step, owned), gone=step.abandon)
    try:
        result = await step.result(request)
    finally:
        step.abandon()
    return reply(request, writing.of(result))


async def happening(step: Step, owned: Owned) -> AsyncIterator[streams.Told]:
    teller = streams.Teller()
    async for event in step.happening():
        if isinstance(event, events.Ended):
            yield "sandbox", described(owned)
        for told in teller.tell(event):
            yield told


@router.post(
    "/{sandbox_id}/interrupt",
    summary="KeyboardInterrupt in the run that is under way; the state stays",
    operation_id="interrupt",
    response_class=Response,
    responses=responses(DoneAnswer, *ASKING),
)
async def interrupt(sandbox_id: str, request: Request) -> Response:
    _, owned = owned_by(request, sandbox_id)
    under_way = owned.box.running
    owned.box.interrupt()
    return reply(request, {"done": under_way})


@router.post(
    "/{sandbox_id}/kill",
    summary="End the run that is under way, with the state of the sandbox",
    operation_id="kill",
    response_class=Response,
    responses=responses(DoneAnswer, *ASKING),
)
async def kill(sandbox_id: str, request: Request) -> Response:
    _, owned = owned_by(request, sandbox_id)
    under_way = owned.box.running
    owned.box.kill()
    return reply(request, {"done": under_way})


@router.post(
    "/{sandbox_id}/extend",
    summary="More time for the run that is under way, within the operator's maximum",
    operation_id="extend",
    response_class=Response,
    responses=responses(DoneAnswer, *SENDING),
)
async def extend(sandbox_id: str, asked: ExtendRequest, request: Request) -> Response:
    _, owned = owned_by(request, sandbox_id)
    if not 0 < asked.seconds < float("inf"):
        raise LimitExceeded("extend: must be a number of seconds above 0")
    under_way = owned.box.running
    owned.box.extend(asked.seconds)
    return reply(request, {"done": under_way})


@router.get(
    "/{sandbox_id}/checkpoints",
    summary="The runs that can be undone, oldest first",
    operation_id="checkpoints",
    response_class=Response,
    responses=responses(CheckpointsAnswer, *ASKING),
)
async def checkpoints(sandbox_id: str, request: Request) -> Response:
    _, owned = owned_by(request, sandbox_id)
    return reply(request, {"checkpoints": list(owned.box.checkpoints())})


@router.post(
    "/{sandbox_id}/rollback",
    summary="Variables and files are again what they were before a run",
    operation_id="rollback",
    response_class=Response,
    responses=responses(SandboxAnswer, *SENDING),
)
async def rollback(sandbox_id: str, asked: RollbackRequest, request: Request) -> Response:
    server, owned = owned_by(request, sandbox_id)
    async with noted(server, visit_of(request), owned, ""):
        owned.tenant.start()
        await finished(server, owned, lambda: owned.box.rollback(asked.run_id))
    return reply(request, described(owned))


@router.post(
    "/{sandbox_id}/restart",
    summary="A new interpreter: variables and checkpoints are gone, files stay",
    operation_id="restart",
    response_class=Response,
    responses=responses(SandboxAnswer, *ASKING, 400, 409, 429),
)
async def restart(sandbox_id: str, request: Request) -> Response:
    server, owned = owned_by(request, sandbox_id)
    async with noted(server, visit_of(request), owned, ""):
        owned.tenant.start()
        await finished(server, owned, owned.box.restart)
    return reply(request, described(owned))


@router.post(
    "/{sandbox_id}/fork",
    summary="Independent sandboxes with the same variables and files",
    operation_id="fork",
    response_class=Response,
    responses=responses(SandboxesAnswer, *SENDING),
)
async def fork(sandbox_id: str, asked: ForkRequest, request: Request) -> Response:
    server, owned = owned_by(request, sandbox_id)
    async with noted(server, visit_of(request), owned, ""):
        branches = await finished(
            server, owned, lambda: server.book.fork(owned, asked.count, asked.at)
        )
    return reply(request, {"sandboxes": map(described, branches)})


@router.put(
    "/{sandbox_id}/network",
    summary="Other rules for the network, at once; connections that they do not allow are cut",
    operation_id="set_network",
    response_class=Response,
    responses=responses(SandboxAnswer, *SENDING),
)
async def network(sandbox_id: str, asked: NetworkRequest, request: Request) -> Response:
    server, owned = owned_by(request, sandbox_id)
    found, visit = rules(asked.network), visit_of(request)
    async with noted(server, visit, owned, ""):
        try:
            owned.tenant.check_network(found)
        except NetworkRefused:
            await running.refused(server, visit, "", {"network": found}, "network_refused")
            raise
        if found or not owned.box.network:  # what was allowed can always be taken back
            owned.tenant.start()
        await asyncio.shield(owned.box.set_network(found))
    return reply(request, described(owned))


@router.post(
    "/{sandbox_id}/install",
    summary="Packages that can be imported from the next run on",
    operation_id="install",
    response_class=Response,
    responses=responses(InstallAnswer, *SENDING),
)
async def install(sandbox_id: str, asked: InstallRequest, request: Request) -> Response:
    server, owned = owned_by(request, sandbox_id)
    async with noted(server, visit_of(request), owned, ""):
        owned.tenant.start()
        versions = await finished(server, owned, lambda: owned.box.install(*asked.packages))
    return reply(request, {"versions": versions})
