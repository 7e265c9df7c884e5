"""`belljar.Sandbox`: the synchronous face of a kept sandbox."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from types import TracebackType
from typing import Any, TypeVar

from belljar import jar
from belljar.errors import InvalidRequest
from belljar.kept import events
from belljar.kept import processes as asynchronous_processes
from belljar.kept import sandbox as asynchronous
from belljar.kept.options import make_options
from belljar.kept.setup import WORKSPACE
from belljar.kept.sync_files import SyncFiles
from belljar.model import Result
from belljar.network import Allow
from belljar.portal import Portal

T = TypeVar("T")


class Sandbox:
    """`with Sandbox(environment="data") as box: box.run("x = 41"); box.run("x + 1").value`.

    Variables, imports, the working directory and files stay from run to run. A failing run, a
    time-out or `sys.exit()` ends that run, not the sandbox. Threads may share it.

    With `url` and `key` it is at a server; with `sandbox_id` one that is there already."""

    def __init__(self, jar: jar.Belljar | None = None, **options: Any) -> None:
        self._jar = jar
        self._place = (options.pop("url", ""), options.pop("key", ""))
        self._options = dict(options)
        if options.pop("sandbox_id", "") and not self._place[0] and jar is None:
            raise InvalidRequest("sandbox_id: only a server has sandboxes to be found again")
        make_options(options)  # a mistake is told at once
        self._box: asynchronous.Sandbox | None = None
        self._portal: Portal | None = None

    @classmethod
    def _around(cls, box: asynchronous.Sandbox, portal: Portal) -> Sandbox:
        found = cls()
        found._box, found._portal = box, portal
        return found

    def __enter__(self) -> Sandbox:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def open(self) -> None:
        """Makes the sandbox; `with` does it, and so does the first use."""
        if self._box is None:
            owner = self._jar or jar.shared(*self._place)
            self._portal = owner.portal()
            self._box = self._portal.call(_open(owner.asynchronous, self._options))

    @property
    def sandbox_id(self) -> str:
        """Cannot be guessed; a server finds the sandbox by it."""
        return self._opened().sandbox_id

    def run(
        self,
        code: str,
        *,
        timeout_s: float | None = None,
        stdin: str | bytes = b"",
        on_event: Callable[[events.Event], None] | None = None,
    ) -> Result:
        """Runs `code` after everything that ran before."""
        box = self._opened()
        return self._call(box.run(code, timeout_s=timeout_s, stdin=stdin, on_event=on_event))

    def stream(
        self, code: str, *, timeout_s: float | None = None, stdin: str | bytes = b""
    ) -> Iterator[events.Event]:
        """As `run`, but yields what happens while it happens; the last event has the result."""
        happening = self._opened().stream(code, timeout_s=timeout_s, stdin=stdin)
        try:
            while event := self._call(_next(happening)):
                yield event
        finally:
            # Not waited for: a generator may be collected on the very thread that would do it.
            self._portal_of().submit(_stop(happening))

    def interrupt(self) -> None:
        """KeyboardInterrupt in the run that is under way; the state stays."""
        self._call(_now(self._opened().interrupt))

    def kill(self) -> None:
        """Ends the run that is under way, with the state of the sandbox."""
        self._call(_now(self._opened().kill))

    def extend(self, seconds: float) -> None:
        """More time for the run that is under way, within the operator's maximum."""
        box = self._opened()
        self._call(_now(lambda: box.extend(seconds)))

    @property
    def files(self) -> SyncFiles:
        self.open()
        assert self._box is not None and self._portal is not None
        return SyncFiles(self._box.files, self._portal)

    def exec(
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
        return self._call(
            self._opened().exec(
                program, shell=shell, stdin=stdin, env=env, folder=folder, timeout_s=timeout_s
            )
        )

    def start(
        self,
        program: str | Sequence[str],
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        folder: str = WORKSPACE,
        terminal: bool = False,
    ) -> Process:
        """Starts a program and returns at once. `terminal`: it gets one, for interactive ones."""
        box = self._opened()
        started = self._call(
            box.start(program, shell=shell, env=env, folder=folder, terminal=terminal)
        )
        return Process(started, self._portal_of())

    def processes(self) -> list[Process]:
        """Those that run."""
        return [Process(process, self._portal_of()) for process in self._opened().processes()]

    def process(self, process_id: int) -> Process:
        """One that was started earlier, by its id."""
        return Process(self._opened().process(process_id), self._portal_of())

    def install(self, *packages: str) -> dict[str, str]:
        """Makes packages importable from the next run on, also after `rollback` and in branches
        that are made from now on. Returns the versions of all that were installed here."""
        return self._call(self._opened().install(*packages))

    @property
    def network(self) -> tuple[Allow, ...]:
        """The rules as they are now; none: nothing can be reached."""
        return self._opened().network

    def set_network(self, network: Allow | str | Sequence[Allow | str] | None) -> None:
        """Other rules from now on, also for what runs; connections that they do not allow are cut.
        For a sandbox that was made with `network`; branches share their parent's."""
        self._call(self._opened().set_network(network))

    def checkpoints(self) -> tuple[int, ...]:
        """The runs that can be undone, oldest first: `rollback` goes to before one of them."""
        return self._opened().checkpoints()

    def rollback(self, run_id: int) -> None:
        """Variables and files are again what they were before that run."""
        self._call(self._opened().rollback(run_id))

    def restart(self) -> None:
        """A new interpreter: variables and checkpoints are gone, files stay."""
        self._call(self._opened().restart())

    def fork(self, count: int = 1, *, at: int | None = None) -> list[Sandbox]:
        """Independent sandboxes with the same variables and files, as they are now or were before
        the run `at`. Threads that were running are not in them."""
        children = self._call(self._opened().fork(count, at=at))
        return [Sandbox._around(child, self._portal_of()) for child in children]

    def close(self) -> None:
        """Ends the sandbox and everything in it. Branches of it live on."""
        if self._box is not None:
            self._call(self._box.close())

    def _opened(self) -> asynchronous.Sandbox:
        self.open()
        assert self._box is not None
        return self._box

    def _portal_of(self) -> Portal:
        assert self._portal is not None
        return self._portal

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._portal_of().call(work)


class Process:
    """A program that was started: feed it, watch it, wait for it, end it."""

    def __init__(self, process: asynchronous_processes.Process, portal: Portal) -> None:
        self._process = process
        self._portal = portal
        self.process_id = process.process_id
        self.pid = process.pid
        self.argv = process.argv

    @property
    def running(self) -> bool:
        return self._process.running

    @property
    def exit_code(self) -> int | None:
        return self._process.exit_code

    def write(self, data: str | bytes) -> None:
        """Standard input."""
        self._portal.call(self._process.write(data))

    def close_stdin(self) -> None:
        self._portal.call(self._process.close_stdin())

    def kill(self, number: int = 9) -> None:
        """Signals the program and everything in its group; SIGKILL by default."""
        self._portal.call(self._process.kill(number))

    def resize(self, rows: int, columns: int) -> None:
        """The size of its terminal."""
        self._portal.call(self._process.resize(rows, columns))

    def wait(self, timeout_s: float | None = None) -> Result:
        """How it ended; TimeoutError if it has not within `timeout_s`, and it runs on."""
        return self._portal.call(self._process.wait(timeout_s))

    def output(self) -> Iterator[events.Printed]:
        """What it prints, from the start (as far as that is still held), until it ends."""
        printing = self._process.output()
        while printed := self._portal.call(_next(printing)):
            yield printed


async def _open(owner: Any, options: Mapping[str, Any]) -> asynchronous.Sandbox:
    box = asynchronous.Sandbox(owner, **options)
    await box.open()
    return box


async def _next(happening: AsyncIterator[T]) -> T | None:
    async for event in happening:
        return event
    return None


async def _stop(happening: AsyncGenerator[T, None]) -> None:
    await happening.aclose()


async def _now(action: Callable[[], None]) -> None:
    action()
