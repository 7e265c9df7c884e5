"""One run in a kept sandbox, from the first byte to the result."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from belljar.conversation import Conversation, Refusal
from belljar.errors import LimitExceeded, SandboxEnded, SandboxLost
from belljar.kept import events, outputs, telling
from belljar.model import Limits, Output, Result
from belljar.runtimes.guest import protocol
from belljar.trail.entry import CallbackFailed

TICK_S = 0.25
INTERRUPT_S = 2.0
"""Code that is out of time gets KeyboardInterrupt, and this long to come to an end by itself."""
KILL_S = 5.0
INSIST_S = 0.3
"""Between interrupts of a run that nobody wants any more: the first may come before its code."""
_MOST_EVENTS = 10_000


def cancelled() -> bool:
    """Whether somebody has cancelled the current task, rather than something it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def sandbox_ended(why: str, *, ran: bool = False) -> SandboxEnded:
    what = "this sandbox ended during the run" if ran else "this sandbox has ended"
    return SandboxEnded(f"{what}: {why or 'it was closed'}", hint="make a new one", ran=ran)


class Run:
    """A run under way: iterate over its events, or wait for its result."""

    def __init__(
        self,
        conversation: Conversation,
        *,
        run_id: int,
        limits: Limits,
        maximum_s: float,
        result: Callable[[Mapping[str, Any]], Result],
    ) -> None:
        self.run_id = run_id
        self._conversation = conversation
        self._limits = limits
        self._maximum_s = maximum_s
        self._make_result = result
        self._started = time.perf_counter()
        self._ask_id = conversation.next_id()
        self._head = {1: bytearray(), 2: bytearray()}
        self._tail = {1: bytearray(), 2: bytearray()}
        self._in_tail: set[int] = set()
        self._outputs: list[Output] = []
        self._output_bytes = 0
        self._lost_outputs = 0
        self._coming: outputs.Announced | None = None
        self._texts: dict[int, bytearray] = {}
        self._deadline = asyncio.get_running_loop().time() + limits.timeout_s
        self._changed = asyncio.Event()
        self._interrupted = False
        self._killed = False
        self._events: deque[events.Event] = deque(maxlen=_MOST_EVENTS)
        self._news = asyncio.Event()
        self.on_event: Callable[[events.Event], None] | None = None
        """What it raises interrupts the run and is raised to whoever waits for the result."""
        self._refused: Exception | None = None
        self._task: asyncio.Task[Result] | None = None
        self._cancelled_why = ""

    def start(self, code: str, *, stdin: bytes) -> None:
        asked = self._conversation.begin(
            "run",
            ask_id=self._ask_id,
            receive=self._received,
            hear=self._heard,
            code=code,
            name=f"<run {self.run_id}>",
            run=self.run_id,
            output_bytes=self._limits.output_bytes,
            stdin=bool(stdin),
        )
        asked.add_done_callback(lambda _: self._changed.set())
        self._task = asyncio.ensure_future(self._run(asked, stdin))

    async def result(self) -> Result:
        """SandboxEnded if that is what cancelled it: whoever waits was not cancelled, and would be
        taken for somebody who was."""
        assert self._task is not None
        try:
            return await self._task
        except asyncio.CancelledError:
            if cancelled():
                raise
            raise sandbox_ended(self._cancelled_why, ran=True) from None

    def cancel(self, why: str) -> None:
        assert self._task is not None
        self._cancelled_why = self._cancelled_why or why
        self._task.cancel()

    async def happening(self) -> AsyncIterator[events.Event]:
        """Everything that happens, the end last."""
        assert self._task is not None
        self._task.add_done_callback(lambda _: self._news.set())
        while True:
            while self._events:
                yield self._events.popleft()
            if self._task.done():
                break
            self._news.clear()
            await self._news.wait()
        yield events.Ended(result=await self.result())

    def interrupt(self) -> None:
        """KeyboardInterrupt in the code; the state stays."""
        self._interrupted = True
        self._changed.set()

    def kill(self) -> None:
        """Ends the interpreter; the state is lost."""
        self._killed = True
        self._changed.set()

    def extend(self, seconds: float) -> None:
        """More time, within the operator's maximum for a run."""
        if not (isinstance(seconds, (int, float)) and 0 < seconds < float("inf")):
            raise LimitExceeded(f"extend: must be a number of seconds above 0, not {seconds!r}")
        loop = asyncio.get_running_loop()
        latest = loop.time() - (time.perf_counter() - self._started) + self._maximum_s
        self._deadline = min(latest, max(self._deadline, loop.time() + seconds))
        self._changed.set()

    # -- the run ---------------------------------------------------------------------------------

    async def _run(self, asked: asyncio.Future[dict[str, Any]], stdin: bytes) -> Result:
        talk = self._conversation
        ticking = asyncio.ensure_future(self._tick())
        feeding = asyncio.ensure_future(self._feed(stdin)) if stdin else None
        try:
            timed_out = await self._wait(asked)
            told = await self._told(asked, timed_out=timed_out)
        except Refusal as refusal:
            raise SandboxLost(f"the state of this sandbox is lost: {refusal}") from None
        except asyncio.CancelledError:
            asked.cancel()
            talk.wall.kill()
            raise
        finally:
            ticking.cancel()
            if feeding:
                feeding.cancel()
        self._lost_outputs += telling.whole(told.get("unheard"))
        result = self._make_result({**told, "timed_out": timed_out, **self._collected()})
        if self._refused:
            raise CallbackFailed(self._refused)
        return result

    async def _feed(self, stdin: bytes) -> None:
        """As fast as the code reads, which may be never."""
        with contextlib.suppress(SandboxLost):  # told by whoever waits for the run
            await self._conversation.feed(self._ask_id, stdin)
            await self._conversation.send(self._ask_id, b"")

    async def _wait(self, asked: asyncio.Future[dict[str, Any]]) -> bool:
        """Until the code has ended; True when that took a time-out."""
        loop = asyncio.get_running_loop()
        while not asked.done():
            self._changed.clear()
            if self._killed:
                await self._end(asked, "kill", KILL_S)
                return False
            left_s = self._deadline - loop.time()
            if self._interrupted or self._refused:
                self._interrupted = False
                await self._conversation.ask("interrupt")
                left_s = min(left_s, INSIST_S) if self._refused else left_s
            late = loop.call_later(max(0.0, left_s), self._changed.set)
            await self._changed.wait()
            late.cancel()
            if not asked.done() and loop.time() >= self._deadline:
                if not await self._end(asked, "interrupt", INTERRUPT_S):
                    await self._end(asked, "kill", KILL_S)
                return True
        return False

    async def _end(self, asked: asyncio.Future[dict[str, Any]], how: str, within_s: float) -> bool:
        """Through the agent, or, if that does not help, with the whole sandbox."""
        try:
            await self._conversation.ask(how, within_s=within_s)
        except SandboxLost:
            pass
        await asyncio.wait((asked,), timeout=within_s)
        if not asked.done() and how == "kill":
            self._conversation.wall.kill()
            await asyncio.wait((asked,), timeout=within_s)
        return asked.done()

    async def _told(
        self, asked: asyncio.Future[dict[str, Any]], *, timed_out: bool
    ) -> dict[str, Any]:
        """What the agent told of the run; that a time-out or a lack of memory silenced it is told,
        too."""
        try:
            return await asked
        except SandboxLost:
            seen = None if timed_out else self._conversation.wall.look()
            if not timed_out and not (seen and seen.out_of_memory):
                raise
            return {"lost": True, "signal": 9}

    async def _tick(self) -> None:
        """Where the wall cannot be looked at, the agent tells (see `_heard`)."""
        while True:
            await asyncio.sleep(TICK_S)
            seen = self._conversation.wall.look()
            if seen is None:
                return
            self._tell(events.Used(usage=seen.usage))

    # -- what comes ------------------------------------------------------------------------------

    def _received(self, stream: int, data: bytes) -> None:
        if stream in self._head:
            self._printed(stream, data)
        elif stream == protocol.Stream.SHOWN and self._coming:
            self._coming.take(data)
            self._shown(self._coming)
        elif stream == protocol.Stream.VALUE or stream in protocol.ERROR_TEXTS:
            text = self._texts.setdefault(stream, bytearray())
            most = outputs.OUTPUT_BYTES if stream == protocol.Stream.VALUE else telling.TEXT_BYTES
            text += data[: max(0, most - len(text))]

    def _printed(self, stream: int, data: bytes) -> None:
        kept = self._tail if stream in self._in_tail else self._head
        # An honest agent sends no more than fits; what a dishonest one sends is not held.
        data = data[: max(0, self._limits.output_bytes - len(kept[stream]))]
        kept[stream] += data
        if data and stream not in self._in_tail:
            self._tell(events.Printed(stream="stdout" if stream == 1 else "stderr", data=data))

    def _heard(self, event: Mapping[str, Any]) -> None:
        if "output" in event:
            self._announced(event["output"])
        elif "progress" in event and isinstance(event["progress"], dict):
            told = event["progress"]
            message = str(told.get("message", ""))[:1000]
            self._tell(
                events.Progress(fraction=outputs.fraction(told.get("fraction")), message=message)
            )
        elif isinstance(event.get("extend"), (int, float)) and event["extend"] > 0:
            self.extend(min(float(event["extend"]), self._maximum_s))
        elif isinstance(event.get("used"), dict):
            if self._conversation.wall.look() is None:
                self._tell(events.Used(usage=telling.usage(event["used"])))
        elif event.get("tail") in (1, 2):
            self._in_tail.add(event["tail"])

    def _announced(self, told: object) -> None:
        """Its content follows; of one that is not taken it is dropped."""
        coming = outputs.announced(told)
        if self._coming:  # whose content did not come
            self._lost_outputs += 1
        self._coming = None
        full = len(self._outputs) >= outputs.MOST_OUTPUTS
        if coming is None or full or self._output_bytes + coming.bytes > outputs.ALL_BYTES:
            self._lost_outputs += 1
            return
        self._output_bytes += coming.bytes
        self._coming = coming
        self._shown(coming)

    def _shown(self, coming: outputs.Announced) -> None:
        output = coming.complete()
        if output is None:
            return
        self._coming = None
        self._outputs.append(output)
        self._tell(events.Shown(output=output))

    def _tell(self, event: events.Event) -> None:
        if self.on_event and not self._refused:
            try:
                self.on_event(event)
            except Exception as error:
                self._refused = error
                self.interrupt()
        self._events.append(event)
        self._news.set()

    def _collected(self) -> dict[str, Any]:
        return {
            "texts": self._texts,
            "head": self._head,
            "tail": self._tail,
            "outputs": tuple(self._outputs),
            "lost_outputs": self._lost_outputs,
            "duration_ms": (time.perf_counter() - self._started) * 1000,
        }
