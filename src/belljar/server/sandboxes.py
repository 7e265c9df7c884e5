"""Kept sandboxes and whose they are. Another tenant's is answered as one that never was (S4)."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from belljar.errors import Busy, LimitExceeded
from belljar.kept import events
from belljar.kept.run import sandbox_ended
from belljar.kept.sandbox import Sandbox
from belljar.model import Limits
from belljar.policy.limits import BOUNDS, requested_limits
from belljar.server import budget
from belljar.server.errors import ApiError
from belljar.server.gate import Visit
from belljar.server.programs import Programs
from belljar.server.tenants import Tenant

if TYPE_CHECKING:
    from belljar.server.server import Server

REMEMBERED = 10_000
"""Sandboxes that have ended, and why."""
WATCH_S = 1.0
"""How often what sandboxes use is counted; that of tenants without a bound less often."""
UNBOUNDED_ROUNDS = 5
IDLE_MS = 20.0
"""What a sandbox may use in WATCH_S and still count as idle."""
IDLE_S, LIFETIME_S = 600.0, 3600.0
"""If nobody asks for other times."""
log = structlog.get_logger("belljar.server")


class Owned:
    """A kept sandbox on this server."""

    def __init__(
        self,
        box: Sandbox,
        tenant: Tenant,
        *,
        options: Mapping[str, Any],
        limits: Limits,
        datasets: frozenset[str],
        release: Callable[[], None],
        hold_output: Callable[[int], budget.Hold],
    ) -> None:
        self.box = box
        self.tenant = tenant
        self.options = options
        """Those of `Sandbox` that concern its life."""
        self.limits = limits
        self.datasets = datasets
        self.made = time.time()
        self.ground = ("", "", "")
        """Engine, environment and language."""
        self.programs = Programs(box, lambda: hold_output(budget.of_program(limits)))
        self.stands = True
        """Its walls do, with the files in them: after its end, too, while branches live there."""
        self._release = release
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._counted_ms = 0.0
        self._began: float | None = None
        """When the run under way did, if only the agent could tell what it uses."""
        self._told_ms = 0.0
        """What the agent told of it."""
        self.cut_off = False
        """The run under way was ended: nothing is left of its tenant's CPU seconds."""

    @property
    def id(self) -> str:
        return self.box.sandbox_id

    @contextlib.asynccontextmanager
    async def turn(self, wait_s: float) -> AsyncIterator[None]:
        """One thing at a time; here, so that it is known which run an interrupt would meet."""
        if self._turn.locked():
            if self.options.get("when_busy") == "refuse":
                raise Busy("a run is under way in this sandbox", hint='or wait: when_busy="wait"')
            if self._waiting >= self.tenant.quotas.queue:
                raise ApiError(
                    "queue_full",
                    f"{self._waiting} requests wait for this sandbox already",
                    hint="wait as long as Retry-After says, then try again",
                    retry_after_s=1,
                )
        self._waiting += 1
        try:
            async with asyncio.timeout(wait_s):
                await self._turn.acquire()
        except TimeoutError:
            raise ApiError(
                "queue_timeout",
                f"the sandbox was busy for {wait_s:g} s",
                hint="POST …/interrupt ends what is under way",
                retry_after_s=1,
            ) from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turn.release()

    def count_cpu(self) -> float:
        """Adds what was used since it was last counted to the tenant's account: programs in the
        background use some, too. Returns it in milliseconds."""
        now_ms = self.box.all_cpu_ms()
        if now_ms is None:
            return 0.0
        new_ms = max(0.0, now_ms - self._counted_ms)
        self._counted_ms = max(now_ms, self._counted_ms)
        self.tenant.used(new_ms)
        return new_ms

    def begin_run(self) -> None:
        self.count_cpu()
        self.cut_off, self._told_ms = False, 0.0
        self._began = time.perf_counter() if self.box.cpu_ms() is None else None

    def end_run(self, cpu_ms: float | None) -> None:
        """None: it ended without a result, and is charged for what it could have used where nobody
        could see what it did."""
        if self._began is None:
            self.count_cpu()
            return
        if cpu_ms is None:
            cpu_ms = (time.perf_counter() - self._began) * 1000 * self.limits.cpus
        self._told(cpu_ms)

    def saw(self, event: events.Event) -> None:
        """Of the run under way: where the wall cannot be looked at, this is how it is charged."""
        if isinstance(event, events.Used) and self._began is not None:
            self._told(event.usage.cpu_ms)
            if self.tenant.out_of_cpu():
                self.cut()

    def _told(self, cpu_ms: float) -> None:
        if cpu_ms > self._told_ms:
            self.tenant.used(cpu_ms - self._told_ms)
            self._told_ms = cpu_ms

    def cut(self) -> None:
        """Ends the run under way, with its state."""
        self.cut_off = True
        self.box.kill()

    def fallen(self) -> None:
        """Nothing of it is left: what it took is given back."""
        if self.stands:
            self.stands = False
            self._release()


