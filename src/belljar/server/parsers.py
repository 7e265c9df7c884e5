"""Large JSON is read in processes of their own.

The parser is one call into C, which keeps the interpreter to itself for as long as it takes, in
whatever thread: a third of a second for the worst 16 MiB, felt by every other request. Here such a
text costs the server no more than passing it on, and taking what was read from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from belljar import threads
from belljar.server.parser_process import LENGTH, READ
from belljar.server.strict_json import NotRead

PROCESSES = 2
LONGEST_S = 30.0
"""For one text. The worst takes a second; on a machine with too much to do, longer."""
_Answer = tuple[int, bytearray]
_PIECE_BYTES = 1 << 18
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
_START = """\
import sys
sys.path[:0] = [{path!r}]
from belljar.server.parser_process import main
main({descriptor})
"""


class Unread(Exception):
    """The server could not read it now: no fault of the text, as far as anybody knows."""


class Parsers:
    """Started when they are needed, and anew when one was lost."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(PROCESSES)
        self._idle: list[_Parser] = []
        self._parsing: set[asyncio.Task[_Answer]] = set()

    async def parse(self, text: Sequence[bytes]) -> bytearray:
        """What was read from its pieces, marshalled; NotRead if it is no JSON, else Unread."""
        await self._turns.acquire()
        # To its end, also if nobody waits for it any more: a process in the middle of something
        # would have to be ended, and whoever comes next would wait for a new one.
        task = asyncio.create_task(self._parse(text))
        self._parsing.add(task)
        task.add_done_callback(self._over)
        status, answer = await asyncio.shield(task)
        if status != READ:
            raise NotRead(answer.decode("utf-8", "replace"))
        return answer

    async def _parse(self, text: Sequence[bytes]) -> _Answer:
        try:
            if self._idle:
                with contextlib.suppress(ConnectionError):  # lost while it was idle
                    return await self._ask(self._idle.pop(), text)
            return await self._ask(await _Parser.start(), text)
        except OSError:  # too late, or none could be started
            raise Unread from None

    async def _ask(self, parser: _Parser, text: Sequence[bytes]) -> _Answer:
        try:
            async with asyncio.timeout(LONGEST_S):
                answer = await parser.ask(text)
        except BaseException:
            parser.kill()  # it may be in the middle of something
            raise
        self._idle.append(parser)
        return answer

    def _over(self, task: asyncio.Task[_Answer]) -> None:
        self._turns.release()
        self._parsing.discard(task)
        if not task.cancelled():
            task.exception()  # somebody was told, or nobody waits

    async def close(self) -> None:
        for task in self._parsing:
            task.cancel()
        await asyncio.gather(*self._parsing, return_exceptions=True)
        for parser in self._idle:
            parser.kill()
        self._idle.clear()


class _Parser:
    """Texts and answers are not copied on their way: others would feel it."""

    def __init__(self, process: subprocess.Popen[bytes], ours: socket.socket) -> None:
        self._process = process
        self._socket = ours

    @classmethod
    async def start(cls) -> _Parser:
        process, ours = await threads.ENGINES.take_for(threads.OURS, _discard, _launch)
        ours.setblocking(False)
        return cls(process, ours)

    async def ask(self, text: Sequence[bytes]) -> _Answer:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._socket, LENGTH.pack(sum(map(len, text))))
        for piece in text:
            await loop.sock_sendall(self._socket, piece)
        head = await self._read(LENGTH.size + 1)
        (length,) = LENGTH.unpack_from(head)
        return head[-1], await self._read(length - 1)

    async def _read(self, size: int) -> bytearray:
        loop = asyncio.get_running_loop()
        found = bytearray(size)
        left = memoryview(found)
        while left:
            count = await loop.sock_recv_into(self._socket, left[:_PIECE_BYTES])
            if not count:
                raise ConnectionResetError
            left = left[count:]
        return found

    def kill(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()


def _launch() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Both ends are made and closed here: nobody else can close one while its number is passed."""
    with contextlib.ExitStack() as undo:
        ours, theirs = socket.socketpair()
        undo.enter_context(ours)
        with theirs:
            script = _START.format(path=_PACKAGE_ROOT, descriptor=theirs.fileno())
            process = subprocess.Popen(
                [sys.executable, "-SsEB", "-c", script],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"LANG": "C.UTF-8"},
                cwd="/",
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        undo.pop_all()
    return process, ours


def _discard(made: tuple[subprocess.Popen[bytes], socket.socket]) -> None:
    process, ours = made
    ours.close()
    process.kill()
    process.wait()
