"""Calls of tools: what one may reach, and what each does."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from mcp.types import CallToolResult

from belljar import threads
from belljar.errors import EnvironmentUnavailable, InvalidRequest
from belljar.fetching import fetch
from belljar.mcp import answers, arguments, pictures
from belljar.mcp.answers import plain, said
from belljar.mcp.host import Asked, Host, Kept
from belljar.mcp.shelf import Shelf
from belljar.model import Result
from belljar.policy.limits import requested_limits

MOST_LISTED = 500
MOST_LISTED_CHARACTERS = 20_000
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call, with everything it may reach."""

    host: Host
    shelf: Shelf
    asked: Asked
    loose: set[asyncio.Future[Any]]
    """Work that goes on although nobody waits for it."""

    async def outliving(self, work: Coroutine[Any, Any, T], on_leave: Callable[[], None]) -> T:
        """Work that is not torn off when its caller leaves: it is asked to end, and does."""
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            let_go(task, self.loose)
            on_leave()
            raise


def let_go(task: asyncio.Future[Any], loose: set[asyncio.Future[Any]]) -> None:
    """Nobody waits for it any more, and its failure is nobody's."""

    def over(_: object) -> None:
        loose.discard(task)
        if not task.cancelled():
            task.exception()

    loose.add(task)
    task.add_done_callback(over)


# -- runs ------------------------------------------------------------------------------------------


async def run_code(call: Call, given: arguments.RunCode) -> CallToolResult:
    options: dict[str, Any] = {"language": given.language, "files": given.files}
    if given.packages:
        options["packages"] = given.packages
    if given.network:
        options["network"] = tuple(given.network)
    if given.timeout_s is not None:
        options["timeout_s"] = given.timeout_s
    result = await call.host.once(call.asked, given.code, options)
    return await _told(call, result)


async def run_in_sandbox(call: Call, given: arguments.RunInSandbox) -> CallToolResult:
    kept = call.shelf.find(given.sandbox_id)
    result = await call.outliving(
        call.host.run(call.asked, kept, given.code, given.timeout_s), kept.box.interrupt
    )
    return await _told(call, result, kept)


async def _told(call: Call, result: Any, kept: Kept | None = None) -> CallToolResult:
    settings = call.host.settings
    return await threads.JSON.do_for(
        call.host.tenant,
        answers.told,
        result,
        limits=requested_limits(settings, {}),
        most_s=settings.maxima.timeout_s,
        checkpoints=kept.box.checkpoints() if kept else (),
    )


# -- sandboxes -------------------------------------------------------------------------------------


async def open_sandbox(call: Call, given: arguments.OpenSandbox) -> CallToolResult:
    environment = given.environment
    if environment == "auto" and given.language == "python":
        environment = "data"
    options: dict[str, Any] = {
        "language": given.language,
        "environment": environment,
        "files": given.files,
        "max_runs": given.max_runs,
    }
    if given.packages:
        options["packages"] = given.packages
    if given.network:
        options["network"] = tuple(given.network)
    try:
        name, kept = await call.shelf.open(call.asked, options)
    except EnvironmentUnavailable as error:
        if given.environment == "auto" and not given.packages:
            error.hint += '; environment="base" is Python without packages'
        raise
    engine, environment, language = kept.box.ground
    terms = call.host.terms
    found = {
        "sandbox_id": name,
        "language": language,
        "environment": environment,
        "engine": engine,
        "max_runs": given.max_runs,
        "idle_s": terms.idle_s,
    }
    words = (
        f"{name} is open: {language}, environment {environment}, behind {engine}. "
        f"It is good for {given.max_runs} runs and ends when nothing was asked of it for "
        f"{terms.idle_s:g} s."
    )
    return said(words, found)


async def close_sandbox(call: Call, given: arguments.CloseSandbox) -> CallToolResult:
    await call.shelf.close(given.sandbox_id)
    return said(f"{given.sandbox_id} is gone.", {"closed": given.sandbox_id})


async def fork_sandbox(call: Call, given: arguments.ForkSandbox) -> CallToolResult:
    kept = call.shelf.find(given.sandbox_id)
    made = await call.shelf.fork(call.asked, kept, given.count, given.before_run)
    names = [name for name, _ in made]
    when = f"were before run {given.before_run}" if given.before_run else "are now"
    words = f"With the variables and files of {given.sandbox_id} as they {when}: "
    return said(words + ", ".join(names), {"sandbox_ids": names})


