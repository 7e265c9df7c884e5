"""Commands and background processes in a kept sandbox."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from belljar.conversation import Conversation, Refusal
from belljar.errors import InvalidRequest, SandboxLost, Unsupported
from belljar.holding import Held
from belljar.kept import events, telling
from belljar.model import Limits, Result
from belljar.policy.variables import check_variables
from belljar.trail.entry import Entry

SHELL = ("/bin/bash", "-c")
SIGKILL = 9
"""As in the sandbox; a client's own system may have none."""
SEARCH = ("/usr/bin/env",)
_EVENT_BYTES = 200
"""What holding a piece of output takes beside it: a program may print byte by byte."""
_MOST_ARGUMENTS, _ARGUMENT_BYTES = 1000, 100_000


class Process:
    """A program that was started: feed it, watch it, wait for it, end it."""

    def __init__(self, conversation: Conversation, argv: Sequence[str], limits: Limits) -> None:
        self.argv = tuple(argv)
        self.process_id = conversation.next_id()
        """By which `Sandbox.process` finds it again."""
        self.pid = 0
        self.terminal = False
        self._conversation = conversation
        self._limits = limits
        self._started = time.perf_counter()
        self._head = {1: bytearray(), 2: bytearray()}
        self._tail = {1: bytearray(), 2: bytearray()}
        self._in_tail: set[int] = set()
        self._waiting: set[asyncio.Event] = set()
        self._printed: list[events.Printed] = []
        self._printed_bytes = 0
        self._forgotten = 0
        self._ended: Mapping[str, Any] | None = None
        self.timed_out = False
        self.on_end: Callable[[], None] | None = None
        self._entry = Entry()
        self._held: Held | None = None
        self._told: asyncio.Task[Result] | None = None

    @classmethod
    async def launch(
        cls,
        held: Held,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        folder: str,
        terminal: bool,
    ) -> Process:
        if terminal and not held.engine.capabilities.terminals:
            raise Unsupported(
                f"terminal: {held.engine.name} cannot give a program a terminal",
                hint="start it without one, or behind another engine: the jail has terminals",
            )
        checked = check_variables(env, language="bash", fresh_exec=True)
        process = cls(held.conversation, argv, held.request.limits)
        await process.start(env=checked, folder=folder, terminal=terminal)
        return process

    @property
    def running(self) -> bool:
        return self._ended is None

    @property
    def held_bytes(self) -> int:
        """What its output takes here."""
        kept = (*self._head.values(), *self._tail.values())
        return self._printed_bytes + sum(map(len, kept))

    @property
    def exit_code(self) -> int | None:
        code = self._ended.get("exit_code") if self._ended else None
        return code if type(code) is int else None

    async def write(self, data: str | bytes) -> None:
        """Standard input. Waits for the program to read when 8 MiB of it are unread."""
        given = data.encode() if isinstance(data, str) else data
        if given:
            await self._conversation.feed(self.process_id, given)

    @property
    def room(self) -> int:
        """Bytes of standard input that `write` takes now without waiting for the program."""
        return self._conversation.room(self.process_id)

    async def close_stdin(self) -> None:
        await self._conversation.send(self.process_id, b"")

    async def kill(self, number: int = SIGKILL) -> None:
        """Signals the program and everything in its group; SIGKILL by default."""
        if self.running:
            try:
                await self._conversation.ask("signal", channel=self.process_id, number=int(number))
            except Refusal:
                pass  # it has ended meanwhile

    async def resize(self, rows: int, columns: int) -> None:
        """The size of its terminal."""
        for name, value in (("rows", rows), ("columns", columns)):
            if type(value) is not int or not 0 < value < 10_000:
                raise InvalidRequest(f"{name}: must be a whole number of 1 to 9999, not {value!r}")
        try:
            await self._conversation.ask(
                "resize", channel=self.process_id, rows=rows, columns=columns
            )
        except Refusal as refusal:
            raise InvalidRequest(f"resize: {refusal}") from None

    async def wait(self, timeout_s: float | None = None) -> Result:
        """How it ended; TimeoutError if it has not within `timeout_s`, and it runs on."""
        async with asyncio.timeout(timeout_s):
            await self._until(lambda: not self.running)
        return await asyncio.shield(self._told) if self._told else self.result()

    async def finish(self, stdin: str | bytes, *, within_s: float) -> Result:
        """Feeds it and waits; ends it when the time is over, or when nobody waits any more."""
        try:
            async with asyncio.timeout(within_s):
                if stdin:
                    await self.write(stdin)
                await self.close_stdin()
                return await self.wait()
        except TimeoutError:
            self.timed_out = True
            await self.kill()
            return await self.wait()
        except asyncio.CancelledError:
            await self.kill()
            raise

    async def output(self) -> AsyncIterator[events.Printed]:
        """What it prints, from the start (as far as that is still held), until it ends."""
        seen = self._forgotten
        while True:
            while seen < self._forgotten + len(self._printed):
                seen = max(seen, self._forgotten)
                yield self._printed[seen - self._forgotten]
                seen += 1
            if not self.running:
                return
            here = seen
            await self._until(
                lambda here=here: not self.running or self._forgotten + len(self._printed) > here
            )

    def record(self, entry: Entry, held: Held) -> None:
        """Whose end is to be that of this program."""
        self._entry, self._held = entry, held
        self._conclude()

    def _conclude(self) -> None:
        if not self.running and self._told is None and self._held:
            self._told = asyncio.ensure_future(self._end(self._held))
            self._told.add_done_callback(lambda told: told.cancelled() or told.exception())

    async def _end(self, held: Held) -> Result:
        try:
            return await held.told(self._entry, self.result())
        finally:
            held.done(self._entry)

    def result(self) -> Result:
        """As far as it has come."""
        ended = self._told
        if ended and ended.done() and not ended.cancelled() and not ended.exception():
            return ended.result()
        told = {
            **(self._ended or {}),
            "timed_out": self.timed_out,
            "head": self._head,
            "tail": self._tail,
        }
        return Result(
            status=telling.judge(told, out_of_memory=False),
            exit_code=self.exit_code,
            signal=telling.whole(told.get("signal")) or None,
            stdout=telling.text(told, 1),
            stderr=telling.text(told, 2),
            dropped=telling.dropped(told),
            duration_ms=(time.perf_counter() - self._started) * 1000,
            execution_id=self._entry.id,
        )

    # -- what comes ------------------------------------------------------------------------------

    async def start(self, *, env: Mapping[str, str], folder: str, terminal: bool) -> None:
        self.terminal = terminal
        self._conversation.listen(self.process_id, self._receive, self._hear)
        try:
            told = await self._conversation.ask(
                "start",
                ask_id=self.process_id,
                argv=list(self.argv),
                env=dict(env),
                folder=folder,
                terminal=terminal,
                output_bytes=self._limits.output_bytes,
            )
        except Refusal as refusal:
            self._conversation.ignore(self.process_id)
            raise InvalidRequest(f"{self.argv[0]}: {refusal}") from None
        self.pid = telling.whole(told.get("pid"))

    def _receive(self, stream: int, data: bytes) -> None:
        if stream not in self._head:
            return
        kept = self._tail if stream in self._in_tail else self._head
        kept[stream] += data[: max(0, self._limits.output_bytes - len(kept[stream]))]
        name = "stdout" if stream == 1 else "stderr"
        self._printed.append(events.Printed(stream=name, data=data))
        self._printed_bytes += len(data) + _EVENT_BYTES
        while self._printed_bytes > 2 * self._limits.output_bytes and len(self._printed) > 1:
            self._printed_bytes -= len(self._printed.pop(0).data) + _EVENT_BYTES
            self._forgotten += 1
        self._tell()

    def _hear(self, event: Mapping[str, Any]) -> None:
        if event.get("tail") in (1, 2):
            self._in_tail.add(event["tail"])
        elif isinstance(event.get("ended"), dict):
            self._ended = event["ended"]
            self._conversation.ignore(self.process_id)
        elif "gone" in event:
            self._ended = {"signal": SIGKILL}
        if self.pid:
            self._conclude()
        if self.on_end and not self.running:
            self.on_end()
        self._tell()

    def _tell(self) -> None:
        for waiting in self._waiting:
            waiting.set()

    async def _until(self, condition: Any) -> None:
        news = asyncio.Event()
        self._waiting.add(news)
        try:
            while not condition():
                news.clear()
                await news.wait()
        finally:
            self._waiting.discard(news)
        if self._conversation.lost and self.running:
            raise SandboxLost(f"the sandbox is gone: {self._conversation.lost}")


