"""What the service holds while something runs: its attempt in the trail, to be ended once.

No database here: without a trail this is all that is loaded of it, and it does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from belljar import threads
from belljar.errors import Busy, Closed, InvalidRequest, SandboxEnded, TrailError
from belljar.model import Caller, Request, Result, Usage
from belljar.settings import Settings

if TYPE_CHECKING:
    from belljar.network import Egress
    from belljar.trail.writer import Writer

INLINE_BYTES = 1 << 20
"""More than that is hashed on another thread: the loop has other runs to serve."""

Content = dict[str, Any]
Said = Content | Callable[[], Content]
"""What a line is to say, or what makes it, on another thread."""


class Book(Protocol):
    """What takes lines down; see `writer`."""

    def put(
        self, kind: str, entry: Entry, said: Said, *, asked: Said | None = None
    ) -> Awaitable[None]:
        """Durable when the awaited thing returns; TrailError when it could not be written. It is
        written also if nobody waits: whoever calls this may be cancelled from here on. `asked`:
        of an end, the attempt that is still to be written."""

    def counted(self, entry: Entry, ended: Content) -> bool:
        """Whether an attempt that ended before it began is told by its number alone."""

    def trouble(self) -> str:
        """Why nothing can be written now; empty if it can."""


class CallbackFailed(Exception):
    """What the caller's own `on_output`, `on_usage` or `on_event` raised, on its way to the caller:
    no fault of the host's."""

    def __init__(self, failure: Exception) -> None:
        super().__init__(repr(failure))
        self.failure = failure


class Entry:
    """`async with` it: what leaves the block with an exception has ended so. Nothing may run before
    `written` has returned; what is refused before that is written at once, attempt and end.

    Without a book it is never written. Nothing is awaited between the moment it is over and the
    moment its end is on its way: a caller who is cancelled leaves no attempt open."""

    def __init__(
        self,
        book: Book | None = None,
        said: Said | None = None,
        *,
        large: bool = False,
        action: str = "",
        tenant: str = "",
        sandbox: str = "",
    ) -> None:
        """`large`: what it says is made on another thread."""
        self.id = os.urandom(16).hex()
        self.seq = 0
        """Which line the attempt became; the book's to set."""
        self.slow = False
        """A line of it was made on another thread; the book's, to keep their order."""
        self.usage: Usage | None = None
        """What was used so far, should it end without a result."""
        self.action = action
        self.tenant = tenant
        self._sandbox = sandbox
        self._book = book
        self._over = book is None
        self._large = large
        self._asked: Said | None = None if book is None else said or {}
        """Until it is on its way."""
        self._attempt: Awaitable[None] | None = None

    def begin(self) -> None:
        """Its attempt is on its way into the trail: whatever could be refused cheaply was not."""
        if self._book is not None and (asked := self._made()) is not None:
            self._attempt = self._book.put("attempt", self, asked)

    async def written(self) -> None:
        """Nothing may run before this has returned."""
        self.begin()
        if self._attempt is not None:
            attempt, self._attempt = self._attempt, None
            await attempt

    def _made(self) -> Said | None:
        """What its attempt says, once."""
        asked, self._asked = self._asked, None
        return asked if asked is None or isinstance(asked, dict) or self._large else asked()

    @property
    def over(self) -> bool:
        return self._over

    def tried(self, egress: Egress, *, run: str = "") -> Awaitable[None] | None:
        """An attempt to reach something meanwhile, on its way into the trail; None if this is over,
        or never written. `run`: which one of a kept sandbox, if that is known."""
        if self._over or self._book is None:
            return None
        from belljar.trail import records

        self.begin()
        more = {"tenant": self.tenant, "sandbox": self._sandbox, "run": run}
        return self._book.put("egress", self, records.tried(egress, **more))

    async def end(self, result: Result) -> Result:
        """The result as it may be told: it is in the trail."""
        if self._over or self._book is None:
            return result
        from belljar.trail import records

        if result.execution_id != self.id:
            result = dataclasses.replace(result, execution_id=self.id)
        large = sum(len(file.content or b"") for file in result.files) > INLINE_BYTES
        await self._last((lambda: records.answered(result)) if large else records.answered(result))
        return result

    async def close(self, status: str = "ok", **more: Any) -> None:
        """The end of something without a result."""
        if self._over or self._book is None:
            return
        from belljar.trail import records

        await self._last(records.ended(status, **more))

    async def fail(self, error: BaseException) -> None:
        """The end of something that raised. What is cancelled does not wait for the trail, nor does
        what failed because of it."""
        if self._over or self._book is None:
            return
        from belljar.trail import records

        told = records.ended(_status(error), error=_name(error))
        if self.usage:
            told["usage"] = records.used(self.usage)
        if isinstance(error, Exception) and not isinstance(error, TrailError):
            await self._last(told)
        else:
            self._put_last(told)

    async def _last(self, said: Said) -> None:
        """On its way before the attempt is waited for, if that has not been done: one transaction
        has both."""
        ending = self._put_last(said)
        await self.written()
        if ending is not None:
            await ending

    def _put_last(self, said: Said) -> Awaitable[None] | None:
        assert self._book is not None
        self._over = True
        if self._asked is not None and isinstance(said, dict) and self._book.counted(self, said):
            self._asked = None
            return None
        return self._book.put("end", self, said, asked=self._made())

    @contextlib.asynccontextmanager
    async def judged(self) -> AsyncIterator[Entry]:
        """As `async with` the entry itself, but whoever is in the block calls `written`, once
        nothing can be refused cheaply any more."""
        try:
            yield self
        except BaseException as error:
            await self.fail(error)
            raise
        await self.close()

    async def __aenter__(self) -> Entry:
        try:
            await self.written()
        except BaseException as error:
            await self.fail(error)
            raise
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

    async def entry(
        self, action: str, request: Request, *, refused: bool = False, **more: Any
    ) -> Entry:
        """An attempt, for the trail; see `Entry.written`. `refused`: it will not run, and its line
        is a short one: turning somebody away must not cost more than asking."""
        if self._book is None:
            return Entry(tenant=self._caller.tenant)
        from belljar.trail import records

        most_text = self._settings.code_bytes if self._settings.trail_text else 0
        more = {"sandbox": self.sandbox, **more}

        def content() -> dict[str, Any]:
            if refused:
                told = records.asked(action, request, self._caller, hashed=False, **more)
                return records.cut(told)
            return records.asked(action, request, self._caller, most_text=most_text, **more)

        return Entry(
            self._book,
            content,
            large=records.size(request, hashed=not refused) > INLINE_BYTES,
            action=action,
            tenant=records.text(self._caller.tenant) or "",
            sandbox=self.sandbox,
        )


