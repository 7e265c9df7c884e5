"""`belljar.aio.Sandbox`: a sandbox that lives between runs."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from belljar import client, inputs
from belljar.core import Belljar
from belljar.errors import (
    BelljarError,
    Busy,
    Closed,
    EngineError,
    InvalidRequest,
    SandboxLost,
    TrailError,
)
from belljar.holding import Held
from belljar.kept import events, setup
from belljar.kept.family import Family
from belljar.kept.files import Files
from belljar.kept.interpreter import Interpreter
from belljar.kept.lifetime import Lifetime
from belljar.kept.options import make_options
from belljar.kept.processes import Process, Processes, command
from belljar.kept.run import Run, sandbox_ended
from belljar.kept.setup import WORKSPACE
from belljar.model import Result
from belljar.network import Allow
from belljar.trail.entry import CallbackFailed, Entry


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
        """Called once, when it can do nothing more."""
        self.on_fall: Callable[[], None] | None = None
        """Called once, when its walls have fallen: after its end, if branches live inside them."""
        self.fallen = False
        self.before_end: Callable[[], object] | None = None
        """Called once, while its wall still stands."""
        self.maximum_s: float | None = None
        """The most time of a run and its extensions, below the operator's maximum; a server's word
        for one tenant, to be set before it is opened."""
        self._held: Held | None = None
        self._used_ms: float | None = None
        self._family: Family | None = None
        self._turn = asyncio.Lock()
        self._interpreter = Interpreter()
        self._processes = Processes[Process]()
        self._lifetime = Lifetime()

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
        if self._held or self.ended:
            return
        self._jar = self._jar or Belljar()
        self._held = held = await self._jar.keep(
            self._options.request,
            paths=self._options.paths,
            sandbox_id=self.sandbox_id,
            maximum_s=self.maximum_s,
        )
        self._family = Family(held, self._fallen)
        self._lifetime.begin(self._destroy)
        try:
            if self.ended:
                raise Closed("the sandbox was closed while it was made")
            await self._set_up(held)
        except BaseException:
            await self.close()
            raise
        self._lifetime.count(self._options, self._quiet_s)

    async def _set_up(self, held: Held) -> None:
        talk = held.conversation
        await talk.ask("set_up", **setup.first(held, self._options))
        if held.outlet:
            await held.outlet.join(held.engine, talk)
        for name, content in held.request.files.items():
            await self.files.write(f"{WORKSPACE}/{name}", content)
        for name, content in held.request.inputs.items():
            await inputs.place(talk, name, content, whose=held.life.tenant)
        await inputs.copy(talk, held.copied, whose=held.life.tenant)

    # -- what it is ------------------------------------------------------------------------------

    @property
    def ended(self) -> str:
        """Why it has ended; empty as long as it has not."""
        return self._lifetime.ended

    @property
    def running(self) -> bool:
        """Whether a run is under way."""
        return self._interpreter.now is not None

    @property
    def runs(self) -> int:
        """How many there were."""
        return self._interpreter.runs

    @property
    def ground(self) -> tuple[str, str, str]:
        """Engine, environment and language."""
        held = self._usable(state=False)
        return held.engine.name, held.ground.name, held.request.language

    def cpu_ms(self) -> float | None:
        """Since the latest run began, also of programs beside it; None where only the agent can
        tell."""
        try:
            seen = self._held.conversation.wall.look() if self._held else None
        except (BelljarError, OSError):
            # A wall that is lost says so to its next run. Whoever counts, counts others', too.
            return None
        return seen.usage.cpu_ms if seen else None

    def all_cpu_ms(self) -> float | None:
        """The same since it was made; of one that has ended up to its end."""
        if self._used_ms is not None:
            return self._used_ms
        used_ms = self.cpu_ms()
        return None if used_ms is None else self._interpreter.used_before_ms + used_ms

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
        try:
            async with attempt.judged() as entry, self._taking_turns():
                held, started = await self._begin(code, timeout_s, stdin, on_event, entry)
                try:
                    return await held.told(entry, await started.result())
                finally:
                    self._interpreter.done(held, entry)
        except CallbackFailed as failed:
            raise failed.failure from None

    async def stream(
        self, code: str, *, timeout_s: float | None = None, stdin: str | bytes = b""
    ) -> AsyncGenerator[events.Event, None]:
        """As `run`, but yields what happens while it happens; the last event has the result."""
        attempt = await self._entry("run", code=code, timeout_s=timeout_s, stdin=stdin)
        async with attempt.judged() as entry, self._taking_turns():
            held, started = await self._begin(code, timeout_s, stdin, None, entry)
            try:
                async for event in started.happening():
                    if isinstance(event, events.Ended):
                        result = await held.told(entry, event.result)
                        event = events.Ended(result=result)
                    yield event
            finally:
                self._interpreter.done(held, entry)
                started.cancel("nobody waits for it")

    async def _begin(
        self,
        code: str,
        timeout_s: float | None,
        stdin: str | bytes,
        on_event: Callable[[events.Event], None] | None,
        entry: Entry,
    ) -> tuple[Held, Run]:
        held = self._usable()
        most = self._options.max_runs
        request = self._interpreter.checked(held, code, timeout_s, stdin, max_runs=most)
        await entry.written()
        await held.connected()
        held = self._usable()  # it may have ended meanwhile
        return held, self._interpreter.begin(held, request, on_event, entry)

    def interrupt(self) -> None:
        """KeyboardInterrupt in the run that is under way; the state stays."""
        if self._interpreter.now:
            self._interpreter.now.interrupt()

    def kill(self) -> None:
        """Ends the run that is under way, with the state of the sandbox."""
        if self._interpreter.now:
            self._interpreter.now.kill()

    def extend(self, seconds: float) -> None:
        """More time for the run that is under way, within the operator's maximum."""
        if self._interpreter.now:
            self._interpreter.now.extend(seconds)

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
        return await process.finish(stdin, within_s=limit_s)

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
            argv = command(program, shell=shell)
            held = self._usable(state=False)
            await entry.written()
            await held.connected()
            held = self._usable(state=False)  # it may have ended meanwhile
            held.begins(entry)
            try:
                process = await Process.launch(
                    held, argv, env=env or {}, folder=folder, terminal=terminal
                )
            except BaseException:
                held.done(entry)
                raise
        except BaseException as error:
            await entry.fail(error)
            raise
        process.record(entry, held)
        self._processes.add(process)
        return process

    def processes(self) -> list[Process]:
        """Those that run."""
        return self._processes.running()

    def process(self, process_id: int) -> Process:
        """One that was started earlier, by its id."""
        return self._processes.get(process_id)

    # -- packages --------------------------------------------------------------------------------

    async def install(self, *packages: str) -> dict[str, str]:
        """Makes packages importable from the next run on, also after `rollback` and in branches
        that are made from now on. Returns the versions of all that were installed here."""
        attempt = await self._entry("install", install=packages)
        async with attempt.judged() as entry, self._taking_turns():
            held = self._usable(state=False)
            held.check_packages(packages)
            await entry.written()
            before = held.packages.path
            if await held.install(packages):
                new = [folder for folder in held.packages.path if folder not in before]
                await held.ask("install", package_path=new)
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
        attempt = await self._entry("network", network=network)
        async with attempt.judged() as entry:
            held = self._usable(state=False)
            held.check_network(network)
            await entry.written()
            await held.set_network(network)

    # -- going back, branching -------------------------------------------------------------------

    def checkpoints(self) -> tuple[int, ...]:
        """The runs that can be undone, oldest first: `rollback` goes to before one of them."""
        gone = self._held is None or self._held.conversation.lost
        return () if gone else self._interpreter.checkpoints

    async def rollback(self, run_id: int) -> None:
        """Variables and files are again what they were before that run."""
        attempt = await self._entry("rollback", before_run=run_id)
        async with attempt.judged() as entry, self._taking_turns():
            held = self._usable(state=False)
            self._interpreter.check_rollback(held, run_id)
            await entry.written()
            await self._interpreter.rollback(held, run_id)

    async def restart(self) -> None:
        """A new interpreter: variables and checkpoints are gone, files stay."""
        attempt = await self._entry("restart")
        async with attempt.judged() as entry, self._taking_turns():
            held = self._usable(state=False)
            await entry.written()
            await self._interpreter.restart(held)

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
            except BaseException as error:
                for child in children:
                    await child.close()
                if isinstance(error, EngineError | SandboxLost):
                    self._usable(state=False)  # if it has ended meanwhile, that is why
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
        child._family = self._family.branch(other, child._fallen)
        child._lifetime.begin(child._destroy)
        try:
            await setup.move_in(held, other, branch, self._options, at=at)
        except BaseException:
            await child.close()
            raise
        child._lifetime.count(child._options, child._quiet_s)
        return child

    # -- the end ---------------------------------------------------------------------------------

    async def close(self, why: str = "it was closed") -> None:
        """Ends the sandbox and everything in it. Branches of it live on."""
        self._lifetime.end(why)
        await self._lifetime.over()

    async def _destroy(self) -> None:
        """Each step is done, whatever became of those before it: of a sandbox that cannot be ended
        well, nothing may stay that can be put away."""
        assert self._family is not None
        failure: Exception | None = None
        for step in (
            *(self._count_at_end, self._end_run, self._family.leave),
            *(self._write_end, self._close_jar, self._tell_end),
        ):
            try:
                await step()
            except Exception as error:
                failure = failure or error
        if failure:
            raise failure

    async def _count_at_end(self) -> None:
        """While the wall still stands."""
        try:
            if self.before_end:
                self.before_end()
        finally:
            self._used_ms = self.all_cpu_ms()

    async def _end_run(self) -> None:
        if self._interpreter.now:
            self._interpreter.now.cancel(self.ended)

    async def _write_end(self) -> None:
        assert self._held is not None
        used = {} if self._used_ms is None else {"cpu_ms": round(self._used_ms, 3)}
        with contextlib.suppress(TrailError):  # it is gone; the trail will call it lost
            await self._held.life.close("closed", reason=self.ended, **used)

    async def _close_jar(self) -> None:
        if self._own_jar and self._jar:
            await self._jar.close()

    async def _tell_end(self) -> None:
        if self.on_end:
            self.on_end()

    def _fallen(self) -> None:
        self.fallen = True
        if self.on_fall:
            self.on_fall()

    def _quiet_s(self) -> float:
        assert self._held is not None
        if self.running:
            return 0.0
        return asyncio.get_running_loop().time() - self._held.conversation.last_use

    # -- common ----------------------------------------------------------------------------------

    async def _entry(self, action: str, **fields: Any) -> Entry:
        """What is asked of this sandbox, for the trail."""
        return await self._held.entry(action, **fields) if self._held else Entry()

    def _usable(self, *, state: bool = True) -> Held:
        if self.ended:
            raise sandbox_ended(self.ended)
        if self._held is None:
            raise Closed("this sandbox was not opened", hint="use it in a with statement")
        if self._held.conversation.lost:
            raise SandboxLost(f"the sandbox is gone: {self._held.conversation.lost}")
        if state:
            self._interpreter.check()
        return self._held

    def _taking_turns(self) -> asyncio.Lock:
        if self._options.when_busy == "refuse" and self._turn.locked():
            raise Busy("a run is under way in this sandbox", hint='or wait: when_busy="wait"')
        return self._turn
