"""`/v1/sandboxes/{id}/exec` and `…/processes`: programs beside the interpreter (S3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from belljar.errors import Busy
from belljar.kept.processes import Process
from belljar.model import Result
from belljar.server import budget, running, streams, writing
from belljar.server.bodies import StrictRoute
from belljar.server.gate import Visit, visit_of
from belljar.server.openapi import responses
from belljar.server.routes.sandboxes import ASKING, SENDING, owned_by
from belljar.server.sandboxes import Owned
from belljar.server.schemas import RunAnswer
from belljar.server.schemas_kept import (
    DoneAnswer,
    ExecRequest,
    ProcessAnswer,
    ProcessesAnswer,
    ProcessState,
    ProgramRequest,
    ResizeRequest,
    SignalRequest,
    StartRequest,
    StdinRequest,
)
from belljar.server.server import Server
from belljar.server.steps import noted
from belljar.server.streams import EVENTS, reply
from belljar.server.strict import content

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}", route_class=StrictRoute, tags=["programs"])
_STREAMED = {EVENTS: {"schema": {"type": "string"}}}


def shown(process: Process) -> dict[str, Any]:
    return {
        "process_id": process.process_id,
        "pid": process.pid,
        "argv": list(process.argv),
        "terminal": process.terminal,
        "running": process.running,
        "exit_code": process.exit_code,
    }


@router.post(
    "/exec",
    summary="Run a program and wait for it; it ends when the client goes",
    operation_id="exec",
    response_class=Response,
    responses=responses(RunAnswer, *SENDING),
)
async def execute(sandbox_id: str, asked: ExecRequest, request: Request) -> Response:
    server, owned = owned_by(request, sandbox_id)
    options = asked.model_dump(exclude={"program", "stdin"})
    options["stdin"] = content(asked.stdin)

    async def do() -> Result:
        async with noted(server, visit_of(request), owned, _words(asked)):
            owned.tenant.start()
            held_bytes = budget.of_program(owned.limits)
            async with server.admission.place(owned.tenant, held_bytes=held_bytes) as place:
                with running.code_runs(visit_of(request)):
                    result = await owned.box.exec(asked.program, **options)
                running.keep(visit_of(request), place, result)
                return result

    try:
        result = await running.while_client_waits(server, request, do)
    finally:
        owned.count_cpu()
    server.metrics.ended(owned.tenant.name, result)
    return reply(request, writing.of(result))


async def start_program(server: Server, visit: Visit, owned: Owned, asked: StartRequest) -> Process:
    options = asked.model_dump(include={"shell", "env", "folder", "terminal"})
    async with noted(server, visit, owned, _words(asked)):
        with owned.programs.starting() as held:
            owned.tenant.start()
            with running.code_runs(visit):
                process = await owned.box.start(asked.program, **options)
            owned.programs.add(process, held)
    return process


def _words(asked: ProgramRequest) -> str:
    return asked.program if isinstance(asked.program, str) else " ".join(asked.program)


@router.post(
    "/processes",
    summary="Start a program",
    description="Answers at once. With `Accept: text/event-stream`: events `started`, `output` and "
    "`exit`; when the client goes, the program is killed, unless it is `detached`.",
    operation_id="start_process",
    response_class=Response,
    responses=responses(ProcessAnswer, *SENDING, content=_STREAMED),
)
async def start(sandbox_id: str, asked: StartRequest, request: Request) -> Response:
    server, owned = owned_by(request, sandbox_id)
    process = await start_program(server, visit_of(request), owned, asked)
    if not streams.wanted(request):
        return reply(request, shown(process))

    def gone() -> None:
        if process.running and not asked.detached:
            server.soon(process.kill())

    return await streams.respond(server, request, output_of(process, started=True), gone=gone)


async def output_of(process: Process, *, started: bool = False) -> AsyncIterator[streams.Told]:
    """What it has printed and prints, until it ends."""
    if started:
        yield "started", shown(process)
    teller = streams.Teller()
    async for printed in process.output():
        for told in teller.tell(printed):
            yield told
    for told in teller.rest():
        yield told
    yield "exit", await process.wait()


@router.get(
    "/processes",
    summary="The programs that run",
    operation_id="processes",
    response_class=Response,
    responses=responses(ProcessesAnswer, *ASKING),
)
async def every(sandbox_id: str, request: Request) -> Response:
    _, owned = owned_by(request, sandbox_id)
    return reply(request, {"processes": map(shown, owned.programs.running())})


@router.get(
    "/processes/{process_id}",
    summary="A program, and what it has printed",
    operation_id="process",
    response_class=Response,
    responses=responses(ProcessState, 400, *ASKING),
)
async def one(sandbox_id: str, process_id: int, request: Request) -> Response:
    server, process = _process(request, sandbox_id, process_id)
    visit = visit_of(request)
    assert visit.tenant is not None
    if process.held_bytes > budget.LARGE_BYTES:
        # Each time it is asked for it becomes texts anew, of up to four bytes for a character.
        visit.after.append(await server.answers.hold(visit.tenant, 4 * process.held_bytes))
    return reply(request, {**shown(process), "result": writing.of(process.result())})


@router.get(
    "/processes/{process_id}/output",
    summary="What a program has printed and prints, as events `output` and `exit`",
    operation_id="process_output",
    response_class=Response,
    responses=responses(None, 400, *ASKING, description="Until it ends", content=_STREAMED),
)
async def output(sandbox_id: str, process_id: int, request: Request) -> Response:
    server, process = _process(request, sandbox_id, process_id)
    return await streams.respond(server, request, output_of(process))


@router.post(
    "/processes/{process_id}/stdin",
    summary="Standard input for a program, or its end",
    operation_id="write_stdin",
    response_class=Response,
    responses=responses(DoneAnswer, *SENDING),
)
async def stdin(
    sandbox_id: str, process_id: int, asked: StdinRequest, request: Request
) -> Response:
    _, process = _process(request, sandbox_id, process_id)
    return reply(request, {"done": await feed(process, content(asked.data), close=asked.close)})


async def feed(process: Process, data: str | bytes, *, close: bool) -> bool:
    under_way = process.running
    if under_way and data:
        given = data.encode() if isinstance(data, str) else data
        if len(given) > process.room:
            raise Busy(
                "the program has not read its standard input yet: there is room for "
                f"{process.room} more bytes",
                hint="send less at once, or send it again when the program has read more",
            )
        await process.write(given)
    if under_way and close:
        await process.close_stdin()
    return under_way


@router.post(
    "/processes/{process_id}/signal",
    summary="Signal a program and everything in its group",
    operation_id="signal_process",
    response_class=Response,
    responses=responses(DoneAnswer, *SENDING),
)
async def signal(
    sandbox_id: str, process_id: int, asked: SignalRequest, request: Request
) -> Response:
    _, process = _process(request, sandbox_id, process_id)
    under_way = process.running
    await process.kill(asked.number)
    return reply(request, {"done": under_way})


@router.post(
    "/processes/{process_id}/resize",
    summary="The size of a program's terminal",
    operation_id="resize_process",
    response_class=Response,
    responses=responses(DoneAnswer, *SENDING),
)
async def resize(
    sandbox_id: str, process_id: int, asked: ResizeRequest, request: Request
) -> Response:
    _, process = _process(request, sandbox_id, process_id)
    await process.resize(asked.rows, asked.columns)
    return reply(request, {"done": True})


def _process(request: Request, sandbox_id: str, process_id: int) -> tuple[Server, Process]:
    server, owned = owned_by(request, sandbox_id)
    return server, owned.programs.find(process_id)
