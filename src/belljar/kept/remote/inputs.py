"""Inputs of a sandbox at a server: contents travel with the request, files are uploaded before."""

from __future__ import annotations

import io
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from belljar import threads
from belljar.client import results
from belljar.client.connection import Connection
from belljar.errors import InvalidRequest
from belljar.model import MIB

INLINE_BYTES = MIB
"""Contents above that are uploaded, too: a request has its bounds."""
PIECE = MIB


async def sent(
    connection: Connection, given: Mapping[str, Any], uploaded: list[str]
) -> dict[str, Any]:
    """As the server takes them; `uploaded` gets the ids of datasets that are ours to remove."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, (str, os.PathLike)):
            for below, path in await threads.FILES.do_for(threads.OURS, _files, name, Path(value)):
                found[below] = {"dataset": await upload(connection, path, uploaded)}
        elif isinstance(value, bytes) and len(value) > INLINE_BYTES:
            found[name] = {"dataset": await _add(connection, "input", io.BytesIO(value), uploaded)}
        else:
            found[name] = results.content(f"inputs[{name!r}]", value)
    return found


def _files(name: str, path: Path) -> list[tuple[str, Path]]:
    """A file, or those of a folder; links in a folder are left out, as they are here."""
    if path.is_file():
        return [(name, path)]
    if not path.is_dir():
        raise InvalidRequest(
            f"inputs[{name!r}]: {str(path)!r} is neither a file nor a folder",
            hint="a text or a Path is a path on this machine; give content as bytes",
        )
    return [
        (f"{name}/{found.relative_to(path).as_posix()}", found)
        for found in sorted(path.rglob("*"))
        if found.is_file() and not found.is_symlink()
    ]


async def upload(connection: Connection, path: Path, uploaded: list[str]) -> str:
    """A file of this machine becomes a dataset; its id."""
    opened = threads.FILES.take_for(
        threads.OURS, lambda file: file.close(), lambda: path.open("rb")
    )
    with await opened as file:
        return await _add(connection, path.name[:200] or "input", file, uploaded)


async def _add(connection: Connection, name: str, file: BinaryIO, uploaded: list[str]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    told = await connection.send(
        "POST", "/v1/datasets", _pieces(file), query={"name": name}, size=size
    )
    identity: str = told["id"]
    uploaded.append(identity)
    return identity


async def _pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    while piece := await threads.FILES.do_for(threads.OURS, file.read, PIECE):
        yield piece
