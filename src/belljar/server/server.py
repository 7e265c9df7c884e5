"""Everything that lives as long as the server: its Belljar, keys, tenants, the queue, metrics."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

from belljar import threads
from belljar.core import Belljar
from belljar.errors import BelljarError, InvalidRequest
from belljar.server import budget, homes
from belljar.server.admission import Admission
from belljar.server.cursors import Cursors
from belljar.server.datasets import Datasets
from belljar.server.errors import ApiError
from belljar.server.gate import Visit
from belljar.server.keys import KEYS_LATE_S, Keyring
from belljar.server.logs import Trickle
from belljar.server.metrics import Metrics
from belljar.server.parsers import Parsers
from belljar.server.sandboxes import Book
from belljar.server.settings import ServerSettings
from belljar.server.signin import SignIn
from belljar.server.state import State
from belljar.server.surveys import Surveys
from belljar.server.tenants import Quotas, Tenant, today
from belljar.server.writing import Turns
from belljar.trail.trail import Trail

REFRESH_S = 1.0
"""How often keys and quotas are read again: a removed key works no longer than that."""
SAVE_S = 0.5
"""How often what was used is written down: a server that is killed forgets what was used since."""
RETRY_S = 5.0
STRANGERS_LOGGED_PER_S = 20
log = structlog.get_logger("belljar.server")


class Server:
    def __init__(self, settings: ServerSettings, *, port: int | None = None) -> None:
        self.settings = settings
        self._home = homes.take(settings.jar.home / "server")
        self.state = State(settings.state_url)
        self.keyring = Keyring(self.state.all_keys())
        self.sign_in: SignIn | None = None
        if not self.keyring:
            if not settings.loopback:
                raise InvalidRequest(
                    f"host: {settings.host} can be reached by others, and there is no key",
                    hint="belljar keys add NAME, or listen on 127.0.0.1",
                )
            self.sign_in = SignIn(settings.port if port is None else port)
        self._keys_read = time.monotonic()
        self._quotas: dict[str, Quotas | None] = {}
        self._tenants: dict[str, Tenant] = {}
        self._spent = self._sums()
        self._accounts = asyncio.Lock()
        """Nothing is added to the day's sums while they are read."""
        self.jar = Belljar(settings.jar)
        held_bytes = settings.held_bytes or budget.usual_bytes()
        self.admission = Admission(
            slots=settings.jar.concurrency, wait_s=settings.queue_wait_s, held_bytes=held_bytes
        )
        self.answers = budget.Answers(held_bytes // 2, wait_s=settings.queue_wait_s)
        self.bodies = budget.Bodies(settings.bodies_bytes)
        self.turns = Turns()
        """For what tenants are told."""
        self.parsers = Parsers()
        self.cursors = Cursors()
        self.book = Book(self)
        self.datasets = Datasets(
            settings.jar.home / "server" / "datasets", most_bytes=settings.dataset_bytes
        )
        self._set_quotas(self.state.tenants())
        self.metrics = Metrics()
        self.surveys = Surveys(settings.jar)
        self.jar.on_egress = self.metrics.tried
        self.ready = False
        self.draining = False
        self.failed = False
        """Whether something was lost at the end."""
        self._tasks: list[asyncio.Task[None]] = []
        self._trail: Trail | None = None
        self._trail_trouble = ""
        self._opening = threading.Lock()
        self._loose: set[asyncio.Task[None]] = set()
        self._strangers_log = Trickle(STRANGERS_LOGGED_PER_S)
        self.waiting: dict[Callable[[ApiError], None], Visit] = {}
        """What ends a request that is waited for, by the reason → whose it is."""

    def tenant(self, name: str) -> Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = Tenant(name, self._quotas_of(name))
            tenant.quotas_unread = self._is_unread(name)
            day, spent = self._spent
            tenant.recall(day, spent.get(name, 0.0))
        return tenant

    def _share(self) -> None:
        several = len(self._quotas) > 1
        self.admission.share(several)
        self.bodies.share(several)

    def _quotas_of(self, name: str) -> Quotas:
        own = self._quotas.get(name)
        usual = self.settings.quotas
        return usual.model_copy(update=dict(own.model_dump(exclude_unset=True))) if own else usual

    def _is_unread(self, name: str) -> bool:
        return name in self._quotas and self._quotas[name] is None

    def keys_trouble(self) -> str:
        """Why the keys that are known may not be those that are valid; empty if they are."""
        return "" if self.keys_age_s() < KEYS_LATE_S else "the server's keys cannot be read"

    def keys_age_s(self) -> float:
        """How long ago they were read."""
        return 0.0 if self.sign_in else time.monotonic() - self._keys_read

    def trail(self) -> Trail:
        """For reading; blocks."""
        with self._opening:
            if self._trail is None:
                self._trail = Trail(self.settings.jar.trail)
            return self._trail

    def soon(self, work: Coroutine[Any, Any, None]) -> None:
        """Done in the background, and before the server ends."""
        task = asyncio.ensure_future(work)
        self._loose.add(task)
        task.add_done_callback(self._loose.discard)

    async def start(self) -> None:
        work = (self._warm(), self._refresh(), self._keep_saving())
        self._tasks = [asyncio.create_task(one) for one in work]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.admission.close()
        self.jar.stop_building()
        await self._end("sandboxes", self.book.close)
        await self._end("work in the background", self._settle)
        await self._end("trail and pools", self.jar.close)
        await self._end("parsers", self.parsers.close)
        await self._end("CPU seconds", self._save)
        await self._end(
            "databases",
            functools.partial(threads.STATE.do_for, threads.OURS, self._close_databases),
        )

    async def _end(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """What cannot be put away keeps nothing else from being."""
        try:
            await work()
        except Exception as error:
            self.failed = True
            log.error("not ended well", what=what, error=str(error) or repr(error))

    async def _settle(self) -> None:
        await asyncio.gather(*self._loose, return_exceptions=True)

    def _close_databases(self) -> None:
        if self._trail:
            self._trail.close()
        self.state.close()
        self._home.close()

    async def drain(self) -> None:
        """Waits for the runs under way, then ends them: their callers are told."""
        self.draining = True
        self.ready = False
        deadline = time.monotonic() + self.settings.drain_s
        while self.admission.running or self.admission.waiting:
            if time.monotonic() >= deadline:
                log.warning("drained", killed=self.admission.running)
                self.admission.close()
                await self._end("sandboxes", self.book.close)
                await self._end("trail and pools", self.jar.close)
                return
            await asyncio.sleep(0.02)
        self.jar.stop_building()
        await self.book.close()  # with it ends what is streamed out of kept sandboxes

    def seen(
        self,
        scope: Any,
        visit: Visit,
        status: int,
        seconds: float,
        failure: BaseException | None,
    ) -> None:
        """One line for each request; its path without the query."""
        route = getattr(scope.get("route"), "path", "none")
        method = scope.get("method", "WEBSOCKET")
        self.metrics.requests.labels(method, route, status).inc()
        if failure is not None:
            log.error("failed", request_id=visit.request_id, route=route, exc_info=failure)
        if self.settings.access_log:
            client = scope.get("client")
            more = {}
            if visit.tenant is None:
                if (skipped := self._strangers_log.skipped()) is None:
                    return
                more = {"not_logged_before": skipped} if skipped else {}
            log.info(
                "request",
                request_id=visit.request_id,
                method=method,
                path=scope.get("raw_path", b"").decode("latin-1")[:200],
                status=status,
                ms=round(seconds * 1000, 2),
                tenant=visit.tenant.name if visit.tenant else "",
                client=client[0] if client else "",
                **more,
            )

    async def _warm(self) -> None:
        """Ready when the trail can be written and a sandbox of each environment waits; tried until
        it can. The pools are filled after that: whoever comes first need not wait for them all."""
        await self._until_done("trail", self.jar.open_trail)
        size = self.settings.jar.pool_size
        for name in self.settings.warm:
            await self._until_done(name, functools.partial(self.jar.warm, name, min(1, size)))
        self.ready = not self.draining
        for name in self.settings.warm:
            await self._until_done(name, functools.partial(self.jar.warm, name, size))

    async def _until_done(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await work()
            except InvalidRequest as error:  # a name that does not exist will not come to be
                log.error("not warmed", what=what, error=str(error))
                return None
            except BelljarError as error:
                log.error("not ready", what=what, error=str(error))
                await asyncio.sleep(RETRY_S)

    async def _refresh(self) -> None:
        """Each by itself: what cannot be read keeps nothing else from being."""
        while True:
            await asyncio.sleep(REFRESH_S)
            self._look_at_trail()
            for what, refresh in (
                ("keys", self._refresh_keys),
                ("quotas", self._refresh_quotas),
                ("CPU seconds", self._refresh_sums),
            ):
                try:
                    await refresh()
                except Exception as error:
                    log.error("state cannot be read", what=what, error=repr(error))

    async def _refresh_keys(self) -> None:
        if self.sign_in:
            return
        keys = await threads.STATE.do_for(threads.OURS, self.state.all_keys)
        self._keys_read = time.monotonic()
        self.keyring = Keyring(keys)
        self._end_keyless({key.tenant for key in keys})

    async def _refresh_quotas(self) -> None:
        self._set_quotas(await threads.STATE.do_for(threads.OURS, self.state.tenants))

    async def _refresh_sums(self) -> None:
        async with self._accounts:
            day, spent = self._spent = await threads.STATE.do_for(threads.OURS, self._sums)
            for tenant in self._tenants.values():
                tenant.recall(day, spent.get(tenant.name, 0.0))

    def _set_quotas(self, quotas: dict[str, Quotas | None]) -> None:
        if quotas == self._quotas:
            return
        self._quotas = quotas
        self._share()
        if unread := [name for name, own in quotas.items() if own is None]:
            log.error("quotas cannot be read", tenants=unread)
        for tenant in self._tenants.values():
            tenant.quotas_unread = self._is_unread(tenant.name)
            if not tenant.quotas_unread:
                tenant.quotas = self._quotas_of(tenant.name)

    def _end_keyless(self, tenants: set[str]) -> None:
        """Ends what was asked for with keys that were removed, and the sandboxes of all tenants but
        these, which have none left."""
        self.book.end_keyless(tenants)
        for end, visit in list(self.waiting.items()):
            if not visit.still_valid():
                end(ApiError("unauthenticated", "the key was removed: what it asked for was ended"))

    def _sums(self) -> tuple[int, dict[str, float]]:
        day = today()
        return day, self.state.spent(day)

    async def _save(self) -> None:
        """Adds what was used since the last time to what all servers have counted."""
        async with self._accounts:
            days: dict[int, dict[str, float]] = {}
            for name, tenant in self._tenants.items():
                for day, cpu_s in tenant.unsaved_s().items():
                    days.setdefault(day, {})[name] = cpu_s
            for day, new in sorted(days.items()):
                await self._save_day(day, new)

    async def _save_day(self, day: int, new: dict[str, float]) -> None:
        for name, cpu_s in new.items():
            self._tenants[name].saved(day, cpu_s)
        try:  # to its end, even if this task is cancelled
            await threads.STATE.do_for(threads.OURS, self.state.spend, day, new.items())
        except Exception:
            for name, cpu_s in new.items():
                self._tenants[name].saved(day, -cpu_s)
            raise

    async def _keep_saving(self) -> None:
        while True:
            await asyncio.sleep(SAVE_S)
            try:
                await self._save()
            except Exception as error:
                log.error("state cannot be written", error=repr(error))

    def _look_at_trail(self) -> None:
        """For the operator; callers are told by /ready, and when they are refused."""
        trouble = self.jar.trail_trouble()
        if bool(trouble) != bool(self._trail_trouble):
            self._trail_trouble = trouble
            if trouble:
                log.error("the trail cannot be written", error=trouble)
            else:
                log.info("the trail can be written again")
