"""`belljar.aio.Sandbox`: a sandbox that lives between runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from belljar import client, inputs
from belljar.conversation import Refusal
from belljar.core import Belljar
from belljar.errors import (
    Busy,
    Closed,
    InvalidRequest,
    SandboxEnded,
    SandboxLost,
    TrailError,
)
from belljar.holding import Held
from belljar.kept import events, setup, telling
from belljar.kept.family import Family
from belljar.kept.files import Files
from belljar.kept.options import make_options
from belljar.kept.processes import Process, command
from belljar.kept.run import Run
from belljar.kept.setup import WORKSPACE
from belljar.model import Result
from belljar.network import Allow
from belljar.trail.entry import Entry


class Sandbox:
    """`async with Sandbox(environment="data") as box: await box.run("x = 41")`.

    Variables, imports, the working directory and files stay from run to run. A failing run, a
    time-out or `sys.exit()` ends that run, not the sandbox."""

    def __new__(cls, jar: Belljar | client.Belljar | None = None, **options: Any) -> Sandbox:
        """With `url` or a client it is one at a server."""
        if cls is Sandbox and (isinstance(jar, client.Belljar) or options.get("url")):
            from belljar.kept.remote.sandbox import RemoteSandbox

            return object.__new__(RemoteSandbox)
        return object.__new__(cls)

    def __init__(self, jar: Belljar | client.Belljar | None = None, **options: Any) -> None:
        assert not isinstance(jar, client.Belljar)  # see __new__
        self._jar = jar
        self._own_jar = jar is None
        self._options = make_options(options)
        self.sandbox_id = secrets.token_hex(16)
        """Cannot be guessed: for a server it is the name of the sandbox."""
        self.on_end: Callable[[], None] | None = None
        """Called once, when nothing of it is left."""
        self.before_end: Callable[[], object] | None = None
        """Called once, while its wall still stands."""
        self.maximum_s: float | None = None
        """The most time of a run and its extensions, below the operator's maximum; a server's word
        for one tenant, to be set before it is opened."""
        self._held: Held | None = None
        self._family: Family | None = None
        self._turn = asyncio.Lock()
        self._runs = 0
        self._ended = ""
        """Why no run can start any more, if so."""
        self._lost = ""
        """Why the state is gone, if so."""
        self._checkpoints: tuple[int, ...] = ()
        self._timers: list[asyncio.TimerHandle] = []
        self._closing: asyncio.Task[None] | None = None
        self._now: Run | None = None
        self._processes: dict[int, Process] = {}

    async def __aenter__(self) -> Sandbox:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Makes the sandbox; `async with` does it."""
        if self._held or self._ended:
            return
        self._jar = self._jar or Belljar()
        self._held = held = await self._jar.keep(
            self._options.request,
            paths=self._options.paths,
            sandbox_id=self.sandbox_id,
            maximum_s=self.maximum_s,
        )
        self._family = Family(held)
        try:
            await self._set_up(held)
        except BaseException:
            await self.close()
            raise
        self._start_timers()

    async def _set_up(self, held: Held) -> None:
        talk = held.conversation
        await talk.ask("set_up", **setup.first(held, self._options))
        if held.outlet:
            await held.outlet.join(held.engine, talk)
        for name, content in held.request.files.items():
            await self.files.write(f"{WORKSPACE}/{name}", content)
        for name, content in held.request.inputs.items():
            await inputs.place(talk, name, content)
        await inputs.copy(talk, held.copied)

    # -- what it is ------------------------------------------------------------------------------

    @property
    def ended(self) -> str:
        """Why it has ended; empty as long as it has not."""
        return self._ended

    @property
    def running(self) -> bool:
        """Whether a run is under way."""
        return self._now is not None

    @property
    def runs(self) -> int:
        """How many there were."""
        return self._runs

    @property
    def ground(self) -> tuple[str, str, str]:
        """Engine, environment and language."""
        held = self._usable(state=False)
        return held.engine.name, held.ground.name, held.request.language

    def cpu_ms(self) -> float | None:
        """Since the latest run began, also of programs beside it; None where only the agent can
        tell."""
        seen = self._held.conversation.wall.look() if self._held else None
        return seen.usage.cpu_ms if seen else None

    # -- runs ------------------------------------------------------------------------------------

    async def run(
        self,
        code: str,
        *,
        timeout_s: float | None = None,
        stdin: str | bytes = b"",
        on_event: Callable[[events.Event], None] | None = None,
    ) -> Result:
        """Runs `code` after everything that ran before."""
        attempt = await self._entry("run", code=code, timeout_s=timeout_s, stdin=stdin)
        async with attempt as entry, self._taking_turns():
            await self._usable().connected()
            started = self._begin(code, timeout_s, stdin, on_event, entry)
            try:
                return await entry.end(await self._with_egress(entry, await started.result()))
            finally:
                self._done(entry)

    async def stream(
        self, code: str, *, timeout_s: float | None = None, stdin: str | bytes = b""
    ) -> AsyncGenerator[events.Event, None]:
        """As `run`, but yields what happens while it happens; the last event has the result."""
        attempt = await self._entry("run", code=code, timeout_s=timeout_s, stdin=stdin)
        async with attempt as entry, self._taking_turns():
            await self._usable().connected()
            started = self._begin(code, timeout_s, stdin, None, entry)
            try:
                async for event in started.happening():
                    if isinstance(event, events.Ended):
                        result = await self._with_egress(entry, event.result)
                        event = events.Ended(result=await entry.end(result))
                    yield event
            finally:
                self._done(entry)
                started.cancel()

    def interrupt(self) -> None:
        """KeyboardInterrupt in the run that is under way; the state stays."""
        if self._now:
            self._now.interrupt()

    def kill(self) -> None:
        """Ends the run that is under way, with the state of the sandbox."""
        if self._now:
            self._now.kill()

    def extend(self, seconds: float) -> None:
        """More time for the run that is under way, within the operator's maximum."""
        if self._now:
            self._now.extend(seconds)

    def _begin(
        self,
        code: str,
        timeout_s: float | None,
        stdin: str | bytes,
        on_event: Callable[[events.Event], None] | None,
        entry: Entry,
    ) -> Run:
        held = self._usable()
        if self._runs >= self._options.max_runs:
            raise SandboxEnded(
                f"this sandbox has done its {self._options.max_runs} runs",
                hint="make a new one, or allow more with max_runs",
            )
        request = held.check(code, timeout_s, stdin)
        self._runs += 1
        started = Run(
            held.conversation,
            run_id=self._runs,
            limits=request.limits,
            maximum_s=held.maximum_s,
            result=lambda told: self._result(held, told),
        )
        if held.outlet:
            held.outlet.watch(entry.id)
        started.on_event = on_event
        started.start(request.code, stdin=request.stdin)
        held.conversation.wall.settle()  # in the time that the question takes to get there
        self._now = started
        return started

    async def _with_egress(self, entry: Entry, result: Result) -> Result:
        held = self._held
        if not held or not held.outlet:
            return result
        held.outlet.look(held.engine, held.conversation.wall)
        return await held.outlet.told(entry.id, result)

    def _done(self, entry: Entry) -> None:
        self._now = None
        if self._held and self._held.outlet:
            self._held.outlet.unwatch(entry.id)

    def _result(self, held: Held, told: Mapping[str, Any]) -> Result:
        result = telling.make_result(held, told, run_id=self._runs)
        if not result.state_kept:
            self._lost = {
                "out_of_memory": "its memory ran out and the kernel ended it",
                "timeout": "it did not react to the time-out and was ended",
            }.get(result.status, "the code ended it")
        known = told.get("checkpoints")
        if isinstance(known, list):
            done = (telling.whole(item) for item in known)
            self._checkpoints = tuple(one for one in done if one <= self._runs)
        return result

    # -- files -----------------------------------------------------------------------------------

    @property
    def files(self) -> Files:
        return Files(self._usable(state=False).conversation)

    # -- programs --------------------------------------------------------------------------------

    async def exec(
        self,
        program: str | Sequence[str],
        *,
        shell: bool = False,
        stdin: str | bytes = b"",
        env: Mapping[str, str] | None = None,
        folder: str = WORKSPACE,
        timeout_s: float | None = None,
    ) -> Result:
        """Runs a program beside the interpreter and waits for it."""
        held = self._usable(state=False)
        limit_s = held.check("", timeout_s, stdin).limits.timeout_s
        process = await self.start(program, shell=shell, env=env, folder=folder)
        try:
            if stdin:
                await process.write(stdin)
            await process.close_stdin()
            return await process.wait(limit_s)
        except TimeoutError:
            process.timed_out = True
            await process.kill()
            return await process.wait()
        except asyncio.CancelledError:
            await process.kill()  # nobody waits for it any more
            raise

    async def start(
        self,
        program: str | Sequence[str],
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        folder: str = WORKSPACE,
        terminal: bool = False,
    ) -> Process:
        """Starts a program and returns at once. `terminal`: it gets one, for interactive ones."""
        entry = await self._entry("command", argv=program)
        try:
            await entry.written()
            process = await Process.launch(
                self._usable(state=False),
                command(program, shell=shell),
                env=env or {},
                folder=folder,
                terminal=terminal,
            )
        except BaseException as error:
            await entry.fail(error)
            raise
        process.record(entry)
        self._processes = {n: p for n, p in self._processes.items() if p.running}
        self._processes[process.process_id] = process
        return process

    def processes(self) -> list[Process]:
        """Those that run."""
        return [process for process in self._processes.values() if process.running]

    def process(self, process_id: int) -> Process:
        """One that was started earlier, by its id."""
        found = self._processes.get(process_id)
        if found is None:
            raise InvalidRequest(f"process: there is none with the id {process_id!r}")
        return found

    # -- packages --------------------------------------------------------------------------------

    async def install(self, *packages: str) -> dict[str, str]:
        """Makes packages importable from the next run on, also after `rollback` and in branches
        that are made from now on. Returns the versions of all that were installed here."""
        async with await self._entry("install", install=packages), self._taking_turns():
            held = self._usable(state=False)
            before = held.packages.path
            if await held.install(packages):
                new = [folder for folder in held.packages.path if folder not in before]
                await self._ask(held, "install", package_path=new)
            return held.packages.versions

    # -- the network -----------------------------------------------------------------------------

    @property
    def network(self) -> tuple[Allow, ...]:
        """The rules as they are now; none: nothing can be reached."""
        outlet = self._held.outlet if self._held else None
        return outlet.rules if outlet else ()

    async def set_network(self, network: Allow | str | Sequence[Allow | str] | None) -> None:
        """Other rules from now on, also for what runs; connections that they do not allow are cut.
        For a sandbox that was made with `network`; branches share their parent's."""
        async with await self._entry("network", network=network):
            await self._usable(state=False).set_network(network)

    # -- going back, branching -------------------------------------------------------------------

    def checkpoints(self) -> tuple[int, ...]:
        """The runs that can be undone, oldest first: `rollback` goes to before one of them."""
        gone = self._held is None or self._held.conversation.lost
        return () if gone else self._checkpoints

    async def rollback(self, run_id: int) -> None:
        """Variables and files are again what they were before that run."""
        async with await self._entry("rollback", before_run=run_id), self._taking_turns():
            held = self._usable(state=False)
            held.check_copies()
            told = await self._ask(held, "rollback", run=run_id, next_run=self._runs + 1)
            self._lost = ""
            known = told.get("checkpoints")
            self._checkpoints = tuple(map(telling.whole, known)) if isinstance(known, list) else ()

    async def restart(self) -> None:
        """A new interpreter: variables and checkpoints are gone, files stay."""
        async with await self._entry("restart"), self._taking_turns():
            held = self._usable(state=False)
            await self._ask(held, "restart", next_run=self._runs + 1)
            self._lost = ""
            self._checkpoints = ()

    async def fork(self, count: int = 1, *, at: int | None = None) -> list[Sandbox]:
        """Independent sandboxes with the same variables and files, as they are now or were before
        the run `at`. Threads that were running are not in them."""
        if type(count) is not int or not 1 <= count <= 256:
            raise InvalidRequest(f"fork: count must be a whole number of 1 to 256, not {count!r}")
        async with self._taking_turns():
            children: list[Sandbox] = []
            try:
                for _ in range(count):
                    children.append(await self._branch(at))
            except BaseException:
                for child in children:
                    await child.close()
                raise
            return children

    async def _branch(self, at: int | None) -> Sandbox:
        held = self._usable(state=at is None)
        held.check_copies()
        assert self._family is not None
        child = Sandbox(self._jar)
        other, branch = await held.branch(child.sandbox_id)
        child._own_jar = False
        child._options = self._options
        child._held = other
        child._family = self._family.branch(other)
        try:
            descriptors = (branch.family, *branch.entrances)
            adopting = asyncio.ensure_future(child._adopt(other))
            try:
                await self._ask(
                    held, "fork", run=at, entrances=len(branch.entrances), descriptors=descriptors
                )
            except BaseException:
                adopting.cancel()
                raise
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            await adopting
        except BaseException:
            await child.close()
            raise
        child._start_timers()
        return child

    async def _adopt(self, held: Held) -> None:
        await self._ask(held, "adopt", **setup.branch(held, self._options))

    # -- the end ---------------------------------------------------------------------------------

    async def close(self, why: str = "it was closed") -> None:
        """Ends the sandbox and everything in it. Branches of it live on."""
        self._end(why)
        if self._closing:
            await asyncio.shield(self._closing)

    def _end(self, why: str) -> None:
        if self._closing or not self._held:
            self._ended = self._ended or why
            return
        self._ended = why
        for timer in self._timers:
            timer.cancel()
        self._closing = asyncio.ensure_future(self._destroy())

    async def _destroy(self) -> None:
        assert self._held is not None and self._family is not None
        if self.before_end:
            self.before_end()
        if self._now:
            self._now.cancel()
        await self._family.leave()
        with contextlib.suppress(TrailError):  # it is gone; the trail will call it lost
            await self._held.life.close("closed", reason=self._ended)
        if self._own_jar and self._jar:
            await self._jar.close()
        if self.on_end:
            self.on_end()

    def _start_timers(self) -> None:
        loop = asyncio.get_running_loop()
        life = self._options.lifetime_s
        self._timers = [
            loop.call_later(life, self._end, f"it has lived for its {life:g} s"),
            loop.call_later(self._options.idle_s, self._idle),
        ]

    def _idle(self) -> None:
        """Ends the sandbox, or looks again when it could be time."""
        assert self._held is not None
        loop = asyncio.get_running_loop()
        quiet_s = 0.0 if self._now else loop.time() - self._held.conversation.last_use
        left_s = self._options.idle_s - quiet_s
        if left_s <= 0:
            self._end(f"nothing was asked of it for {self._options.idle_s:g} s")
        else:
            self._timers[1] = loop.call_later(left_s, self._idle)

    # -- common ----------------------------------------------------------------------------------

    async def _entry(self, action: str, **fields: Any) -> Entry:
        """What is asked of this sandbox, for the trail."""
        return await self._held.entry(action, **fields) if self._held else Entry()

    def _usable(self, *, state: bool = True) -> Held:
        if self._ended:
            raise SandboxEnded(f"this sandbox has ended: {self._ended}", hint="make a new one")
        if self._held is None:
            raise Closed("this sandbox was not opened", hint="use it in a with statement")
        if self._held.conversation.lost:
            raise SandboxLost(f"the sandbox is gone: {self._held.conversation.lost}")
        if state and self._lost:
            raise SandboxLost(
                f"the state of this sandbox is lost: {self._lost}",
                hint="rollback() to a checkpoint, or restart()"
                if self._checkpoints
                else "restart() begins anew",
            )
        return self._held

    def _taking_turns(self) -> asyncio.Lock:
        if self._options.when_busy == "refuse" and self._turn.locked():
            raise Busy("a run is under way in this sandbox", hint='or wait: when_busy="wait"')
        return self._turn

    async def _ask(self, held: Held, op: str, **fields: Any) -> dict[str, Any]:
        try:
            return await held.conversation.ask(op, **fields)
        except Refusal as refusal:
            if refusal.kind == "lost":
                raise SandboxLost(f"the state of this sandbox is lost: {refusal}") from None
            if refusal.kind == "busy":
                raise Busy(str(refusal)) from None
            raise InvalidRequest(f"{op}: {refusal}") from None
