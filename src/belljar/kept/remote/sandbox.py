"""A kept sandbox at a server, used as one that is here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from belljar import client
from belljar.client import results
from belljar.client.remote import sendable
from belljar.core import Belljar
from belljar.errors import (
    BelljarError,
    Closed,
    InvalidRequest,
    LimitExceeded,
    SandboxEnded,
    SandboxLost,
    ServerRefused,
)
from belljar.kept import events
from belljar.kept.options import make_options
from belljar.kept.processes import Process, Processes
from belljar.kept.remote import inputs
from belljar.kept.remote.files import RemoteFiles
from belljar.kept.remote.processes import RemoteProcess
from belljar.kept.sandbox import Sandbox
from belljar.kept.setup import WORKSPACE
from belljar.model import Limits, Result
from belljar.network import Allow


class RemoteSandbox(Sandbox):
    """`Sandbox(url=…, key=…)`. With `sandbox_id` one that is there already; closing it ends it."""

    def __init__(
        self,
        jar: Belljar | client.Belljar | None = None,
        *,
        url: str = "",
        key: str = "",
        sandbox_id: str = "",
        **options: Any,
    ) -> None:
        if isinstance(jar, Belljar):
            raise InvalidRequest("a Belljar of this machine and url= are two places: give one")
        self._client = jar or client.Belljar(url, key)
        self._own_client = jar is None
        self._options = make_options(options)
        self._asked = options
        self.sandbox_id = sandbox_id
        self.on_end = None
        self._told: dict[str, Any] = {}
        self._ended = ""
        self._under_way = 0
        self._own_datasets: list[str] = []
        self._followed = Processes[RemoteProcess]()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        if self._told or self._ended:
            return
        if self.sandbox_id:
            self._told = await self._say("GET")
            listed = await self._say("GET", "/processes")
            for told in listed["processes"]:
                process = RemoteProcess.known(self._client.connection, self._path(), told)
                self._followed.add(process)
            return
        said = sendable({name: v for name, v in self._asked.items() if name not in ("inputs",)})
        try:
            said["inputs"] = await inputs.sent(
                self._client.connection, self._asked.get("inputs") or {}, self._own_datasets
            )
            self._adopt_told(await self._client.connection.ask("POST", "/v1/sandboxes", said))
        except BaseException:
            await self._remove_datasets()
            raise

    def _adopt_told(self, told: dict[str, Any]) -> None:
        self._told = told
        self.sandbox_id = told["id"]

    # -- what it is ------------------------------------------------------------------------------

    @property
    def ended(self) -> str:
        return self._ended

    @property
    def running(self) -> bool:
        """Whether a run that was begun here is under way."""
        return self._under_way > 0

    @property
    def runs(self) -> int:
        return int(self._told.get("runs", 0))

    @property
    def ground(self) -> tuple[str, str, str]:
        self._check()
        return self._told["engine"], self._told["environment"], self._told["language"]

    def cpu_ms(self) -> float | None:
        return None

    # -- runs ------------------------------------------------------------------------------------

    async def run(
        self,
        code: str,
        *,
        timeout_s: float | None = None,
        stdin: str | bytes = b"",
        on_event: Callable[[events.Event], None] | None = None,
    ) -> Result:
        result = None
        async with aclosing(self.stream(code, timeout_s=timeout_s, stdin=stdin)) as happening:
            async for event in happening:
                if isinstance(event, events.Ended):
                    result = event.result
                elif on_event:
                    on_event(event)  # what it raises leaves the stream: the server ends the run
        assert result is not None
        return result

    async def stream(
        self, code: str, *, timeout_s: float | None = None, stdin: str | bytes = b""
    ) -> AsyncGenerator[events.Event, None]:
        said: dict[str, Any] = {"code": code, "stdin": results.content("stdin", stdin)}
        if timeout_s is not None:
            said["timeout_s"] = timeout_s
        self._check()
        self._under_way += 1
        ended = False
        try:
            async with aclosing(self._events("POST", "/runs", said)) as happening:
                async for name, told in happening:
                    if name == "sandbox":
                        self._told = told
                    elif event := _event(name, told):
                        ended = isinstance(event, events.Ended)
                        yield event
            if not ended:
                raise ServerRefused("the server told no result")
        except BelljarError:
            await self._look_again()
            raise
        finally:
            self._under_way -= 1

    def interrupt(self) -> None:
        self._tell("/interrupt")

    def kill(self) -> None:
        self._tell("/kill")

    def extend(self, seconds: float) -> None:
        if not (isinstance(seconds, (int, float)) and 0 < seconds < float("inf")):
            raise LimitExceeded(f"extend: must be a number of seconds above 0, not {seconds!r}")
        self._tell("/extend", {"seconds": seconds})

    # -- files and programs ----------------------------------------------------------------------

    @property
    def files(self) -> RemoteFiles:
        self._check()
        return RemoteFiles(self._client.connection, f"{self._path()}/files", self._translated)

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
        said = _program(program, shell, env, folder)
        said["stdin"] = results.content("stdin", stdin)
        if timeout_s is not None:
            said["timeout_s"] = timeout_s
        return results.result(await self._say("POST", "/exec", said))

    async def start(
        self,
        program: str | Sequence[str],
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        folder: str = WORKSPACE,
        terminal: bool = False,
        detached: bool = False,
    ) -> Process:
        """As here. `detached`: it goes on when this client has gone."""
        self._check()
        said = _program(program, shell, env, folder) | {"terminal": terminal, "detached": detached}
        limits = Limits(**self._told["limits"])
        async with self._translated():
            process = await RemoteProcess.begin(self._client.connection, self._path(), said, limits)
        self._followed.add(process)
        return process

    def processes(self) -> list[Process]:
        """Those that run, of those that are known here."""
        return self._followed.running()

    def process(self, process_id: int) -> Process:
        return self._followed.get(process_id)

    # -- packages, going back, branching ---------------------------------------------------------

    async def install(self, *packages: str) -> dict[str, str]:
        told = await self._say("POST", "/install", {"packages": list(packages)})
        versions: dict[str, str] = told["versions"]
        return versions

    @property
    def network(self) -> tuple[Allow, ...]:
        """As the server said it last."""
        return tuple(Allow.of(rule) for rule in self._told.get("network", ()))

    async def set_network(self, network: Allow | str | Sequence[Allow | str] | None) -> None:
        self._told = await self._say("PUT", "/network", sendable({"network": network}))

    def checkpoints(self) -> tuple[int, ...]:
        """As the server said them last."""
        return tuple(self._told.get("checkpoints", ()))

    async def rollback(self, run_id: int) -> None:
        self._told = await self._say("POST", "/rollback", {"run_id": run_id})

    async def restart(self) -> None:
        self._told = await self._say("POST", "/restart")

    async def fork(self, count: int = 1, *, at: int | None = None) -> list[Sandbox]:
        if type(count) is not int or not 1 <= count <= 256:
            raise InvalidRequest(f"fork: count must be a whole number of 1 to 256, not {count!r}")
        told = await self._say("POST", "/fork", {"count": count, "at": at})
        children: list[Sandbox] = []
        for one in told["sandboxes"]:
            child = RemoteSandbox(self._client)
            child._asked = self._asked
            child._adopt_told(one)
            children.append(child)
        return children

    # -- the end ---------------------------------------------------------------------------------

    async def close(self, why: str = "it was closed") -> None:
        if self._ended and not self._told:
            return
        self._ended = self._ended or why
        told, self._told = self._told, {}
        if told:
            with contextlib.suppress(BelljarError):  # it ends by itself when it is idle
                await self._client.connection.ask("DELETE", self._path())
        for process in self._followed:
            await process.leave()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._remove_datasets()
        if self._own_client:
            await self._client.close()
        if self.on_end:
            self.on_end()

    async def _remove_datasets(self) -> None:
        while self._own_datasets:
            path = f"/v1/datasets/{self._own_datasets.pop()}"
            with contextlib.suppress(BelljarError):
                await self._client.connection.ask("DELETE", path)

    # -- asking ----------------------------------------------------------------------------------

    def _path(self) -> str:
        return f"/v1/sandboxes/{self.sandbox_id}"

    def _check(self) -> None:
        if self._ended:
            raise SandboxEnded(f"this sandbox has ended: {self._ended}", hint="make a new one")
        if not self._told:
            raise Closed("this sandbox was not opened", hint="use it in a with statement")

    async def _say(self, method: str, below: str = "", said: Any = None) -> dict[str, Any]:
        if self._told or self._ended:
            self._check()
        async with self._translated():
            return await self._client.connection.ask(method, self._path() + below, said)

    async def _events(
        self, method: str, below: str, said: Any
    ) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        async with self._translated():
            happening = self._client.connection.events(method, self._path() + below, said)
            async with aclosing(happening):
                async for told in happening:
                    yield told

    @contextlib.asynccontextmanager
    async def _translated(self) -> AsyncGenerator[None, None]:
        """A server that does not know the sandbox has lost it: it was started anew."""
        try:
            yield
        except ServerRefused as error:
            if error.code == "not_found":
                raise SandboxLost("the sandbox is gone: the server does not know it") from error
            raise

    def _tell(self, below: str, said: Any = None) -> None:
        """Sent without waiting; with no run under way there is nothing to be told."""
        self._check()
        task = asyncio.ensure_future(_quietly(self._say("POST", below, said)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_again(self) -> None:
        """What is left of it after something went wrong."""
        try:
            self._told = await self._say("GET")
        except BelljarError:
            self._told = {**self._told, "checkpoints": []}


async def _quietly(work: Awaitable[Any]) -> None:
    with contextlib.suppress(BelljarError):
        await work


def _event(name: str, told: Mapping[str, Any]) -> events.Event | None:
    if name == "output":
        return events.Printed(stream=told["stream"], data=results.printed(told))
    if name == "shown":
        return events.Shown(output=results.output(told))
    if name == "usage":
        return events.Used(usage=results.usage(told))
    if name == "progress":
        return events.Progress(fraction=told["fraction"], message=told["message"])
    return events.Ended(result=results.result(told)) if name == "end" else None


def _program(
    program: str | Sequence[str], shell: bool, env: Mapping[str, str] | None, folder: str
) -> dict[str, Any]:
    given = program if isinstance(program, str) else list(program)
    return {"program": given, "shell": shell, "env": dict(env or {}), "folder": folder}