class Recorders:
    """The trail of one Belljar, opened, and loaded, at its first use."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._book: asyncio.Task[Writer] | None = None

    async def get(self, caller: Caller, *, sandbox: str = "") -> Recorder:
        if not self._settings.trail:
            return Recorder(None, self._settings, caller)
        if self._book is None or (self._book.done() and self._book.exception()):
            self._book = asyncio.ensure_future(
                threads.READING.do_for(threads.OURS, _open, self._settings)
            )
        book = await asyncio.shield(self._book)
        return Recorder(book, self._settings, caller, sandbox=sandbox)

    def trouble(self) -> str:
        """Why nothing can be written now; empty if it can, or if nobody has tried yet."""
        if self._book is None or not self._book.done():
            return ""
        if error := self._book.exception():
            return str(error)
        return self._book.result().trouble()

    async def close(self) -> None:
        if self._book and (await asyncio.wait([self._book])) and not self._book.exception():
            await threads.READING.do_for(threads.OURS, self._book.result().close)


def _open(settings: Settings) -> Writer:
    from belljar.trail.opening import open_writer

    return open_writer(settings)


def _status(error: BaseException) -> str:
    if isinstance(error, CallbackFailed) or not isinstance(error, Exception):
        return "cancelled"
    if isinstance(error, SandboxEnded) and error.ran:
        return "cancelled"
    return "refused" if isinstance(error, (InvalidRequest, Busy, Closed)) else "failed"


def _name(error: BaseException) -> str:
    """Not its message: that may quote what was asked."""
    if isinstance(error, CallbackFailed):
        error = error.failure
    return type(error).__name__ if isinstance(error, Exception) else ""
