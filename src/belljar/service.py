"""The pipeline, in one direction: request → policy → (filter) → pool / engine → run → result.

Front doors translate into a Request and out of a Result; everything between is here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from collections.abc import Iterator, Mapping

from belljar import execution
from belljar.engines import registry
from belljar.engines.base import Engine, Ground
from belljar.environments.folders import Progress
from belljar.errors import Closed, InvalidRequest
from belljar.model import Request, Result, Status
from belljar.policy import filter as static_filter
from belljar.policy.decide import Decision, decide
from belljar.pool import Pool
from belljar.runtimes import languages
from belljar.sandbox import OnOutput, OnUsage, Outcome
from belljar.settings import Settings


class Service:
    """One engine, its pool, and the runs in flight."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        *,
        rules: static_filter.Rules | None = None,
        on_progress: Progress | None = None,
    ) -> None:
        self.settings = settings
        self.engine = engine
        self.pool = Pool(engine, settings)
        self._rules = rules or static_filter.Rules()
        self._grounds = execution.Grounds(settings, on_progress)
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._runs: set[asyncio.Task[Result]] = set()

    async def run(
        self,
        request: Request,
        *,
        stdin_descriptor: int | None = None,
        on_output: OnOutput | None = None,
        on_usage: OnUsage | None = None,
    ) -> Result:
        if self.pool.closed:
            raise Closed("this Belljar is closed", hint="make a new one")
        work = asyncio.ensure_future(
            self._pipeline(request, stdin_descriptor, on_output=on_output, on_usage=on_usage)
        )
        self._runs.add(work)
        work.add_done_callback(self._runs.discard)
        try:
            return await work
        except asyncio.CancelledError:
            if self.pool.closed:
                raise Closed("this Belljar was closed while the code ran") from None
            raise

    async def _pipeline(
        self,
        request: Request,
        stdin_descriptor: int | None,
        *,
        on_output: OnOutput | None,
        on_usage: OnUsage | None,
    ) -> Result:
        started = time.perf_counter()
        decision = decide(
            request,
            self.settings,
            languages=languages.get,
            engines=("auto", *registry.NAMES),
            known_languages=[language.name for language in languages.BUILT_IN],
        )
        verdict = await self._filter(decision)
        if verdict.denied:
            result = Result(status="denied", exit_code=None, stderr=verdict.reason)
        else:
            result = await self._execute(
                decision.request, stdin_descriptor, on_output=on_output, on_usage=on_usage
            )
        return dataclasses.replace(
            result,
            execution_id=secrets.token_hex(16),
            language=decision.request.language,
            duration_ms=(time.perf_counter() - started) * 1000,
            warnings=(*decision.warnings, *verdict.warnings, *result.warnings),
            findings=verdict.findings,
        )

    async def warm(self, name: str, count: int) -> None:
        """Returns when `count` sandboxes wait for an environment, or for a language's environment:
        so many of each of its tiers, since the code decides which one it needs."""
        if type(count) is not int or count < 0:
            raise InvalidRequest(f"warm: count must be a whole number, not {count!r}")
        environment = execution.named(name)
        for tier in [tier.name for tier in environment.tiers] or [""]:
            await self.pool.warm(await self._grounds.get(environment, tier), count)

    async def close(self) -> None:
        """Ends the runs under way; their callers get Closed."""
        self.pool.closed = True
        for work in self._runs:
            work.cancel()
        await asyncio.gather(*self._runs, return_exceptions=True)
        self._grounds.close()
        await self.pool.close()
        await self.engine.close()

    async def _filter(self, decision: Decision) -> static_filter.Verdict:
        """Hostile source is parsed in a sandbox like any other, never in this process."""
        request = decision.request
        if decision.filter == "off":
            return static_filter.Verdict(denied=False)
        reading = Request(
            code=static_filter.script(),
            stdin=static_filter.request_stdin(request.code, self._rules, files=request.files),
            environment="base",
            limits=static_filter.LIMITS,
        )
        outcome = await self._execute(reading)
        return static_filter.judge(static_filter.parse(outcome.stdout), decision.filter)

    async def _execute(
        self,
        request: Request,
        stdin_descriptor: int | None = None,
        *,
        on_output: OnOutput | None = None,
        on_usage: OnUsage | None = None,
    ) -> Result:
        ground = await self._grounds.get(*execution.environment(request))
        await self._slots.acquire()
        try:
            sandbox = await self.pool.take(ground, request.limits)
        except BaseException:
            self._slots.release()
            raise
        try:
            order = execution.order(request, ground, self.engine.interpreter)
            order = dataclasses.replace(order, stdin_descriptor=stdin_descriptor)
            outcome = await sandbox.run(order, on_output=on_output, on_usage=on_usage)
        finally:
            # The slot is free only when the old sandbox is gone, so teardown cannot pile up.
            self.pool.discard(sandbox, ground).add_done_callback(lambda _: self._slots.release())
        outcome.error = execution.uncaught(request, outcome)
        return _result(outcome, sandbox.isolation, engine=self.engine.name, ground=ground)


def _result(
    outcome: Outcome, isolation: Mapping[str, str], *, engine: str, ground: Ground
) -> Result:
    """From what was seen to a verdict. The kernel's word goes before the guest's."""
    lack = outcome.error is not None and outcome.error.name == "MemoryError"
    status: Status
    if outcome.out_of_memory or (lack and outcome.exit_code == 1):
        status = "out_of_memory"
    elif outcome.timed_out:
        status = "timeout"
    elif not outcome.ended or outcome.signal is not None:
        status = "killed"
    else:
        status = "ok" if outcome.exit_code == 0 else "error"
    return Result(
        status=status,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        stdout=outcome.stdout.decode("utf-8", "replace"),
        stderr=outcome.stderr.decode("utf-8", "replace"),
        dropped=outcome.dropped,
        error=outcome.error,
        files=outcome.files,
        usage=outcome.usage,
        engine=engine,
        environment=ground.name,
        isolation=isolation,
        warnings=tuple(_remarks(outcome)),
    )


def _remarks(outcome: Outcome) -> Iterator[str]:
    if outcome.problem:
        yield f"the sandbox was lost: {outcome.problem}"
    if outcome.files_unnamed:
        yield f"{outcome.files_unnamed} more files were neither brought back nor named"
