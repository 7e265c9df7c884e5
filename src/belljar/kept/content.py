"""Content of a sandbox's files, piece by piece: a file of any size costs the host a few MB."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from belljar.conversation import Conversation, Refusal
from belljar.errors import BelljarError, SandboxFileError
from belljar.kept.entries import garbled, translated, whole, yes

PIECE = 256 * 1024
AHEAD = 8
"""Pieces that are asked for before they are needed: the guest reads while the host writes."""
STATE_EVERY = 4 * 1024 * 1024
"""Bytes after which the guest is asked whether the disk is full: it would not say so by itself."""
_FILE_STREAM = 3

_T = TypeVar("_T")
_letting_go: set[asyncio.Task[None]] = set()


async def ask(talk: Conversation, op: str, **fields: Any) -> dict[str, Any]:
    try:
        return await talk.ask(op, **fields)
    except Refusal as refusal:
        raise translated(refusal) from None


def let_go(talk: Conversation, handle: int) -> None:
    """Closes something in the sandbox without waiting for it; also while being cancelled."""
    task = asyncio.ensure_future(_close(talk, handle))
    _letting_go.add(task)
    task.add_done_callback(_letting_go.discard)


async def _close(talk: Conversation, handle: int) -> None:
    try:
        await talk.ask("close", handle=handle)
    except (Refusal, BelljarError):
        pass


def _in_background(work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    """Nobody may come for its result: its failure is then nobody's."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


class _Piece:
    """Takes what arrives for one question, and no more of it than was asked for."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._chunks: list[bytes] = []
        self._size = 0

    def receive(self, stream: int, data: bytes) -> None:
        self._size += len(data) if stream == _FILE_STREAM else self._most + 1
        if self._size <= self._most:
            self._chunks.append(data)

    def content(self, answer: dict[str, Any]) -> bytes:
        if whole(answer.get("bytes"), "a count of bytes") != self._size or self._size > self._most:
            garbled("other content than it announced")
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)


class Reader:
    """`async with files.open(path) as reader: async for piece in reader: …`"""

    def __init__(self, talk: Conversation, path: str) -> None:
        self._talk = talk
        self._path = path
        self._handle = 0
        self._first: bytes | None = None
        self._rest = b""
        self._ahead: deque[asyncio.Task[tuple[bytes, bool]]] = deque()
        self._asked = 0
        self._ended = False
        self.size = 0
        """When it was opened, by the guest's word."""

    async def __aenter__(self) -> Reader:
        piece = _Piece(PIECE)
        handle = self._talk.next_id()
        try:
            answer = await ask(
                self._talk,
                "read_open",
                ask_id=handle,
                receive=piece.receive,
                path=self._path,
                bytes=PIECE,
            )
        except asyncio.CancelledError:
            let_go(self._talk, handle)
            raise
        self._first = piece.content(answer)
        self.size = whole(answer.get("size"), "a size")
        self._ended = yes(answer.get("end"), "an end")
        self._handle = 0 if self._ended else handle
        self._asked = len(self._first)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """The agent forgets it, too."""
        self._finish()

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> bytes:
        piece = await self.piece()
        if not piece:
            raise StopAsyncIteration
        return piece

    async def read(self, most_bytes: int) -> bytes:
        """The next bytes, fewer only where the file ends."""
        pieces: list[bytes] = []
        while most_bytes > 0 and (piece := await self.piece()):
            if len(piece) > most_bytes:
                piece, self._rest = piece[:most_bytes], piece[most_bytes:]
            most_bytes -= len(piece)
            pieces.append(piece)
        return b"".join(pieces)

    async def piece(self) -> bytes:
        """What comes next, of any size; nothing at the end."""
        if self._rest:
            piece, self._rest = self._rest, b""
            return piece
        if not self._ended:
            self._ask_ahead()
        if self._first:
            piece, self._first = self._first, None
            return piece
        if self._ended:
            return b""
        piece, end = await self._ahead.popleft()
        if end:
            self._ended = True
            self._finish()
        elif len(piece) != PIECE:
            garbled("a piece that is too short")
        return piece

    def _ask_ahead(self) -> None:
        """No further than the file was long; a file that has grown since goes piece by piece."""
        while not self._ahead or (len(self._ahead) < AHEAD and self._asked < self.size):
            self._ahead.append(_in_background(self._read(self._asked)))
            self._asked += PIECE

    async def _read(self, offset: int) -> tuple[bytes, bool]:
        piece = _Piece(PIECE)
        answer = await ask(
            self._talk,
            "read",
            receive=piece.receive,
            handle=self._handle,
            offset=offset,
            bytes=PIECE,
        )
        return piece.content(answer), yes(answer.get("end"), "an end")

    def _finish(self) -> None:
        for task in self._ahead:
            task.cancel()
        self._ahead.clear()
        if self._handle:
            let_go(self._talk, self._handle)
            self._handle = 0


class Writer:
    """`async with files.open(path, "wb") as writer: await writer.write(data)`

    Leaving the block with an exception leaves no new file behind."""

    def __init__(self, talk: Conversation, path: str, how: str, mode: int | None) -> None:
        self._talk = talk
        self._path = path
        self._how = how
        self._mode = mode
        self._handle = 0
        self._unseen = 0
        self._state: asyncio.Task[dict[str, Any]] | None = None
        self.written = 0

    async def __aenter__(self) -> Writer:
        handle = self._talk.next_id()
        try:
            await ask(
                self._talk,
                "write_open",
                ask_id=handle,
                path=self._path,
                mode=self._mode,
                append=self._how == "ab",
                exclusive=self._how == "xb",
            )
        except asyncio.CancelledError:
            let_go(self._talk, handle)
            raise
        self._handle = handle
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        handle, self._handle = self._handle, 0
        if self._state:
            self._state.cancel()
        if kind is not None:
            let_go(self._talk, handle)
            return
        try:
            answer = await ask(self._talk, "write_close", handle=handle)
        except asyncio.CancelledError:
            let_go(self._talk, handle)
            raise
        if whole(answer.get("written"), "a count of bytes") != self.written:
            garbled("that it wrote another number of bytes than it was given")

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Waits while the sandbox is slower; a full disk is told within the next few MB."""
        if not self._handle:
            raise SandboxFileError("the file is not open", kind="closed")
        view = memoryview(data).cast("B")
        for start in range(0, len(view), STATE_EVERY):
            piece = bytes(view[start : start + STATE_EVERY])
            await self._talk.send(self._handle, piece)
            self.written += len(piece)
            self._unseen += len(piece)
            if self._unseen >= STATE_EVERY:
                await self._check()

    async def _check(self) -> None:
        """Looks at the last answer and asks again, so that nobody waits for this one."""
        self._unseen = 0
        state, self._state = self._state, None
        if state:
            await state
        self._state = _in_background(ask(self._talk, "write_state", handle=self._handle))
