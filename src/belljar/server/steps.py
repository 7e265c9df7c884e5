"""One run in a kept sandbox on behalf of somebody who may go away: its turn, quotas, the queue."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import structlog
from starlette.requests import Request

from belljar.errors import BelljarError, Busy, EngineError
from belljar.kept import events
from belljar.kept.run import cancelled, sandbox_ended
from belljar.model import Result
from belljar.server import budget, running
from belljar.server.errors import ApiError, name_of
from belljar.server.gate import Visit
from belljar.server.sandboxes import Owned
from belljar.server.server import Server

AHEAD = 64
"""Events that wait for a client; the run's own bounds hold for what is before them."""
INTERRUPTS, INSIST_S = 10, 0.3
"""More than one: the first may come before the code does."""
KILL_S = 15.0
log = structlog.get_logger("belljar.server")
T = TypeVar("T")


class Step:
    """Begins at once. `result`, or `happening`, then `abandon` in any case."""

    def __init__(
        self, server: Server, visit: Visit, owned: Owned, code: str, *, tell: bool, **options: Any
    ) -> None:
        self._server = server
        self._visit = visit
        self._owned = owned
        self._code = code
        self._tell = tell
        self._begun = False
        self._events: asyncio.Queue[events.Event | None] = asyncio.Queue(AHEAD)
        self._work = asyncio.create_task(self._do(code, options))
        self._work.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def result(self, request: Request) -> Result:
        return await until_gone(self._server, request, self._work)

    async def happening(self) -> AsyncIterator[events.Event]:
        """The last one has the result."""
        while event := await self._events.get():
            yield event
        await self._work

    def abandon(self) -> None:
        """Nobody waits any more: a run under way is interrupted, and killed if it does not end."""
        if self._work.done():
            return
        self._tell = False
        while not self._events.empty():
            self._events.get_nowait()
        if not self._begun:
            self._work.cancel()
            self._server.soon(_turned_away(self._server, self._visit, self._owned, self._code))
            return
        self._server.metrics.gone.inc()
        self._server.soon(self._stop())

    async def _do(self, code: str, options: dict[str, Any]) -> Result:
        owned, tenant, server = self._owned, self._owned.tenant, self._server
        try:
            async with noted(server, self._visit, owned, code):
                tenant.start()
                held_bytes = budget.of_step(owned.limits)
                async with (
                    owned.turn(server.settings.queue_wait_s),
                    server.admission.place(tenant, held_bytes=held_bytes) as place,
                ):
                    self._begun = True
                    owned.begin_run()
                    used_ms, runs = None, owned.box.runs
                    try:
                        with running.code_runs(self._visit):
                            result = await self._run(code, options)
                        used_ms = _used_ms(result)
                        running.keep(self._visit, place, result)
                    except EngineError:  # a wall that is lost, before the run or during it
                        self._visit.ran = owned.box.runs > runs
                        raise
                    finally:
                        owned.end_run(used_ms)
        except asyncio.CancelledError:
            if cancelled():
                raise
            # Whoever waits was not cancelled either, and must not be told that it was.
            raise sandbox_ended(owned.box.ended, ran=self._begun) from None
        finally:
            if self._tell:
                await self._events.put(None)
        server.metrics.ended(tenant.name, result)
        return result

    async def _run(self, code: str, options: dict[str, Any]) -> Result:
        box = self._owned.box
        if not self._tell:
            bounded = self._owned.tenant.quotas.cpu_s_per_day
            on_event = self._owned.saw if bounded else None
            return self._explained(await box.run(code, on_event=on_event, **options))
        result = None
        async for event in box.stream(code, **options):
            self._owned.saw(event)
            if isinstance(event, events.Ended):
                result = self._explained(event.result)
                event = events.Ended(result=result)
            if self._tell:
                await self._events.put(event)
        assert result is not None
        return result

    def _explained(self, result: Result) -> Result:
        if not self._owned.cut_off:
            return result
        why = "the CPU seconds of today are used up: the run was ended"
        return dataclasses.replace(result, warnings=(*result.warnings, why))

    async def _stop(self) -> None:
        """No longer than the run would have had; the turn is free when it has ended."""
        box = self._owned.box
        for _ in range(INTERRUPTS):
            box.interrupt()
            await asyncio.wait((self._work,), timeout=INSIST_S)
            if self._work.done():
                return
        box.kill()
        await asyncio.wait((self._work,), timeout=KILL_S)
        if not self._work.done():
            self._work.cancel()


def _used_ms(result: Result) -> float | None:
    """None: nobody was left to say it."""
    silent = not result.usage.cpu_ms and result.status in ("killed", "timeout", "out_of_memory")
    return None if silent else result.usage.cpu_ms


@asynccontextmanager
async def noted(
    server: Server, visit: Visit, owned: Owned | None, words: str
) -> AsyncIterator[None]:
    """What is turned away before it comes to a sandbox is in the trail, too (P2); the rest the
    sandbox writes itself."""
    assert visit.tenant is not None
    try:
        yield
    except (BelljarError, ApiError) as error:
        reason = error.code if isinstance(error, ApiError) else name_of(error)
        server.metrics.refused.labels(visit.tenant.name, reason).inc()
        log.info("refused", request_id=visit.request_id, reason=reason)
        if isinstance(error, ApiError | Busy):
            await _turned_away(server, visit, owned, words, reason)
        raise


async def _turned_away(
    server: Server, visit: Visit, owned: Owned | None, words: str, reason: str = "client_gone"
) -> None:
    known = zip(("engine", "environment", "language"), owned.ground if owned else (), strict=False)
    await running.refused(server, visit, words, dict(known), reason)


async def until_gone(server: Server, request: Request, work: asyncio.Future[T]) -> T:
    """What `work` gives; it goes on when the client goes, and somebody else has to see to it."""
    watching = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait((work, watching), return_when=asyncio.FIRST_COMPLETED)
    finally:
        watching.cancel()
    if not work.done():
        raise ApiError("client_gone", "the client has gone")
    return work.result()


async def finished(server: Server, owned: Owned, work: Callable[[], Awaitable[T]]) -> T:
    """Something short that is done to its end, also if the client goes; in its turn."""

    async def do() -> T:
        async with owned.turn(server.settings.queue_wait_s):
            return await work()

    task = asyncio.ensure_future(do())
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        return await asyncio.shield(task)
    finally:
        if not task.done():
            server.soon(_wait(task))


async def _wait(task: asyncio.Future[Any]) -> None:
    await asyncio.wait((task,))


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
