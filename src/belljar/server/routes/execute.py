"""`POST /execute`: code in, six fields out (A3, R5)."""

from __future__ import annotations

import signal

from fastapi import APIRouter, Request
from starlette.responses import Response

from belljar.errors import Unsupported
from belljar.model import Result
from belljar.server import running
from belljar.server.bodies import StrictRoute
from belljar.server.gate import visit_of
from belljar.server.openapi import responses
from belljar.server.schemas import ExecuteAnswer, ExecuteRequest
from belljar.server.server import Server

router = APIRouter(route_class=StrictRoute, tags=["runs"])

_CUT_SHORT = {
    "timeout": "belljar: the code was killed: it ran out of time",
    "out_of_memory": "belljar: the code was killed: it ran out of memory",
}


@router.post(
    "/execute",
    summary="Run code in a fresh sandbox",
    operation_id="execute",
    response_class=Response,
    responses=responses(ExecuteAnswer, 400, 401, 403, 408, 409, 413, 415, 429, 503),
)
async def execute(asked: ExecuteRequest, request: Request) -> Response:
    server: Server = request.app.state.server
    options = {"language": asked.language, "env": asked.env_vars, "timeout_s": asked.timeout}
    if asked.allow_network:
        await running.refused(server, visit_of(request), asked.code, options, "unsupported")
        raise Unsupported(
            "allow_network: code has no network here", hint="send the data along instead"
        )
    result = await running.while_client_waits(
        server, request, lambda: running.run(server, request, asked.code, options)
    )
    content = await running.json_of(server, visit_of(request), result, answer)
    return Response(content, media_type="application/json")


def answer(result: Result) -> dict[str, object]:
    return {
        "success": result.success,
        "exit_code": result.exit_code,
        "output": result.stdout,
        "error": "\n".join(filter(None, (result.stderr.rstrip("\n"), _why(result)))),
        "duration_ms": round(result.duration_ms, 3),
        "execution_id": result.execution_id,
    }


def _why(result: Result) -> str:
    if result.status in _CUT_SHORT:
        return _CUT_SHORT[result.status]
    if result.signal is None:
        return ""
    try:
        return f"belljar: the code was killed by {signal.Signals(result.signal).name}"
    except ValueError:
        return f"belljar: the code was killed by signal {result.signal}"
