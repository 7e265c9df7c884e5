"""A program in a sandbox at a server: its output is followed here, so that it can be asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from belljar.client import results
from belljar.client.connection import Connection, Told
from belljar.errors import BelljarError, Busy, InvalidRequest, ServerRefused
from belljar.kept.processes import SIGKILL, Process
from belljar.model import Limits, Result

PIECE = 1 << 20
UNREAD_S = 0.1
"""Until a program that has not read its standard input is asked again."""
_STREAMS = {"stdout": 1, "stderr": 2}


class _Way:
    """Stands where a sandbox's own conversation is."""

    lost = ""

    def __init__(self, process_id: int) -> None:
        self._process_id = process_id

    def next_id(self) -> int:
        return self._process_id

    def ignore(self, channel: int) -> None:
        """Nothing comes by another way."""


class RemoteProcess(Process):
    def __init__(
        self, connection: Connection, sandbox: str, told: Mapping[str, Any], limits: Limits
    ) -> None:
        self._way = _Way(told["process_id"])
        super().__init__(self._way, told["argv"], limits)  # type: ignore[arg-type]
        self.pid = told["pid"]
        self.terminal = told["terminal"]
        self._connection = connection
        self._path = f"{sandbox}/processes/{self.process_id}"
        self._final: Result | None = None
        self._following: asyncio.Task[None] | None = None

    @classmethod
    async def begin(
        cls, connection: Connection, sandbox: str, said: Mapping[str, Any], limits: Limits
    ) -> RemoteProcess:
        happening = connection.events("POST", f"{sandbox}/processes", said)
        try:
            name, told = await anext(happening)
        except StopAsyncIteration:
            raise ServerRefused("the server told nothing of the program") from None
        if name != "started":
            raise ServerRefused("the server told nothing of the program")
        process = cls(connection, sandbox, told, limits)
        process._following = asyncio.ensure_future(process._follow(happening))
        return process

    @classmethod
    def known(cls, connection: Connection, sandbox: str, told: Mapping[str, Any]) -> RemoteProcess:
        """One that somebody else has started."""
        process = cls(connection, sandbox, told, Limits())
        happening = connection.events("GET", f"{process._path}/output")
        process._following = asyncio.ensure_future(process._follow(happening))
        return process

    async def write(self, data: str | bytes) -> None:
        """In pieces, each as soon as the server takes it."""
        given = data.encode() if isinstance(data, str) else data
        for start in range(0, len(given), PIECE):
            said = {"data": results.content("stdin", given[start : start + PIECE])}
            while self.running:
                try:
                    await self._say("stdin", said)
                    break
                except Busy:
                    await asyncio.sleep(UNREAD_S)

    async def close_stdin(self) -> None:
        await self._say("stdin", {"close": True})

    async def kill(self, number: int = SIGKILL) -> None:
        if self.running:
            await self._say("signal", {"number": int(number)})

    async def resize(self, rows: int, columns: int) -> None:
        for name, value in (("rows", rows), ("columns", columns)):
            if type(value) is not int or not 0 < value < 10_000:
                raise InvalidRequest(f"{name}: must be a whole number of 1 to 9999, not {value!r}")
        await self._say("resize", {"rows": rows, "columns": columns})

    def result(self) -> Result:
        return self._final or super().result()

    async def leave(self) -> None:
        """Follows it no longer."""
        if self._following and not self._following.done():
            self._following.cancel()
            await asyncio.wait((self._following,))

    async def _say(self, what: str, said: Mapping[str, Any]) -> None:
        try:
            await self._connection.ask("POST", f"{self._path}/{what}", said)
        except ServerRefused as error:
            if error.code != "not_found":
                raise

    async def _follow(self, happening: AsyncGenerator[Told, None]) -> None:
        why = "the server told no end of it"
        try:
            async with aclosing(happening):
                async for name, told in happening:
                    if name == "output":
                        self._receive(_STREAMS[told["stream"]], results.printed(told))
                    elif name == "exit":
                        self._final = results.result(told)
                        self._hear({"ended": {"exit_code": told["exit_code"]}})
                        return
        except BelljarError as error:
            why = error.message
        except asyncio.CancelledError:
            why = "it is not followed any more"
        self._way.lost = why
        self._tell()