class Book:
    """Which sandboxes there are."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._living: dict[str, Owned] = {}
        self._opening: set[Owned] = set()
        self._standing: set[Owned] = set()
        """Those that have ended and whose walls stand."""
        self._making: dict[str, int] = {}
        """How many are being made, by tenant."""
        self._ended: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._watching: asyncio.Task[None] | None = None

    # -- asking ----------------------------------------------------------------------------------

    def find(self, visit: Visit, sandbox_id: str, *, any_tenant: bool = False) -> Owned:
        """The tenant's own sandbox of that id; for anything else the same 404. `any_tenant`: an
        operator's key finds those of all tenants."""
        assert visit.tenant is not None
        owned = self._living.get(sandbox_id)
        if owned and owned.tenant.name == visit.tenant.name:
            if owned.box.ended:
                raise sandbox_ended(owned.box.ended)
            return owned
        if owned and visit.operator and any_tenant:
            return owned
        tenant, why = self._ended.get(sandbox_id, ("", ""))
        if why and tenant == visit.tenant.name:
            raise sandbox_ended(why)
        raise ApiError(
            "not_found", "there is no such sandbox", hint="GET /v1/sandboxes lists yours"
        )

    def of(self, tenant: Tenant) -> list[Owned]:
        return [
            owned
            for owned in self._living.values()
            if owned.tenant.name == tenant.name and not owned.box.ended
        ]

    def everybodys(self) -> list[Owned]:
        return [owned for owned in self._living.values() if not owned.box.ended]

    def uses(self, dataset_id: str) -> bool:
        return any(
            dataset_id in owned.datasets for owned in (*self._living.values(), *self._opening)
        )

    # -- making ----------------------------------------------------------------------------------

    async def make(
        self,
        tenant: Tenant,
        asked: Mapping[str, Any],
        *,
        datasets: Mapping[str, tuple[str, Path]],
        **more: Any,
    ) -> Owned:
        """`asked`: options of `Sandbox`; `datasets`: by the name of the input, id and path."""
        server = self._server
        settings = server.settings.jar
        chosen = {**tenant.options(asked, settings.defaults), **self._times(asked)}
        limits = requested_limits(settings, {name: chosen.get(name) for name in BOUNDS})
        inputs = dict(chosen.get("inputs") or {})
        inputs |= {name: path for name, (_, path) in datasets.items()}
        box = Sandbox(server.jar, **{**chosen, "inputs": inputs}, **more)
        box.maximum_s = tenant.maximum_s(settings.maxima)
        with self._room(tenant, 1):
            tenant.start()
            release = server.admission.hold(
                tenant, memory_bytes=limits.memory_bytes, disk_bytes=limits.disk_bytes
            )
            owned = Owned(
                box,
                tenant,
                options=chosen,
                limits=limits,
                datasets=frozenset(found for found, _ in datasets.values()),
                release=release,
                hold_output=partial(server.admission.hold_output, tenant),
            )
            self._opening.add(owned)
            try:
                async with server.admission.place(tenant):
                    await box.open()
            except BaseException:
                release()
                raise
            finally:
                self._opening.discard(owned)
            await self._keep([owned])
        return owned

    async def fork(self, owned: Owned, count: int, at: int | None) -> list[Owned]:
        server, tenant, limits = self._server, owned.tenant, owned.limits
        if not 1 <= count <= 256:
            raise LimitExceeded("count: must be from 1 to 256")
        with self._room(tenant, count), contextlib.ExitStack() as undo:
            releases = []
            for _ in range(count):
                release = server.admission.hold(
                    tenant, memory_bytes=limits.memory_bytes, disk_bytes=limits.disk_bytes
                )
                undo.callback(release)
                releases.append(release)
            tenant.start(count)  # each is a sandbox like any other
            async with server.admission.place(tenant):
                boxes = await owned.box.fork(count, at=at)
            undo.pop_all()
            found = [
                Owned(
                    box,
                    tenant,
                    options=owned.options,
                    limits=limits,
                    datasets=owned.datasets,
                    release=release,
                    hold_output=partial(server.admission.hold_output, tenant),
                )
                for box, release in zip(boxes, releases, strict=True)
            ]
            await self._keep(found)
        return found

    def _times(self, asked: Mapping[str, Any]) -> dict[str, float]:
        settings = self._server.settings
        found = {}
        for name, usual, most in (
            ("idle_s", IDLE_S, settings.sandbox_idle_s),
            ("lifetime_s", LIFETIME_S, settings.sandbox_lifetime_s),
        ):
            value = asked.get(name)
            if value is not None and value > most:
                raise LimitExceeded(f"{name}: {value:g} is above this server's maximum of {most:g}")
            found[name] = min(usual, most) if value is None else value
        return found

    @contextlib.contextmanager
    def _room(self, tenant: Tenant, count: int) -> Any:
        """Those that are being made count, too, and those that have ended before their branches."""
        making = self._making.get(tenant.name, 0)
        most = tenant.quotas.sandboxes
        standing = sum(owned.tenant.name == tenant.name for owned in self._standing)
        if most and len(self.of(tenant)) + standing + making + count > most:
            raise ApiError(
                "quota_exceeded",
                f"{most} sandboxes at once are this key's quota",
                hint="end one with DELETE /v1/sandboxes/ID; it counts until its branches have ended"
                if standing
                else "end one with DELETE /v1/sandboxes/ID",
                retry_after_s=60,
            )
        total = len(self._living) + len(self._standing) + sum(self._making.values()) + count
        if total > self._server.settings.sandboxes_at_once:
            raise ApiError(
                "overloaded", "this server keeps as many sandboxes as it can", retry_after_s=60
            )
        self._making[tenant.name] = making + count
        try:
            yield
        finally:
            left = self._making[tenant.name] - count
            if left:
                self._making[tenant.name] = left
            else:
                del self._making[tenant.name]

    # -- ending ----------------------------------------------------------------------------------

    async def _keep(self, new: Sequence[Owned]) -> None:
        """All of them, or none: one whose time was over before it could be told is the end of the
        others, too."""
        for owned in new:
            self._living[owned.id] = owned
            owned.box.before_end = owned.count_cpu
            owned.box.on_end = partial(self._forget, owned)
            owned.box.on_fall = partial(self._fallen, owned)
            # What has happened already will not be told.
            if owned.box.ended:
                self._forget(owned)
            if owned.box.fallen:
                self._fallen(owned)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        try:
            for owned in new:
                owned.ground = owned.box.ground
        except BaseException:
            for owned in new:
                await owned.box.close()
            raise

    def _forget(self, owned: Owned) -> None:
        if self._living.pop(owned.id, None) is None:
            return
        owned.programs.forget()
        if owned.stands:
            self._standing.add(owned)
        self._ended[owned.id] = (owned.tenant.name, owned.box.ended)
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    def _fallen(self, owned: Owned) -> None:
        self._standing.discard(owned)
        owned.fallen()

    async def end(self, owned: Owned, why: str = "it was closed") -> None:
        await owned.box.close(why)

    def end_keyless(self, tenants: set[str]) -> None:
        """Ends the sandboxes of all tenants but these: their last keys were removed."""
        for owned in self.everybodys():
            if owned.tenant.name not in tenants:
                log.info("sandbox ended", reason="no key", tenant=owned.tenant.name)
                self._server.soon(owned.box.close("its tenant has no key any more"))

    async def close(self) -> None:
        """Ends them all, with the server."""
        if self._watching:
            self._watching.cancel()
            await asyncio.wait((self._watching,))
        why = "the server is shutting down"
        ends = [owned.box.close(why) for owned in self._living.values()]
        for failure in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(failure, BaseException):
                log.error("sandbox not ended", error=repr(failure))

    async def _watch(self) -> None:
        """Runs and programs in the background count while they run, and end when their tenant has
        no CPU time left: first the run, then the sandbox of what still goes on."""
        for number in itertools.count():
            await asyncio.sleep(WATCH_S)
            for owned in list(self._living.values()):
                if not owned.tenant.quotas.cpu_s_per_day and number % UNBOUNDED_ROUNDS:
                    continue
                try:
                    self._charge(owned)
                except Exception as error:  # one that is broken costs nobody else the count
                    log.error("CPU time not counted", sandbox=owned.id, error=repr(error))

    def _charge(self, owned: Owned) -> None:
        used_ms = owned.count_cpu()
        if used_ms <= IDLE_MS or not owned.tenant.out_of_cpu():
            return
        log.info("sandbox ended", reason="cpu quota", tenant=owned.tenant.name)
        if owned.box.running and not owned.cut_off:
            owned.cut()
        else:
            self._server.soon(owned.box.close("the CPU seconds of today are used up"))


def described(owned: Owned) -> dict[str, Any]:
    """For callers."""
    engine, environment, language = owned.ground
    return {
        "id": owned.id,
        "tenant": owned.tenant.name,
        "created": round(owned.made, 3),
        "engine": engine,
        "environment": environment,
        "language": language,
        "running": owned.box.running,
        "runs": owned.box.runs,
        "max_runs": owned.options.get("max_runs", 20),
        "idle_s": owned.options["idle_s"],
        "lifetime_s": owned.options["lifetime_s"],
        "checkpoints": list(owned.box.checkpoints()),
        "limits": dataclasses.asdict(owned.limits),
        "network": [rule.to_dict() for rule in owned.box.network],
    }
