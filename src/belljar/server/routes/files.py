"""`/v1/sandboxes/{id}/files`: what `box.files` does (S2).

Paths are those inside the sandbox, in the query: percent-encoded they can be any bytes, as names of
files can. None of them becomes a path of this machine.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from belljar.errors import SandboxFileError
from belljar.kept.entries import FileInfo
from belljar.server import streams, uploads
from belljar.server.bodies import StrictRoute
from belljar.server.budget import LARGE_BYTES, Hold
from belljar.server.errors import ApiError
from belljar.server.gate import Visit, visit_of
from belljar.server.openapi import responses
from belljar.server.routes.sandboxes import ASKING, owned_by
from belljar.server.schemas_kept import DoneAnswer, FileAnswer, FilesAnswer, WrittenAnswer
from belljar.server.server import Server
from belljar.server.streams import EVENTS, reply

router = APIRouter(
    prefix="/v1/sandboxes/{sandbox_id}/files", route_class=StrictRoute, tags=["files"]
)

MOST_ENTRIES = 20_000
MOST_BYTES = 4 << 20
"""Of a list, as JSON: names can be chosen so that each takes forty kilobytes."""
PAGE, PAGE_BYTES = 1000, 1 << 18
ESCAPED = 6
"""Bytes that a character may take in JSON; those beyond the basic plane take twice as many."""
CHANGING = (400, *ASKING, 409)
Inside = Annotated[str, Query(description="Absolute, or relative to /workspace.", max_length=8192)]
Depth = Annotated[int, Query(ge=1, le=64)]


def given(request: Request, name: str, usual: str = "/workspace") -> str:
    """A path from the query. What is not UTF-8 is kept as Python's own file names keep it."""
    query = request.scope["query_string"].decode("latin-1")
    pairs = parse_qsl(query, keep_blank_values=True, errors="surrogateescape")
    return str(dict(pairs).get(name, usual))


def shown(info: FileInfo) -> dict[str, Any]:
    return dataclasses.asdict(info)


@router.get(
    "",
    summary="The entries of a folder, and with depth those of the folders in it",
    description=f"At most {MOST_ENTRIES} at once, and {MOST_BYTES >> 20} MiB of JSON; with "
    f"`Accept: text/event-stream` any number, as events `entries` of up to {PAGE} each.",
    operation_id="list_files",
    response_class=Response,
    responses=responses(FilesAnswer, *CHANGING, content={EVENTS: {"schema": {"type": "string"}}}),
)
async def every(
    sandbox_id: str, request: Request, path: Inside = "/workspace", depth: Depth = 1
) -> Response:
    server, owned = owned_by(request, sandbox_id)
    inside = given(request, "path")
    if streams.wanted(request):
        pages = _pages(owned.box.files.entries(inside, depth=depth))
        return await streams.respond(server, request, pages)
    async with aclosing(owned.box.files.entries(inside, depth=depth)) as entries:
        content = await _listed(server, visit_of(request), entries)
    return Response(content, media_type="application/json")


async def _listed(server: Server, visit: Visit, entries: AsyncGenerator[FileInfo, None]) -> bytes:
    """Written as they come: no step of it takes long. A long one is held like any large answer."""
    assert visit.tenant is not None  # the gate lets nobody else in
    found: list[bytes] = []
    size = 0
    held: Hold | None = None
    async for info in entries:
        found.append(json.dumps(shown(info)).encode())
        size += len(found[-1])
        if size > LARGE_BYTES and held is None:
            held = await server.answers.hold(visit.tenant, 2 * MOST_BYTES)
            visit.after.append(held)
        if len(found) > MOST_ENTRIES or size > MOST_BYTES:
            raise SandboxFileError(
                f"more than {MOST_ENTRIES} entries, or {MOST_BYTES >> 20} MiB of their names",
                hint="ask for less depth, or for events: Accept: text/event-stream",
                kind="too_many",
            )
    content = b'{"entries": [%b]}' % b", ".join(found)
    if held:
        held.shrink(len(content))
    return content


async def _pages(entries: AsyncGenerator[FileInfo, None]) -> AsyncIterator[streams.Told]:
    page: list[dict[str, Any]] = []
    size = 0
    async with aclosing(entries):
        async for info in entries:
            page.append(shown(info))
            size += len(info.path) + len(info.name)
            if len(page) == PAGE or size > PAGE_BYTES // ESCAPED:
                yield "entries", {"entries": page}
                page, size = [], 0
    yield "entries", {"entries": page}


@router.get(
    "/stat",
    summary="What is at a path; a link is described, not followed",
    operation_id="stat_file",
    response_class=Response,
    responses=responses(FileAnswer, *CHANGING),
)
async def stat(sandbox_id: str, request: Request, path: Inside) -> Response:
    _, owned = owned_by(request, sandbox_id)
    return reply(request, shown(await owned.box.files.stat(given(request, "path"))))


