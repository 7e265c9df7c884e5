"""`POST /v1/fetch`: one page as text, got and read in sandboxes (N3)."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from belljar.fetching import fetch
from belljar.fetching.fetch import MOST_BYTES, MOST_CHARACTERS, MOST_URL, TIMEOUT_S
from belljar.model import Result
from belljar.server import running
from belljar.server.bodies import StrictRoute
from belljar.server.gate import visit_of
from belljar.server.openapi import responses
from belljar.server.schemas_network import EgressOfRun, Rules, Secrets, rules, secrets
from belljar.server.server import Server
from belljar.server.streams import reply
from belljar.server.strict import Strict

router = APIRouter(prefix="/v1", route_class=StrictRoute, tags=["runs"])


class FetchRequest(Strict):
    url: Annotated[str, Field(max_length=MOST_URL)] = Field(examples=["https://example.com/page"])
    network: Rules = Field(
        default_factory=list, description="Where it and its redirects may lead; else its host."
    )
    secrets: Secrets = Field(default_factory=dict)
    most_bytes: Annotated[int, Field(ge=1, le=MOST_BYTES)] = MOST_BYTES
    most_characters: Annotated[int, Field(ge=1, le=MOST_BYTES)] = MOST_CHARACTERS
    timeout_s: float = TIMEOUT_S


class PageAnswer(BaseModel):
    """Everything in it is the page's word."""

    success: bool
    url: str = Field(description="Where it was found, after redirects.")
    status: int = Field(description="Of HTTP; 0: there was no answer.")
    content_type: str
    title: str
    text: str
    links: list[str]
    redirects: list[str]
    size: int
    truncated: bool
    error: str = Field(description="Why there is no text, if so.")
    egress: list[EgressOfRun]


@router.post(
    "/fetch",
    summary="One page as text",
    operation_id="fetch",
    response_class=Response,
    responses=responses(PageAnswer, 400, 401, 403, 408, 409, 413, 415, 429, 503),
)
async def fetch_page(asked: FetchRequest, request: Request) -> Response:
    server: Server = request.app.state.server

    async def run(code: str, **options: Any) -> Result:
        result = await running.run(server, request, code, options)
        visit_of(request).ran = False  # the code was ours: a page can be got again
        return result

    page = await running.while_client_waits(
        server,
        request,
        lambda: fetch(
            run,
            asked.url,
            network=rules(asked.network) or None,
            secrets=secrets(asked.secrets) or None,
            most_bytes=asked.most_bytes,
            most_characters=asked.most_characters,
            timeout_s=asked.timeout_s,
        ),
    )
    return reply(request, page.to_dict())
