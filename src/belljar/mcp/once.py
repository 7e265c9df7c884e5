"""One run for a model: a sandbox that lives for it, so that values and pictures come back (S3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, cast

from belljar.core import Belljar
from belljar.errors import SandboxFileError, SandboxLost, UnknownLanguage, Unsupported
from belljar.holding import Held
from belljar.kept.sandbox import Sandbox
from belljar.mcp import pictures
from belljar.model import OutputFile, Result
from belljar.runtimes import languages

PLACES = ("/workspace", "/data/output")
DEPTH = 4
MOST_FILES = 200
MOST_PICTURES = 8


async def once(
    jar: Belljar, code: str, options: Mapping[str, Any], *, maximum_s: float | None = None
) -> Result:
    """Python is run as a cell of a notebook, everything else as a script. `maximum_s`: as that of
    `Sandbox`."""
    chosen = dict(options)
    if not _is_python(chosen.get("language", "python")) and not chosen.get("inputs"):
        return await jar.run(code, **chosen)
    box = Sandbox(cast(Belljar, _For(jar, code)), **chosen, max_runs=1, checkpoints=0)
    box.maximum_s = maximum_s
    try:
        await box.open()
    except Unsupported:  # this wall cannot keep a sandbox, not even for one run
        if chosen.get("inputs"):
            raise
        return await jar.run(code, **chosen)
    try:
        result = await box.run(code)
        given = {f"{PLACES[0]}/{name}" for name in chosen.get("files") or ()}
        files = await _left(box, given) if result.state_kept else ()
    finally:
        await box.close()
    # There is nothing to go back to, and no state that could be asked for.
    return dataclasses.replace(result, files=files, run_id=None, state_kept=None)


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


async def _left(box: Sandbox, given: set[str]) -> tuple[OutputFile, ...]:
    """Names of files, and the contents of pictures."""
    found: list[OutputFile] = []
    drawn = 0
    try:
        for place in PLACES:
            async with aclosing(box.files.entries(place, depth=DEPTH)) as entries:
                async for info in entries:
                    if len(found) >= MOST_FILES:
                        return tuple(found)
                    if not info.is_file or info.path in given:
                        continue
                    content = None
                    if info.name.lower().endswith(".png") and drawn < MOST_PICTURES:
                        drawn += 1
                        content = await _read(box, info.path)
                    found.append(OutputFile(path=info.path, size=info.size, content=content))
    except (SandboxFileError, SandboxLost):
        pass  # the guest may say what it likes about its files; its result is known
    return tuple(found)


async def _read(box: Sandbox, path: str) -> bytes | None:
    try:
        return await box.files.read(path, most_bytes=pictures.MOST_BYTES)
    except SandboxFileError:
        return None
