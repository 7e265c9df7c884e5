"""`POST /execute`: code in, six fields out (A3, R5)."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from belljar.errors import InvalidRequest, NetworkRefused
from belljar.model import Result
from belljar.network import Allow, rules
from belljar.server import running
from belljar.server.bodies import StrictRoute
from belljar.server.errors import code_of
from belljar.server.gate import Visit, visit_of
from belljar.server.openapi import responses
from belljar.server.schemas import ExecuteAnswer, ExecuteRequest
from belljar.server.server import Server
from belljar.server.streams import reply

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
    options: dict[str, Any] = {
        "language": asked.language,
        "env": asked.env_vars,
        "timeout_s": asked.timeout,
    }
    try:
        options["network"] = _network(asked, server, visit_of(request))
    except InvalidRequest as error:
        reason = code_of(type(error))
        await running.refused(server, visit_of(request), asked.code, options, reason)
        raise
    result = await running.while_client_waits(
        server, request, lambda: running.run(server, request, asked.code, options)
    )
    return reply(request, answer(result))


def _network(asked: ExecuteRequest, server: Server, visit: Visit) -> tuple[Allow, ...]:
    """Domains by name, or without names all those that the operator has named."""
    if not asked.allow_network:
        if asked.allowed_domains:
            raise InvalidRequest(
                "allowed_domains: the network is not asked for", hint="set allow_network to true"
            )
        return ()
    assert visit.tenant is not None
    named: Sequence[str] | None = asked.allowed_domains or visit.tenant.quotas.network_allowed
    if named is None:
        most = server.settings.jar.network_allowed
        if most == "any":
            raise InvalidRequest(
                "allow_network: say which hosts", hint='"allowed_domains": ["api.example.com"]'
            )
        named = most
    if not named:
        raise NetworkRefused(
            "allow_network: this server allows no host",
            hint="send the data along; the operator's setting is network_allowed",
        )
    return rules(named)


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
        lost = result.status == "killed"
        return "belljar: the sandbox was lost before the code had ended" if lost else ""
    try:
        return f"belljar: the code was killed by {signal.Signals(result.signal).name}"
    except ValueError:
        return f"belljar: the code was killed by signal {result.signal}"