@router.get(
    "/content",
    summary="The content of a file, streamed",
    description="`X-Belljar-Size`: its size when it was opened, by the code's word.",
    operation_id="read_file",
    response_class=Response,
    responses=responses(
        None,
        *CHANGING,
        description="The bytes",
        content={uploads.BINARY: {"schema": {"type": "string", "format": "binary"}}},
    ),
)
async def read(sandbox_id: str, request: Request, path: Inside) -> Response:
    server, owned = owned_by(request, sandbox_id)
    name = given(request, "path")
    reader = owned.box.files.open(name)
    await reader.__aenter__()
    visit_of(request).after.append(reader.close)  # also if nobody came to read it
    headers = {
        "Content-Disposition": disposition(name),
        "X-Belljar-Size": str(reader.size),
    }
    return streams.content(
        aiter(reader), send_timeout_s=server.settings.send_timeout_s, headers=headers
    )


def disposition(path: str) -> str:
    """To be saved, never shown. The guest may have chosen the name: nothing in it may be a folder,
    a quote, or hide what it is."""
    name = path.rstrip("/").rpartition("/")[2]
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    text = "".join(char if char.isprintable() else "_" for char in text).strip(" .")[:150]
    plain = re.sub(r"[^A-Za-z0-9._ -]", "_", text).strip(" .") or "file"
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(text or 'file', safe='')}"


@router.put(
    "/content",
    summary="Write a file, streamed; folders on the way are made",
    description="What breaks off leaves no new file behind.",
    operation_id="write_file",
    response_class=Response,
    responses=responses(WrittenAnswer, *CHANGING, 408, 415),
    openapi_extra=uploads.BODY,
)
async def write(
    sandbox_id: str,
    request: Request,
    path: Inside,
    mode: Annotated[int | None, Query(ge=0, le=0o777, description="Permissions.")] = None,
    append: bool = False,
    exclusive: Annotated[bool, Query(description="It must not be there yet.")] = False,
) -> Response:
    server, owned = owned_by(request, sandbox_id)
    uploads.check(request)
    if append and exclusive:
        raise ApiError("invalid_request", "append or exclusive, not both")
    how: Any = "ab" if append else "xb" if exclusive else "wb"
    async with owned.box.files.open(given(request, "path"), how, permissions=mode) as writer:
        async for piece in uploads.arriving(server, request):
            await writer.write(piece)
    return reply(request, {"size": writer.written})


@router.delete(
    "",
    summary="Remove a file, a link or a folder",
    operation_id="remove_file",
    response_class=Response,
    responses=responses(DoneAnswer, *CHANGING),
)
async def remove(
    sandbox_id: str,
    request: Request,
    path: Inside,
    recursive: Annotated[bool, Query(description="With whatever is in it.")] = False,
) -> Response:
    _, owned = owned_by(request, sandbox_id)
    await owned.box.files.remove(given(request, "path"), recursive=recursive)
    return reply(request, {"done": True})


@router.post(
    "/move",
    summary="Give a file or a folder another path",
    operation_id="move_file",
    response_class=Response,
    responses=responses(DoneAnswer, *CHANGING),
)
async def move(
    sandbox_id: str, request: Request, path: Inside, to: Inside, replace: bool = False
) -> Response:
    _, owned = owned_by(request, sandbox_id)
    files = owned.box.files
    await files.move(given(request, "path"), given(request, "to"), replace=replace)
    return reply(request, {"done": True})


@router.post(
    "/mkdir",
    summary="Make a folder, and those on the way to it",
    operation_id="make_folder",
    response_class=Response,
    responses=responses(DoneAnswer, *CHANGING),
)
async def mkdir(sandbox_id: str, request: Request, path: Inside, exist_ok: bool = True) -> Response:
    _, owned = owned_by(request, sandbox_id)
    await owned.box.files.mkdir(given(request, "path"), exist_ok=exist_ok)
    return reply(request, {"done": True})


@router.get(
    "/changes",
    summary="What happens below a path, as events `created`, `changed` and `removed`",
    operation_id="watch_files",
    response_class=Response,
    responses=responses(
        None,
        *CHANGING,
        description="Until the client goes",
        content={EVENTS: {"schema": {"type": "string"}}},
    ),
)
async def changes(
    sandbox_id: str,
    request: Request,
    path: Inside = "/workspace",
    depth: Depth = 64,
    interval_s: Annotated[float, Query(ge=0.05, le=60)] = 0.25,
) -> Response:
    server, owned = owned_by(request, sandbox_id)
    watching = owned.box.files.watch(given(request, "path"), depth=depth, interval_s=interval_s)

    async def told() -> AsyncIterator[streams.Told]:
        async with aclosing(watching):
            async for change in watching:
                info = shown(change.info) if change.info else None
                yield change.what, {"path": change.path, "info": info}

    return await streams.respond(server, request, told())