P = TypeVar("P", bound=Process)


class Processes(Generic[P]):
    """Those of one sandbox that are known here, by their ids."""

    def __init__(self) -> None:
        self._known: dict[int, P] = {}

    def add(self, process: P) -> None:
        """Those that have ended are forgotten with the next."""
        self._known = {n: known for n, known in self._known.items() if known.running}
        self._known[process.process_id] = process

    def get(self, process_id: int) -> P:
        found = self._known.get(process_id)
        if found is None:
            raise InvalidRequest(f"process: there is none with the id {process_id!r}")
        return found

    def running(self) -> list[Process]:
        return [process for process in self._known.values() if process.running]

    def __iter__(self) -> Iterator[P]:
        return iter(self._known.values())


def command(program: str | Sequence[str], *, shell: bool) -> list[str]:
    """What to execute; a program without a slash is looked for on the PATH inside."""
    if shell:
        if not isinstance(program, str):
            raise InvalidRequest("exec: with shell=True the command is one text")
        argv = [*SHELL, program]
    elif isinstance(program, str) or not isinstance(program, Sequence):
        raise InvalidRequest(
            "exec: the command is a list of texts", hint='["ls", "-l"], or shell=True with one text'
        )
    else:
        argv = list(program)
        if argv and "/" not in str(argv[0]):
            argv = [*SEARCH, *argv]
    if not argv or not all(isinstance(item, str) and "\0" not in item for item in argv):
        raise InvalidRequest("exec: every argument must be a text without NUL")
    if len(argv) > _MOST_ARGUMENTS or sum(map(len, argv)) > _ARGUMENT_BYTES:
        raise InvalidRequest(f"exec: at most {_MOST_ARGUMENTS} arguments, {_ARGUMENT_BYTES} bytes")
    return argv
