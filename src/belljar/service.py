"""The pipeline, in one direction: request → policy → wall → (filter) → pool → run → result.

Front doors translate into a Request and out of a Result; everything between is here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from belljar import execution, threads
from belljar.building import Builds
from belljar.conversation import Conversation
from belljar.engines import registry
from belljar.engines.base import CannotMount, Engine, Ground
from belljar.environments.catalogue import BASE, Environment
from belljar.environments.folders import Progress
from belljar.errors import (
    Closed,
    EngineError,
    InvalidRequest,
    Unavailable,
    UnknownEngine,
)
from belljar.holding import Held, check_keepable, mounting, unmountable
from belljar.model import NOBODY, Caller, Finding, Request, Result, Usage
from belljar.networking import Network, OnEgress, Outlet
from belljar.policy import filter as static_filter
from belljar.policy.decide import Decision, decide
from belljar.policy.names import check_names
from belljar.pool import Pool
from belljar.receiver import OnOutput, OnUsage, Outcome
from belljar.runtimes import languages, restricted
from belljar.sandbox import Order
from belljar.settings import Settings
from belljar.trail.entry import CallbackFailed, Entry, Recorders
from belljar.walls import Walls

if TYPE_CHECKING:
    from belljar.packages import Packages

_LANGUAGES = [language.name for language in languages.BUILT_IN]
_UNFILTERED = static_filter.Verdict(denied=False), Usage()


class Service:
    """The walls, and the runs in flight."""

    def __init__(
        self,
        settings: Settings,
        *,
        rules: static_filter.Rules | None = None,
        on_progress: Progress | None = None,
        on_egress: OnEgress | None = None,
    ) -> None:
        self.settings = settings
        self.closed = False
        self._walls = Walls(settings)
        self._rules = rules or static_filter.Rules()
        self._builds = Builds()
        self._grounds = execution.Grounds(settings, on_progress, self._builds)
        self._network = Network(settings, on_egress)
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._runs: set[asyncio.Task[object]] = set()
        self._idle: asyncio.Future[None] | None = None
        """Awaited by `close`."""
        self._recorders = Recorders(settings)

    async def run(
        self,
        request: Request,
        *,
        stdin_descriptor: int | None = None,
        on_output: OnOutput | None = None,
        on_usage: OnUsage | None = None,
        caller: Caller = NOBODY,
    ) -> Result:
        """In the caller's own task: one more would cost a fast run some of its time."""
        if self.closed:
            raise Closed("this Belljar is closed", hint="make a new one")
        task = asyncio.current_task()
        assert task is not None
        self._runs.add(task)
        try:
            if self.settings.trail:
                entry = await self._attempt(request, caller)
            else:
                entry = Entry(tenant=caller.tenant)
            try:
                return await entry.end(
                    await self._pipeline(
                        request, entry, caller, stdin_descriptor, on_output, on_usage
                    )
                )
            except BaseException as error:
                await entry.fail(error)
                raise
        except CallbackFailed as failed:
            raise failed.failure from None
        except asyncio.CancelledError:
            # `close` asked for one cancellation; any other is the caller's own.
            if self.closed and task.uncancel() == 0:
                raise Closed("this Belljar was closed while the code ran") from None
            raise
        except (EngineError, Unavailable):
            self._walls.forget()
            raise
        finally:
            self._runs.discard(task)
            if self._idle and not self._runs:
                self._idle.set_result(None)

    async def open_trail(self) -> None:
        """Now rather than at the first run: attempts of dead processes are then marked lost."""
        await self._recorders.get(NOBODY)

    def trail_trouble(self) -> str:
        """Why the trail cannot be written now, so that nothing would run; empty if it can."""
        return self._recorders.trouble()

    async def refused(self, request: Request, reason: str, *, caller: Caller) -> None:
        """Writes down what a front door turned away before it came here (P2)."""
        if self.settings.trail and not self.closed:
            recorder = await self._recorders.get(caller)
            entry = await recorder.entry("run", request, refused=True)
            await entry.close("refused", error=reason)

    async def _pipeline(
        self,
        request: Request,
        entry: Entry,
        caller: Caller,
        stdin_descriptor: int | None,
        on_output: OnOutput | None,
        on_usage: OnUsage | None,
    ) -> Result:
        started = time.perf_counter()
        decision = self._decide(request)
        request = decision.request
        environment, tier = execution.environment(request)
        wanted = self._walls.wanted(
            request, environment.name, live_stdin=stdin_descriptor is not None
        )
        pool, reason = self._walls.find(request.engine, wanted)
        engine = pool.engine
        verdict, usage = await self._filter(decision, pool, entry, on_usage)
        on_usage = _on_top_of(usage, on_usage)
        if verdict.denied:
            denied = _denied(decision, verdict.findings, verdict.reason, started)
            return dataclasses.replace(denied, usage=usage)
        ground = await self._ground(pool, environment, tier)
        order = execution.order(
            request, ground, engine.interpreter, stdin_descriptor=stdin_descriptor
        )
        added = (
            await self._packages(request, environment, engine, caller) if request.packages else None
        )
        async with self._network.opened(request, entry) as outlet:
            outcome, isolation = await self._execute(
                pool, ground, order, entry, on_output, on_usage, added, outlet
            )
        status = execution.status(outcome)
        outcome.error = execution.uncaught(request, outcome)
        if read_ms := usage.cpu_ms:  # by the filter
            usage = dataclasses.replace(outcome.usage, cpu_ms=outcome.usage.cpu_ms + read_ms)
        else:
            usage = outcome.usage
        if request.language_level == "restricted":
            isolation = {**isolation, "language": restricted.mechanism()}
            if findings := restricted.refusals(outcome.error, order.seal):
                words = "".join(f"line {f.line}: {f.message}\n" for f in findings)
                denied = _denied(decision, findings, words, started)
                return dataclasses.replace(denied, usage=usage)
        return Result(
            status=status,
            exit_code=outcome.exit_code,
            signal=outcome.signal,
            stdout=outcome.stdout.decode("utf-8", "replace"),
            stderr=outcome.stderr.decode("utf-8", "replace"),
            dropped=outcome.dropped,
            error=outcome.error,
            files=outcome.files,
            duration_ms=(time.perf_counter() - started) * 1000,
            usage=usage,
            execution_id=entry.id,
            language=request.language,
            environment=environment.name,
            engine=engine.name,
            engine_reason=reason,
            isolation=isolation,
            warnings=(
                *decision.warnings,
                *verdict.warnings,
                *execution.remarks(outcome, self.settings),
                *(outlet.remarks if outlet else ()),
            ),
            findings=verdict.findings,
            egress=tuple(outlet.egress) if outlet else (),
        )

    async def warm(self, name: str, count: int, *, engine: str = "auto") -> None:
        """Returns when `count` sandboxes wait for an environment, or for a language's environment:
        so many of each of its tiers, since the code decides which one it needs."""
        if type(count) is not int or count < 0:
            raise InvalidRequest(f"warm: count must be a whole number, not {count!r}")
        if engine not in registry.known(engine):
            raise UnknownEngine(
                f"engine: {str(engine)[:40]!r} is unknown",
                hint=f"known engines: {', '.join(registry.names())}",
            )
        environment = execution.named(name)
        request = Request(code="", language=execution.a_language(environment))
        pool, _ = self._walls.find(engine, self._walls.wanted(request, environment.name))
        for tier in [tier.name for tier in environment.tiers] or [""]:
            await pool.warm(await self._ground(pool, environment, tier), count)

    async def keep(
        self,
        request: Request,
        *,
        paths: Mapping[str, str | os.PathLike[str]],
        caller: Caller = NOBODY,
        sandbox_id: str = "",
        maximum_s: float | None = None,
    ) -> Held:
        """A sandbox that stays until it is released. `paths`: inputs that are files or folders of
        the host. `maximum_s`: the most time of one run, below the operator's maximum."""
        if self.closed:
            raise Closed("this Belljar is closed", hint="make a new one")
        recorder = await self._recorders.get(caller, sandbox=sandbox_id)
        life = await recorder.entry("sandbox", request, paths=[*map(str, paths)][:100] or None)
        try:
            held = await self._keep(request, paths, life, caller)
        except BaseException as error:
            await life.fail(error)
            raise
        most_s = held.maximum_s if maximum_s is None else min(held.maximum_s, maximum_s)
        return dataclasses.replace(held, recorder=recorder, life=life, maximum_s=most_s)

    async def _keep(
        self,
        request: Request,
        paths: Mapping[str, str | os.PathLike[str]],
        life: Entry,
        caller: Caller,
    ) -> Held:
        from belljar import inputs  # only who keeps sandboxes needs it

        decision = self._decide(request)
        request = decision.request
        check_keepable(decision)
        check_names("inputs", [*request.inputs, *paths])
        environment, tier = execution.environment(request)
        sources: tuple[inputs.Source, ...] = ()
        if paths:
            sources = await threads.FILES.do_for(caller.tenant, inputs.look, paths)
        wanted = self._walls.wanted(request, environment.name, kept=True)
        pool, reason = self._walls.find(request.engine, wanted)
        engine = pool.engine
        ground = dataclasses.replace(await self._ground(pool, environment, tier), kept=True)
        order = execution.order(request, ground, engine.interpreter)
        driver = execution.driver(request, ground)
        sets = await self._packages(request, environment, engine, caller)
        outlet = None
        try:
            await life.written()
            if request.network:
                outlet = await self._network.open(request, life)
                order = outlet.order(order, engine)
            doors = outlet.doors(engine) if outlet else None
            wall, copied = await inputs.walled(
                *(engine, ground, request.limits, sources, sets.mounts),
                doors=doors,
                whose=caller.tenant,
            )
        except BaseException as error:
            sets.close()
            if outlet:
                await outlet.leave()
            if isinstance(error, CannotMount):
                raise unmountable(error) from error
            raise
        warnings = [f"{one.mount.place} was copied: it could not be mounted" for one in copied]
        return Held(
            conversation=Conversation(wall),
            packages=sets,
            outlet=outlet,
            copied=copied,
            engine=engine,
            ground=ground,
            request=dataclasses.replace(request, inputs=order.inputs),
            env=order.env,
            driver=driver,
            reason=reason,
            warnings=(*decision.warnings, *warnings),
            maximum_s=self.settings.maxima.timeout_s,
            decide=lambda asked: self._decide(asked).request,
        )

    def waiting(self) -> dict[str, dict[str, int]]:
        return self._walls.waiting()

    def stop_building(self) -> None:
        self._builds.close()

    async def close(self) -> None:
        """Ends the runs under way; their callers get Closed."""
        self.closed = True
        self._builds.close()
        if self._runs:
            self._idle = asyncio.get_running_loop().create_future()
            for task in self._runs:
                task.cancel()
            await self._idle
        self._grounds.close()
        await self._walls.close()
        await self._network.close()
        await self._recorders.close()

    async def _attempt(self, request: Request, caller: Caller) -> Entry:
        return await (await self._recorders.get(caller)).entry("run", request)

    def _decide(self, request: Request) -> Decision:
        return decide(
            request,
            self.settings,
            languages=languages.get,
            engines=registry.known(request.engine),
            known_languages=_LANGUAGES,
        )

    async def _ground(self, pool: Pool, environment: Environment, tier: str) -> Ground:
        in_image = pool.engine.capabilities.own_environments
        return await self._grounds.get(environment, tier, in_image=in_image)

    async def _packages(
        self, request: Request, environment: Environment, engine: Engine, caller: Caller
    ) -> Packages:
        """What was asked for, built and ready to be mounted."""
        from belljar.packages import Packages  # few runs want any

        sets = Packages(self.settings, environment, builds=self._builds, caller=caller)
        if request.packages:
            mounting(engine, request)
            await sets.add(request.packages)
        return sets

    async def _filter(
        self, decision: Decision, pool: Pool, entry: Entry, on_usage: OnUsage | None
    ) -> tuple[static_filter.Verdict, Usage]:
        """Hostile source is parsed in a sandbox like any other, never in this process; and what
        that takes is the caller's, also if nothing else comes to run."""
        request = decision.request
        if decision.filter == "off":
            return _UNFILTERED
        reading = Request(
            code=static_filter.script(),
            stdin=static_filter.request_stdin(request.code, self._rules, files=request.files),
            environment=BASE.name,
            limits=static_filter.LIMITS,
        )
        ground = await self._ground(pool, BASE, "")
        order = execution.order(reading, ground, pool.engine.interpreter)
        outcome, _ = await self._execute(pool, ground, order, entry, on_usage=on_usage)
        entry.usage = outcome.usage
        if on_usage:
            try:
                on_usage(outcome.usage)
            except Exception as error:
                raise CallbackFailed(error) from error
        told = outcome.stdout.decode("utf-8", "replace")
        verdict = static_filter.judge(static_filter.parse(told), decision.filter)
        return verdict, outcome.usage

    async def _execute(
        self,
        pool: Pool,
        ground: Ground,
        order: Order,
        entry: Entry,
        on_output: OnOutput | None = None,
        on_usage: OnUsage | None = None,
        added: Packages | None = None,
        outlet: Outlet | None = None,
    ) -> tuple[Outcome, Mapping[str, str]]:
        entry.begin()
        await self._slots.acquire()
        try:
            order = execution.with_packages(order, added.path) if added else order
            order = outlet.order(order, pool.engine) if outlet else order
            doors = outlet.doors(pool.engine) if outlet else None
            if added or doors:
                mounts = added.mounts if added else ()
                sandbox = await pool.make_with(ground, order.limits, mounts, doors=doors)
            else:
                sandbox = await pool.take(ground, order.limits)
        except BaseException as error:
            self._slots.release()
            if added:
                added.close()
            if isinstance(error, CannotMount):
                raise unmountable(error) from error
            raise
        try:
            await entry.written()
            outcome = await sandbox.run(
                order, whose=entry.tenant, on_output=on_output, on_usage=on_usage
            )
        finally:
            if outlet:
                outlet.look(pool.engine, sandbox.wall)
            # The slot is free only when the old sandbox is gone, so teardown cannot pile up.
            gone = pool.discard(sandbox, ground)
            gone.add_done_callback(self._freed)
            if added:
                gone.add_done_callback(lambda _: added.close())
        return outcome, sandbox.isolation

    def _freed(self, _: object) -> None:
        self._slots.release()


def _on_top_of(before: Usage, on_usage: OnUsage | None) -> OnUsage | None:
    """Tells what a run uses together with what was used before it."""
    if on_usage is None or not before.cpu_ms:
        return on_usage

    def told(usage: Usage) -> None:
        on_usage(dataclasses.replace(usage, cpu_ms=usage.cpu_ms + before.cpu_ms))

    return told


def _denied(
    decision: Decision, findings: tuple[Finding, ...], reason: str, started: float
) -> Result:
    return Result(
        status="denied",
        exit_code=None,
        stderr=reason,
        duration_ms=(time.perf_counter() - started) * 1000,
        execution_id=os.urandom(16).hex(),
        language=decision.request.language,
        warnings=decision.warnings,
        findings=findings,
    )
