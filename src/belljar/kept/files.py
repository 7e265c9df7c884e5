"""`box.files`: the files of a kept sandbox (S2).

Paths are those inside: absolute below /workspace, /data/output, /tmp and /data/input (which is read
only), or relative to /workspace. Content travels through the agent; no path of the guest is ever
opened on the host, and what the guest names becomes a path of the host only where the caller says.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal, overload

from belljar import threads
from belljar.conversation import Conversation
from belljar.errors import InvalidRequest, SandboxFileError, SandboxFileMissing
from belljar.kept import entries
from belljar.kept.content import PIECE, Reader, Writer, ask, let_go
from belljar.kept.entries import FileChange, FileInfo, garbled, yes
from belljar.linux_only import open_flags
from belljar.model import GIB, MIB

READ_BYTES = 64 * MIB
DOWNLOAD_BYTES = 4 * GIB
MOST_ENTRIES = 100_000
MOST_DEPTH = 64
"""Of what one call lists or watches. Deeper folders are reached by their own paths."""
_PAGE = 1000
_BATCH = 8 * PIECE
_RESTLESS = 100
_PATIENCE = 100_000
"""Answers that bring nothing: a guest may be slow, but it may not keep us busy for ever."""


class Files:
    def __init__(self, conversation: Conversation) -> None:
        self._talk = conversation

    # -- asking ----------------------------------------------------------------------------------

    async def stat(self, path: str) -> FileInfo:
        """What is at `path`; a link is described, not followed."""
        answer = await self._ask("stat", path=path)
        return entries.info(answer.get("entry"), entries.absolute(path))

    async def exists(self, path: str) -> bool:
        """Also true for a link that leads nowhere: the name is taken."""
        try:
            await self.stat(path)
        except SandboxFileMissing:
            return False
        except SandboxFileError as error:
            if error.kind in ("not_a_folder", "link"):
                return False
            raise
        return True

    async def list(
        self, path: str = "/workspace", *, depth: int = 1, most_entries: int = MOST_ENTRIES
    ) -> list[FileInfo]:
        """The entries of a folder by name; with `depth` those of the folders in it, too."""
        found: list[FileInfo] = []
        async with aclosing(self.entries(path, depth=depth)) as each:
            async for info in each:
                if len(found) >= most_entries:
                    raise SandboxFileError(
                        f"more than {most_entries} entries",
                        hint="raise most_entries, or take them one by one from entries()",
                        kind="too_many",
                    )
                found.append(info)
        return found

    async def entries(
        self, path: str = "/workspace", *, depth: int = 1
    ) -> AsyncGenerator[FileInfo, None]:
        """As `list`, one by one: a folder of any size costs a page of memory."""
        if not 1 <= depth <= MOST_DEPTH:
            raise InvalidRequest(f"a depth is a number from 1 to {MOST_DEPTH}")
        async with aclosing(self._folder(entries.absolute(path))) as folder:
            async for info in folder:
                yield info
                if depth > 1 and info.is_folder:
                    async with aclosing(self._inner(info.path, depth - 1)) as inner:
                        async for found in inner:
                            yield found

    async def _inner(self, path: str, depth: int) -> AsyncGenerator[FileInfo, None]:
        """A folder that was there a moment ago."""
        try:
            async with aclosing(self.entries(path, depth=depth)) as each:
                async for info in each:
                    yield info
        except SandboxFileError as error:
            if error.kind not in ("missing", "not_a_folder", "link", "forbidden"):
                raise

    async def watch(
        self, path: str = "/workspace", *, depth: int = MOST_DEPTH, interval_s: float = 0.25
    ) -> AsyncGenerator[FileChange, None]:
        """What happens below `path`, from the first step of the iteration on, until it is left.

        The agent compares what it sees every `interval_s`: what came and went in between is not
        told. It looks at up to 20 000 entries."""
        if not 1 <= depth <= MOST_DEPTH or interval_s < 0.01:
            raise InvalidRequest("a watch needs a depth from 1 to 64 and an interval_s over 0.01")
        folder = entries.absolute(path)
        handle = self._talk.next_id()
        fields: dict[str, Any] = {"ask_id": handle, "path": path, "depth": depth}
        empty = 0
        try:
            while True:
                answer = await self._ask("changes", **fields)
                fields = {"handle": handle}
                changes = answer.get("changes")
                if not isinstance(changes, list):
                    garbled("changes that are no list")
                for told in changes:
                    yield entries.change(told, folder)
                empty = 0 if changes else empty + 1
                if not yes(answer.get("more"), "more") or empty % _RESTLESS == 0:
                    await asyncio.sleep(interval_s)
        finally:
            let_go(self._talk, handle)

    # -- changing --------------------------------------------------------------------------------

    async def mkdir(self, path: str, *, exist_ok: bool = True) -> None:
        """Makes a folder, and those on the way to it."""
        await self._ask("mkdir", path=path, exist_ok=exist_ok)

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Removes a file, a link or an empty folder; with `recursive` whatever is in it."""
        try:
            await self._work("remove", path=path, recursive=recursive)
        except SandboxFileMissing:
            if not missing_ok:
                raise

    async def move(self, path: str, to: str, *, replace: bool = False) -> None:
        """Gives a file or a folder another path; folders on the way are made."""
        try:
            await self._work("move", path=path, to=to, replace=replace)
        except SandboxFileError as error:
            if error.kind != "elsewhere":
                raise
            await self._move_folder(path, to)

    # -- content ---------------------------------------------------------------------------------

    async def read(self, path: str, *, most_bytes: int = READ_BYTES) -> bytes:
        """The whole file, if it has no more than `most_bytes`."""
        async with self.open(path) as reader:
            self._check_size(reader.size, most_bytes)
            content = await reader.read(most_bytes + 1)
            self._check_size(len(content), most_bytes)
            return content

    async def read_text(self, path: str, *, most_bytes: int = READ_BYTES) -> str:
        """As UTF-8; what is not becomes U+FFFD."""
        return (await self.read(path, most_bytes=most_bytes)).decode("utf-8", "replace")

    async def write(
        self, path: str, data: bytes | bytearray | memoryview | str, *, mode: int | None = None
    ) -> None:
        """Writes a file, making the folders on the way; text as UTF-8.

        `mode`: permissions. A new file has 0o644 without it, another keeps those it has."""
        if isinstance(data, str):
            data = data.encode()
        async with self.open(path, "wb", permissions=mode) as writer:
            await writer.write(data)

    @overload
    def open(self, path: str, mode: Literal["rb"] = "rb") -> Reader: ...

    @overload
    def open(
        self, path: str, mode: Literal["wb", "ab", "xb"], *, permissions: int | None = None
    ) -> Writer: ...

    def open(
        self, path: str, mode: str = "rb", *, permissions: int | None = None
    ) -> Reader | Writer:
        """To be used as `async with files.open(path) as reader`, piece by piece."""
        if mode == "rb":
            return self._reader(path)
        if mode not in ("wb", "ab", "xb"):
            raise InvalidRequest(f"no such mode: {mode!r}", hint='"rb", "wb", "ab" or "xb"')
        if permissions is not None and not 0 <= permissions <= 0o777:
            raise InvalidRequest("permissions are a number from 0 to 0o777")
        return self._writer(path, mode, permissions)

    async def upload(
        self, local_path: str | os.PathLike[str], path: str, *, mode: int | None = None
    ) -> int:
        """Copies a file of the host into the sandbox; returns its bytes."""
        file = await threads.FILES.take_for(threads.OURS, os.close, _open_local, local_path)
        try:
            async with self.open(path, "wb", permissions=mode) as writer:
                reading = asyncio.ensure_future(
                    threads.FILES.do_for(threads.OURS, os.read, file, _BATCH)
                )
                try:
                    while batch := await asyncio.shield(reading):
                        reading = asyncio.ensure_future(
                            threads.FILES.do_for(threads.OURS, os.read, file, _BATCH)
                        )
                        await writer.write(batch)
                finally:
                    await asyncio.wait((reading,))  # before its descriptor is closed
            return writer.written
        finally:
            os.close(file)

    async def download(
        self,
        path: str,
        local_path: str | os.PathLike[str],
        *,
        most_bytes: int = DOWNLOAD_BYTES,
    ) -> int:
        """Copies a file of the sandbox to the host; returns its bytes.

        It has another name until it is whole. What was at `local_path` is replaced, and if that is
        a link, the link is."""
        target = Path(local_path)
        if target.is_dir():
            raise InvalidRequest(f"{target} is a folder", hint="name the file in it")
        async with self.open(path) as reader:
            self._check_size(reader.size, most_bytes)
            partial = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.part")
            new = ("O_WRONLY", "O_CREAT", "O_EXCL", "O_NOFOLLOW", "O_CLOEXEC")
            file = os.open(partial, open_flags(*new), 0o666)
            try:
                try:
                    size = await self._save(reader, file, most_bytes)
                finally:
                    os.close(file)
                os.replace(partial, target)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
            return size

    # -- how -------------------------------------------------------------------------------------

    def _reader(self, path: str) -> Reader:
        return Reader(self._talk, path)

    def _writer(self, path: str, mode: str, permissions: int | None) -> Writer:
        return Writer(self._talk, path, mode, permissions)

    async def _ask(self, op: str, **fields: Any) -> dict[str, Any]:
        return await ask(self._talk, op, **fields)

    async def _work(self, op: str, **fields: Any) -> None:
        """Something that the agent does in slices."""
        handle = self._talk.next_id()
        fields["ask_id"] = handle
        more = True
        try:
            for _ in range(_PATIENCE):
                answer = await self._ask(op, **fields)
                fields = {"handle": handle}
                more = yes(answer.get("more"), "more")
                if not more:
                    return
            raise SandboxFileError(f"{op} does not come to an end", kind="busy")
        except SandboxFileError as error:
            more = error.kind in ("busy", "garbled")
            raise
        finally:
            if more:
                let_go(self._talk, handle)

    async def _folder(self, path: str) -> AsyncGenerator[FileInfo, None]:
        handle = self._talk.next_id()
        fields: dict[str, Any] = {"ask_id": handle, "path": path}
        end = False
        last = b""
        empty = 0
        try:
            while not end:
                answer = await self._ask("list", limit=_PAGE, **fields)
                fields = {"handle": handle}
                rows = answer.get("entries")
                if not isinstance(rows, list) or len(rows) > _PAGE:
                    garbled("entries that are no list")
                end = yes(answer.get("end"), "an end")
                empty = 0 if rows else empty + 1
                if empty > _PATIENCE:
                    garbled("no entries and no end")
                for row in rows:
                    name = entries.name_of(row)
                    if (key := entries.key(name)) <= last:
                        garbled("names out of order")
                    last = key
                    yield entries.info(row, f"{path}/{name}")
        finally:
            if not end:
                let_go(self._talk, handle)

    async def _move_folder(self, path: str, to: str) -> None:
        """Between file systems, which the agent does for files only."""
        await self.mkdir(to)
        for info in await self.list(path):
            await self.move(info.path, f"{entries.absolute(to)}/{info.name}")
        await self.remove(path)

    async def _save(self, reader: Reader, file: int, most_bytes: int) -> int:
        size = 0
        batch: list[bytes] = []
        async for piece in reader:
            size += len(piece)
            self._check_size(size, most_bytes)
            batch.append(piece)
            if len(batch) * PIECE >= _BATCH:
                await threads.FILES.finish_for(threads.OURS, _write_all, file, batch)
                batch = []
        await threads.FILES.finish_for(threads.OURS, _write_all, file, batch)
        return size

    def _check_size(self, size: int, most_bytes: int) -> None:
        if size > most_bytes:
            raise SandboxFileError(
                f"the file has {size} bytes or more, over {most_bytes}",
                hint="raise most_bytes, or read it piece by piece with open()",
                kind="too_large",
            )


def _write_all(file: int, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        view = memoryview(piece)
        while view:
            view = view[os.write(file, view) :]


def _open_local(path: str | os.PathLike[str]) -> int:
    file = os.open(path, open_flags("O_RDONLY", "O_NONBLOCK", "O_CLOEXEC"))
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise InvalidRequest(f"{os.fspath(path)!r} is not a file", hint="upload takes files only")
    return file