async def rollback_sandbox(call: Call, given: arguments.RollbackSandbox) -> CallToolResult:
    kept = call.shelf.find(given.sandbox_id)
    known = kept.box.checkpoints()
    if given.run_id not in known:
        can = f"runs that can be undone: {', '.join(map(str, known))}" if known else "none can be"
        raise InvalidRequest(f"run {given.run_id} cannot be undone", hint=can)
    await call.host.rollback(call.asked, kept, given.run_id)
    left = list(kept.box.checkpoints())
    words = f"Variables and files of {given.sandbox_id} are as before run {given.run_id}."
    return said(words, {"sandbox_id": given.sandbox_id, "can_undo": left})


async def install_packages(call: Call, given: arguments.InstallPackages) -> CallToolResult:
    kept = call.shelf.find(given.sandbox_id)
    versions = dict(await call.host.install(call.asked, kept, given.packages))
    shown = ", ".join(f"{name} {version}" for name, version in versions.items())
    return said(
        f"Importable from the next run on: {shown or 'nothing new'}", {"packages": versions}
    )


# -- files -----------------------------------------------------------------------------------------


async def list_files(call: Call, given: arguments.ListFiles) -> CallToolResult:
    box = call.shelf.find(given.sandbox_id).box
    rows: list[dict[str, Any]] = []
    more, room = False, MOST_LISTED_CHARACTERS
    async with aclosing(box.files.entries(given.path, depth=given.depth)) as entries:
        async for info in entries:
            if len(rows) >= MOST_LISTED or room < 0:
                more = True
                break
            rows.append({"path": plain(info.path), "kind": info.kind, "size": info.size})
            room -= len(rows[-1]["path"])
    lines = [
        f"{row['path']}/" if row["kind"] == "folder" else f"{row['path']} ({row['size']:,} bytes)"
        for row in rows
    ]
    if more:
        lines.append("[and more: name a folder in it]")
    return said("\n".join(lines) or "nothing", {"entries": rows, "truncated": more})


async def read_file(call: Call, given: arguments.ReadFile) -> CallToolResult:
    box = call.shelf.find(given.sandbox_id).box
    async with box.files.open(given.path) as reader:
        size = reader.size
        if given.offset == 0 and given.path.lower().endswith(".png"):
            content = await reader.read(pictures.MOST_BYTES + 1)
            if not (why := await threads.JSON.do_for(call.host.tenant, pictures.why_not, content)):
                return CallToolResult(content=[answers.picture(content)])
            return answers.failed(f"{given.path} cannot be shown: {why}")
        skipped = 0
        while skipped < given.offset:
            piece = await reader.read(min(1 << 20, given.offset - skipped))
            if not piece:
                break
            skipped += len(piece)
        content = await reader.read(arguments.READ_BYTES)
    if b"\0" in content:
        return answers.failed(
            f"{given.path} is not text ({size:,} bytes)", "look into it with code"
        )
    end = given.offset + len(content)
    words = plain(content.decode("utf-8", "replace"))
    if end < size:
        words += f"\n[… {size - end:,} bytes more: offset={end} …]"
    return said(words)


async def write_file(call: Call, given: arguments.WriteFile) -> CallToolResult:
    box = call.shelf.find(given.sandbox_id).box
    content = given.content.encode("utf-8", "surrogatepass")
    if given.encoding == "base64":
        try:
            content = base64.b64decode(given.content, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidRequest("content: base64 cannot be read") from None
    await box.files.write(given.path, content)
    found = {"path": given.path, "bytes": len(content)}
    return said(f"{len(content):,} bytes are in {given.path}", found)


# -- pages -----------------------------------------------------------------------------------------


async def fetch_page(call: Call, given: arguments.FetchPage) -> CallToolResult:
    async def run(code: str, **options: Any) -> Result:
        return await call.host.once(call.asked, code, options)

    page = await fetch(
        run,
        given.url,
        network=tuple(given.network) or None,
        secrets=call.host.secrets,
        most_characters=given.most_characters,
    )
    if page.error:
        return answers.failed(f"{plain(page.url)}: {plain(page.error)}")
    head = f"{plain(page.url)}: status {page.status}, {plain(page.content_type)}"
    if page.title:
        head += f"\ntitle: {plain(page.title)}"
    if page.truncated:
        head += "\n[there is more of it]"
    links = "\n".join(plain(link) for link in page.links[:50])
    blocks = [head, plain(page.text), f"links:\n{links}" if links else ""]
    return CallToolResult(content=[answers.text(block) for block in blocks if block])
