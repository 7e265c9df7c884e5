"""`box.files` of a sandbox at a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from types import TracebackType
from typing import Any

from belljar.client.connection import Connection
from belljar.errors import (
    InvalidRequest,
    SandboxFileError,
    SandboxFileMissing,
    SandboxLost,
    ServerUnreachable,
)
from belljar.kept.content import Reader, Writer
from belljar.kept.entries import FileChange, FileInfo
from belljar.kept.files import MOST_DEPTH, Files

AHEAD = 4
"""Pieces that wait to be sent."""
PIECE = 1 << 20

Guard = Callable[[], AbstractAsyncContextManager[None]]
"""Translates what the server says of the sandbox."""


class RemoteFiles(Files):
    def __init__(self, connection: Connection, path: str, guard: Guard) -> None:
        self._connection = connection
        self._path = path
        self._guard = guard

    async def stat(self, path: str) -> FileInfo:
        return FileInfo(**await self._say("GET", "/stat", path=path))

    async def entries(
        self, path: str = "/workspace", *, depth: int = 1
    ) -> AsyncGenerator[FileInfo, None]:
        _check_depth(depth)
        query = {"path": path, "depth": depth}
        async with self._guard():
            happening = self._connection.events("GET", self._path, query=query)
            async with aclosing(happening):
                async for _, told in happening:
                    for entry in told["entries"]:
                        yield FileInfo(**entry)

    async def watch(
        self, path: str = "/workspace", *, depth: int = MOST_DEPTH, interval_s: float = 0.25
    ) -> AsyncGenerator[FileChange, None]:
        if interval_s < 0.01:
            raise InvalidRequest("a watch needs an interval_s over 0.01")
        _check_depth(depth)
        query = {"path": path, "depth": depth, "interval_s": interval_s}
        async with self._guard():
            happening = self._connection.events("GET", f"{self._path}/changes", query=query)
            async with aclosing(happening):
                async for what, told in happening:
                    info = FileInfo(**told["info"]) if told["info"] else None
                    yield FileChange(what=what, path=told["path"], info=info)  # type: ignore[arg-type]

    async def mkdir(self, path: str, *, exist_ok: bool = True) -> None:
        await self._say("POST", "/mkdir", path=path, exist_ok=exist_ok)

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> None:
        try:
            await self._say("DELETE", "", path=path, recursive=recursive)
        except SandboxFileMissing:
            if not missing_ok:
                raise

    async def move(self, path: str, to: str, *, replace: bool = False) -> None:
        await self._say("POST", "/move", path=path, to=to, replace=replace)

    def _reader(self, path: str) -> Reader:
        return RemoteReader(self._connection, self._path, path, self._guard)

    def _writer(self, path: str, mode: str, permissions: int | None) -> Writer:
        return RemoteWriter(self._connection, self._path, path, mode, permissions, self._guard)

    async def _say(self, method: str, below: str, **query: Any) -> dict[str, Any]:
        async with self._guard():
            return await self._connection.ask(method, self._path + below, query=query)


def _check_depth(depth: int) -> None:
    if not 1 <= depth <= MOST_DEPTH:
        raise InvalidRequest(f"a depth is a number from 1 to {MOST_DEPTH}")


class RemoteReader(Reader):
    def __init__(self, connection: Connection, base: str, path: str, guard: Guard) -> None:
        self._connection = connection
        self._base = base
        self._path = path
        self._guard = guard
        self._stack = AsyncExitStack()
        self._pieces: AsyncIterator[bytes] | None = None
        self._rest = b""
        self.size = 0

    async def __aenter__(self) -> Reader:
        try:
            await self._stack.enter_async_context(self._guard())
            query = {"path": self._path}
            headers, self._pieces = await self._stack.enter_async_context(
                self._connection.receive(f"{self._base}/content", query=query)
            )
        except BaseException as error:
            if not await self._stack.__aexit__(type(error), error, error.__traceback__):
                raise
        self.size = int(headers.get("x-belljar-size", 0))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def piece(self) -> bytes:
        if self._rest:
            piece, self._rest = self._rest, b""
            return piece
        assert self._pieces is not None
        return await anext(self._pieces, b"")


class RemoteWriter(Writer):
    def __init__(
        self,
        connection: Connection,
        base: str,
        path: str,
        how: str,
        permissions: int | None,
        guard: Guard,
    ) -> None:
        self._connection = connection
        self._address = f"{base}/content"
        self._query = {
            "path": path,
            "mode": permissions,
            "append": how == "ab",
            "exclusive": how == "xb",
        }
        self._guard = guard
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue(AHEAD)
        self._sending: asyncio.Task[dict[str, Any]] | None = None
        self.written = 0

    async def __aenter__(self) -> Writer:
        self._sending = asyncio.ensure_future(self._send())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        sending, self._sending = self._sending, None
        assert sending is not None
        if kind is not None:
            sending.cancel()  # the server sees that it broke off
            await asyncio.wait((sending,))
            return
        try:
            await self._put(sending, None)
            told = await sending
        except asyncio.CancelledError:
            sending.cancel()
            raise
        if told["size"] != self.written:
            raise SandboxFileError("another number of bytes was written than given", kind="os")

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Waits while the server is slower; what it refuses is told here or at the end."""
        if self._sending is None:
            raise SandboxFileError("the file is not open", kind="closed")
        view = memoryview(data).cast("B")
        for start in range(0, len(view), PIECE):
            piece = bytes(view[start : start + PIECE])
            await self._put(self._sending, piece)
            self.written += len(piece)

    async def _put(self, sending: asyncio.Task[dict[str, Any]], piece: bytes | None) -> None:
        putting = asyncio.ensure_future(self._waiting.put(piece))
        try:
            await asyncio.wait((putting, sending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            putting.cancel()
        if sending.done():
            sending.result()  # raises what the server said

    async def _send(self) -> dict[str, Any]:
        try:
            async with self._guard():
                return await self._connection.send(
                    "PUT", self._address, self._pieces(), query=self._query
                )
        except ServerUnreachable as error:
            raise SandboxLost(f"the way to the sandbox is gone: {error.message}") from error

    async def _pieces(self) -> AsyncIterator[bytes]:
        while (piece := await self._waiting.get()) is not None:
            yield piece
