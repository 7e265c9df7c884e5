"""One run for a model: a sandbox that lives for it, so that values and pictures come back (S3)."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, cast

from belljar.core import Belljar
from belljar.errors import SandboxFileError, SandboxLost, UnknownLanguage, Unsupported
from belljar.holding import Held
from belljar.kept import events
from belljar.kept.sandbox import Sandbox
from belljar.mcp import pictures
from belljar.model import OutputFile, Result, Usage
from belljar.runtimes import languages

PLACES = ("/workspace", "/data/output")
DEPTH = 4
MOST_FILES = 200
MOST_PICTURES = 8
COLLECT_S = 3.0
"""How long files are looked for, after the code has ended."""


async def once(
    jar: Belljar, code: str, options: Mapping[str, Any], *, maximum_s: float | None = None
) -> Result:
    """Python is run as a cell of a notebook, everything else as a script. `options`: those of
    `Belljar.run`, `on_usage` among them. `maximum_s`: as that of `Sandbox`."""
    chosen = dict(options)
    on_usage: Callable[[Usage], None] | None = chosen.pop("on_usage", None)
    if not _is_python(chosen.get("language", "python")) and not chosen.get("inputs"):
        return await jar.run(code, **chosen, on_usage=on_usage)
    box = Sandbox(cast(Belljar, _For(jar, code)), **chosen, max_runs=1, checkpoints=0)
    box.maximum_s = maximum_s
    try:
        await box.open()
    except Unsupported:  # this wall cannot keep a sandbox, not even for one run
        if chosen.get("inputs"):
            raise
        return await jar.run(code, **chosen, on_usage=on_usage)
    try:
        if on_usage:
            on_usage(Usage())  # from here on it may use something
        result = await box.run(code, on_event=events.telling(on_usage) if on_usage else None)
        given = {f"{PLACES[0]}/{name}" for name in chosen.get("files") or ()}
        found: list[OutputFile] = []
        warnings = result.warnings
        if result.state_kept and not await _collected(box, given, found):
            warnings = (*warnings, f"the search for files stopped after {COLLECT_S:g} s")
    finally:
        await box.close()
    # There is nothing to go back to, and no state that could be asked for.
    return dataclasses.replace(
        result,
        files=tuple(found),
        usage=_with_the_rest(result.usage, box.all_cpu_ms()),
        warnings=warnings,
        run_id=None,
        state_kept=None,
    )


def _with_the_rest(usage: Usage, cpu_ms: float | None) -> Usage:
    """What the code left running used until the end, too, as the trail says of the sandbox; where
    the wall can tell."""
    return usage if cpu_ms is None else dataclasses.replace(usage, cpu_ms=max(usage.cpu_ms, cpu_ms))


class _For:
    """A Belljar whose sandboxes are made for some code: it is judged, and its environment and warm
    interpreter are chosen, before there is one."""

    def __init__(self, jar: Belljar, code: str) -> None:
        self._jar, self._code = jar, code

    async def keep(self, options: Mapping[str, object], **more: Any) -> Held:
        return await self._jar.keep(options, code=self._code, **more)


def _is_python(language: str) -> bool:
    try:
        return languages.get(language).name == "python"
    except UnknownLanguage:
        return False


async def _collected(box: Sandbox, given: set[str], found: list[OutputFile]) -> bool:
    """Whether the search was completed in time: what the code left running, or a million entries,
    could make it take forever."""
    looking = asyncio.ensure_future(_left(box, given, found))
    looking.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        await asyncio.wait((looking,), timeout=COLLECT_S)
        if looking.done():
            looking.result()
            return True
        return False
    finally:
        looking.cancel()  # and it is not waited for: the sandbox is ended next


async def _left(box: Sandbox, given: set[str], found: list[OutputFile]) -> None:
    """Names of files, and the contents of pictures."""
    drawn = 0
    try:
        for place in PLACES:
            async with aclosing(box.files.entries(place, depth=DEPTH)) as entries:
                async for info in entries:
                    if len(found) >= MOST_FILES:
                        return
                    if not info.is_file or info.path in given:
                        continue
                    content = None
                    if info.name.lower().endswith(".png") and drawn < MOST_PICTURES:
                        drawn += 1
                        content = await _read(box, info.path)
                    found.append(OutputFile(path=info.path, size=info.size, content=content))
    except (SandboxFileError, SandboxLost):
        pass  # the guest may say what it likes about its files; its result is known


async def _read(box: Sandbox, path: str) -> bytes | None:
    try:
        return await box.files.read(path, most_bytes=pictures.MOST_BYTES)
    except SandboxFileError:
        return None
