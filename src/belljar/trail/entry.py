"""What the service holds while something runs: its attempt in the trail, to be ended once.

No database here: without a trail this is all that is loaded of it, and it does nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Awaitable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from belljar.errors import Busy, Closed, InvalidRequest, TrailError
from belljar.model import Caller, Request, Result
from belljar.settings import Settings

if TYPE_CHECKING:
    from belljar.network import Egress
    from belljar.trail.writer import Writer

INLINE_BYTES = 1 << 20
"""More than that is hashed on another thread: the loop has other runs to serve."""


class Book(Protocol):
    """What takes lines down; see `writer`."""

    def put(self, kind: str, entry: Entry, content: dict[str, Any]) -> Awaitable[None]:
        """Durable when the awaited thing returns; TrailError when it could not be written. It is
        written also if nobody waits."""


class Entry:
    """`async with` it: what leaves the block with an exception has ended so.

    Without a book it is never written."""

    def __init__(
        self, book: Book | None = None, content: dict[str, Any] | None = None, *, tenant: str = ""
    ) -> None:
        self.id = os.urandom(16).hex()
        self.seq = 0
        """Which line the attempt became; the book's to set."""
        self.tenant: str = (content or {}).get("tenant") or tenant
        self._sandbox: str = (content or {}).get("sandbox") or ""
        self._book = book
        self._over = book is None
        self._attempt = book.put("attempt", self, content or {}) if book else None

    async def written(self) -> None:
        """Nothing may run before this has returned."""
        if self._attempt is not None:
            attempt, self._attempt = self._attempt, None
            await attempt

    @property
    def over(self) -> bool:
        return self._over

    def tried(self, egress: Egress, *, run: str = "") -> Awaitable[None] | None:
        """An attempt to reach something meanwhile, on its way into the trail; None if this is over,
        or never written. `run`: which one of a kept sandbox, if that is known."""
        if self._over or self._book is None:
            return None
        from belljar.trail import records

        more = {"tenant": self.tenant, "sandbox": self._sandbox, "run": run}
        return self._book.put("egress", self, records.tried(egress, **more))

    async def end(self, result: Result) -> Result:
        """The result as it may be told: it is in the trail."""
        if self._over or self._book is None:
            return result
        from belljar.trail import records

        self._over = True
        if result.execution_id != self.id:
            result = dataclasses.replace(result, execution_id=self.id)
        if sum(len(file.content or b"") for file in result.files) > INLINE_BYTES:
            content = await asyncio.to_thread(records.answered, result)
        else:
            content = records.answered(result)
        await self._last(content)
        return result

    async def close(self, status: str = "ok", **more: Any) -> None:
        """The end of something without a result."""
        if self._over or self._book is None:
            return
        from belljar.trail import records

        self._over = True
        await self._last(records.ended(status, **more))

    async def fail(self, error: BaseException) -> None:
        """The end of something that raised. What is cancelled does not wait for the trail."""
        if self._over or self._book is None or isinstance(error, TrailError):
            return
        from belljar.trail import records

        self._over = True
        told = records.ended(_status(error), error=_name(error))
        if isinstance(error, Exception):
            await self._last(told)
        else:
            self._book.put("end", self, told)

    async def _last(self, content: dict[str, Any]) -> None:
        """On its way before the attempt is waited for, if that has not been done: one transaction
        has both."""
        assert self._book is not None
        ending = self._book.put("end", self, content)
        await self.written()
        await ending

    async def __aenter__(self) -> Entry:
        await self.written()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
        else:
            await self.fail(error)


class Recorder:
    """Who asked and where that is written, for everything that happens in one place."""

    def __init__(
        self, book: Book | None, settings: Settings, caller: Caller, *, sandbox: str = ""
    ) -> None:
        self._book = book
        self._settings = settings
        self._caller = caller
        self.sandbox = sandbox

    @property
    def on(self) -> bool:
        return self._book is not None

    def of(self, sandbox: str) -> Recorder:
        """The same for another sandbox."""
        return Recorder(self._book, self._settings, self._caller, sandbox=sandbox)

    async def entry(self, action: str, request: Request, **more: Any) -> Entry:
        """An attempt that is on its way into the trail; see `Entry.written`."""
        if self._book is None:
            return Entry(tenant=self._caller.tenant)
        from belljar.trail import records

        most_text = self._settings.code_bytes if self._settings.trail_text else 0
        more = {"sandbox": self.sandbox, **more}

        def content() -> dict[str, Any]:
            return records.asked(action, request, self._caller, most_text=most_text, **more)

        if records.size(request) > INLINE_BYTES:
            return Entry(self._book, await asyncio.to_thread(content))
        return Entry(self._book, content())


class Recorders:
    """The trail of one Belljar, opened, and loaded, at its first use."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._book: asyncio.Task[Writer] | None = None

    async def get(self, caller: Caller, *, sandbox: str = "") -> Recorder:
        if not self._settings.trail:
            return Recorder(None, self._settings, caller)
        if self._book is None or (self._book.done() and self._book.exception()):
            self._book = asyncio.ensure_future(asyncio.to_thread(_open, self._settings))
        book = await asyncio.shield(self._book)
        return Recorder(book, self._settings, caller, sandbox=sandbox)

    async def close(self) -> None:
        if self._book and (await asyncio.wait([self._book])) and not self._book.exception():
            await asyncio.to_thread(self._book.result().close)


def _open(settings: Settings) -> Writer:
    from belljar.trail.opening import open_writer

    return open_writer(settings)


def _status(error: BaseException) -> str:
    if not isinstance(error, Exception):
        return "cancelled"
    return "refused" if isinstance(error, (InvalidRequest, Busy, Closed)) else "failed"


def _name(error: BaseException) -> str:
    """Not its message: that may quote what was asked."""
    return type(error).__name__ if isinstance(error, Exception) else ""
