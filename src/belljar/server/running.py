"""One run on behalf of a request: quotas, the queue, the run, and a client that may go away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import structlog
from starlette.requests import Request

from belljar.errors import BelljarError, Closed, InvalidRequest, TrailError, Unavailable
from belljar.model import Caller, Result, Usage
from belljar.policy.limits import check_limits, requested_limits
from belljar.server import budget
from belljar.server.admission import Place
from belljar.server.errors import ApiError, code_of
from belljar.server.gate import Visit, visit_of
from belljar.server.server import Server
from belljar.server.tenants import OutOfCpu, Tenant

log = structlog.get_logger("belljar.server")
T = TypeVar("T")
_SIZED = ("memory_bytes", "disk_bytes", "cpus", "output_bytes", "result_bytes")


async def run(
    server: Server,
    request: Request,
    code: str,
    options: Mapping[str, Any],
    *,
    execute: Callable[..., Awaitable[Result]] | None = None,
    **live: Any,
) -> Result:
    """The result, or the reason why there is none. `live`: on_output, on_usage. `execute`: instead
    of `Belljar.run`, with what that would be given."""
    visit = visit_of(request)
    tenant = visit.tenant
    assert tenant is not None  # the gate lets nobody else in
    settings = server.settings.jar
    begun, meter = False, None
    try:
        chosen = tenant.options(options, settings.defaults)
        limits = requested_limits(settings, {name: chosen.get(name) for name in _SIZED})
        limits = check_limits(limits, settings)  # what cannot be need not wait for room
        tenant.start()
        arrived = time.perf_counter()
        async with server.admission.place(
            tenant,
            memory_bytes=limits.memory_bytes,
            disk_bytes=limits.disk_bytes,
            held_bytes=budget.of_run(limits),
        ) as place:
            server.metrics.queued_seconds.observe(time.perf_counter() - arrived)
            begun = True
            meter = Meter(tenant, limits.cpus)
            watched = tenant.quotas.cpu_s_per_day or chosen.get("filter")
            if "on_usage" in live or watched:
                live["on_usage"] = meter.watching(live.get("on_usage"))
            work = execute or server.jar.run
            with code_runs(visit):
                result = await work(code, **chosen, **live, caller=caller(visit))
            keep(visit, place, result)
    except (BelljarError, ApiError) as error:
        if meter and (meter.begun or (not meter.watches and _may_have_run(error))):
            meter.broke_off()
            visit.ran = visit.ran or meter.begun
        reason = error.code if isinstance(error, ApiError) else code_of(type(error))
        server.metrics.refused.labels(tenant.name, reason).inc()
        log.info("refused", request_id=visit.request_id, reason=reason)
        if not begun:
            await refused(server, visit, code, options, reason)
        raise
    except asyncio.CancelledError:
        if meter and (meter.begun or not meter.watches):
            meter.broke_off()
        if not begun:
            server.soon(refused(server, visit, code, options, "client_gone"))
        raise
    assert meter is not None
    meter.ended(result)
    server.metrics.ended(tenant.name, result)
    return result


def _may_have_run(error: BelljarError | ApiError) -> bool:
    """Whether code that nobody watched can have run before this was raised."""
    if isinstance(error, TrailError):
        return error.ran
    return not isinstance(error, InvalidRequest | Unavailable)


class Meter:
    """What a run costs its tenant. It is charged as it is seen, so that a run that never ends, or a
    server that dies, costs too; and whoever hangs up pays as well."""

    def __init__(self, tenant: Tenant, cpus: float) -> None:
        self.begun = False
        """Its code was seen to run."""
        self.watches = False
        """It would see that: waiting for a place, a build or a sandbox costs nothing."""
        self._tenant = tenant
        self._cpus = cpus
        self._charged_ms = 0.0
        self._since = time.perf_counter()

    def watching(self, tell: Callable[[Usage], None] | None) -> Callable[[Usage], None]:
        """OutOfCpu when the tenant has used up its day: whoever called this ends the run."""

        self.watches = True

        def on_usage(usage: Usage) -> None:
            self.begun, self._since = True, time.perf_counter()
            self._charge(usage.cpu_ms)
            if tell:
                tell(usage)
            if self._tenant.out_of_cpu():
                raise OutOfCpu(self._tenant.quotas.cpu_s_per_day, time.time(), meanwhile=True)

        return on_usage

    def ended(self, result: Result) -> None:
        if not result.usage.cpu_ms and result.status in ("killed", "timeout", "out_of_memory"):
            self.broke_off()  # nobody was left to say what it used
        else:
            self._charge(result.usage.cpu_ms)

    def broke_off(self) -> None:
        """What was last seen, and from then on all that it could have used."""
        unseen_s = time.perf_counter() - self._since
        self._charge(self._charged_ms + unseen_s * 1000 * self._cpus)

    def _charge(self, cpu_ms: float) -> None:
        """Up to that, in all."""
        if cpu_ms > self._charged_ms:
            self._tenant.used(cpu_ms - self._charged_ms)
            self._charged_ms = cpu_ms


async def refused(
    server: Server,
    visit: Visit,
    code: str,
    options: Mapping[str, Any],
    reason: str,
) -> None:
    """Every attempt is in the trail, those too that never came to run (P2)."""
    try:
        await server.jar.refused(code, reason, **options, caller=caller(visit))
    except BelljarError as error:
        log.error("not in the trail", request_id=visit.request_id, error=str(error))


def caller(visit: Visit) -> Caller:
    assert visit.tenant is not None
    return Caller(
        tenant=visit.tenant.name,
        door=visit.door,
        request_id=visit.request_id,
        layers_bytes=visit.tenant.quotas.layers_bytes,
    )


@contextmanager
def code_runs(visit: Visit) -> Iterator[None]:
    """While it does. Refusals and what a sandbox lacks come before; of anything else nobody knows
    how far the code had come."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Closed) or not isinstance(error, BelljarError | ApiError):
            visit.ran = True
        raise
    visit.ran = True


def keep(visit: Visit, place: Place, result: Result) -> None:
    """A large result counts as what the server holds until its caller has it."""
    if (size := budget.size_of(result)) > budget.LARGE_BYTES:
        visit.after.append(place.keep(size))


async def while_client_waits(
    server: Server, request: Request, work: Callable[[], Awaitable[T]]
) -> T:
    """`work` in this task; cancelled when the client closes its connection or loses its key."""
    task = asyncio.current_task()
    assert task is not None
    why: ApiError | None = None

    def end(reason: ApiError) -> None:
        nonlocal why
        if why is None:
            why = reason
            task.cancel()

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        end(ApiError("client_gone", "the client has gone"))

    watching = asyncio.create_task(watch())
    server.waiting[end] = visit_of(request)
    try:
        return await work()
    except asyncio.CancelledError:
        if why and task.uncancel() == 0:
            server.metrics.gone.inc()
            raise why from None
        raise
    finally:
        del server.waiting[end]
        watching.cancel()
