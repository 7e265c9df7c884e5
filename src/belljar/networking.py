"""A sandbox's way to the gateway (N1, N2): opened before its run, closed before the run's end is
written, so that everything that was tried in between is in the trail."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, cast

from belljar.conversation import Conversation
from belljar.engines.base import DoorEngine, Doors, Engine, Wall
from belljar.errors import (
    BelljarError,
    Closed,
    EngineError,
    NetworkRefused,
    NetworkUnavailable,
    TrailError,
)
from belljar.model import Request, Result
from belljar.sandbox import Order
from belljar.settings import Settings
from belljar.trail.entry import Entry

if TYPE_CHECKING:
    from belljar.egress.gateway import Gateway, Lease
    from belljar.network import Egress, Rules, Secret

REVIVE_S = 0.1, 30.0
"""The shortest and longest wait before a kept sandbox that lost its gateway gets a new one. It
doubles each time that one is lost soon: code may be what ends them."""
MOST_TOLD = 100
"""Attempts that a result has; the trail has all."""
CLOSE_S = 15.0
"""Longer than a gateway that does not answer is waited for: when it is ended, what it had under way
is still recorded."""

_MOST_PAST = 256
_DATED_S = 0.001
"""To so much attempts are dated."""

OnEgress = Callable[["Egress", str], None]
"""With every attempt, of whatever sandbox, and its tenant."""


class Network:
    """The gateway of one Belljar, started with the first run that has rules. Each tenant has a
    process of its own."""

    def __init__(self, settings: Settings, on_egress: OnEgress | None = None) -> None:
        self._settings = settings
        self._on_egress = on_egress
        self._gateway: Gateway | None = None

    async def open(self, request: Request, entry: Entry) -> Outlet:
        """`entry`: what the attempts belong to."""
        from belljar.egress.gateway import Gateway  # few runs have a network
        from belljar.policy.network import allowed_hosts

        if self._gateway is None:
            most = allowed_hosts(self._settings)
            self._gateway = Gateway(dataclasses.replace(self._settings, network_allowed=most))
        rules = cast("Rules", request.network)
        outlet = Outlet(
            self._settings, self._gateway, rules, request.secrets, entry, self._on_egress
        )
        await outlet.open()
        return outlet

    @contextlib.asynccontextmanager
    async def opened(self, request: Request, entry: Entry) -> AsyncIterator[Outlet | None]:
        """For one run; None if it has no rules."""
        if not request.network:
            yield None
            return
        outlet = await self.open(request, entry)
        try:
            yield outlet
        finally:
            await outlet.close()

    async def close(self) -> None:
        if self._gateway:
            await self._gateway.close()


class _Span:
    """A run, by the clock that attempts are dated with."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.egress: list[Egress] = []
        """The first of what began in it."""
        self.ended_at = math.inf
        self._began_at = time.time()

    def has(self, at: float) -> bool:
        return self._began_at <= at + _DATED_S and at <= self.ended_at


class Outlet:
    """One sandbox's way out, on the sandbox's side (`egress.outlet` is the gateway's); branches of
    a kept sandbox share it."""

    lease: Lease
    """The gateway's word for it, from `open` on."""

    def __init__(
        self,
        settings: Settings,
        gateway: Gateway,
        rules: Rules,
        secrets: Mapping[str, Secret],
        entry: Entry,
        on_egress: OnEgress | None,
    ) -> None:
        self.rules = rules
        self.egress: list[Egress] = []
        """The first of them."""
        self.remarks: tuple[str, ...] = ()
        """What whoever runs something once should know."""
        self._trusts_others = not all(rule.inspect for rule in rules)
        """Its code was given the certificates of other authorities than the gateway's, too."""
        self._settings = settings
        self._gateway = gateway
        self._secrets = secrets
        self._entries = [entry]
        self._users = 1
        self._strays = 0
        self._on_egress = on_egress
        self._runs: dict[str, _Span] = {}
        self._past: deque[_Span] = deque(maxlen=_MOST_PAST)
        """Runs that are over; what they began may end later."""
        self._unwritten: set[asyncio.Future[None]] = set()
        self._failure: TrailError | None = None
        self._turn = asyncio.Lock()
        self._living: list[tuple[Engine, Conversation]] = []
        """The kept sandboxes that use it."""
        self._reviving: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._doorless = False
        """A new gateway is there, and the sandbox has no way to it yet."""
        self._shut_why = ""
        """Why there can be none for now: code inside may hold the ports itself."""
        self._began_at = 0.0
        self._wait_s = REVIVE_S[0]

    # -- the sandbox -----------------------------------------------------------------------------

    async def open(self) -> None:
        self.lease = await self._gateway.open(
            self.rules,
            self._secrets,
            on_egress=self.tried,
            on_lost=self._lost,
            tenant=self._entries[0].tenant,
        )
        self._began_at = time.monotonic()

    def doors(self, engine: Engine) -> Doors | None:
        """Those of the wall itself, if it has any; else they are in the agent's stream."""
        return self._doors() if engine.capabilities.doors else None

    def order(self, order: Order, engine: Engine) -> Order:
        """With what the code needs to find the gateway and to trust it."""
        return dataclasses.replace(
            order,
            env={**order.env, **self.lease.variables},
            inputs={**order.inputs, **self.lease.files},
            doors=None if engine.capabilities.doors else self._doors(),
        )

    async def join(self, engine: Engine, talk: Conversation) -> None:
        """By a kept sandbox that is there."""
        self.lives(engine, talk)
        if not engine.capabilities.doors:
            await talk.open_doors(self._doors())

    async def revive(self, engine: Engine, talk: Conversation) -> None:
        """A kept sandbox whose gateway was lost gets the next one, with the same rules, secrets and
        placeholders: what the code holds is good again."""
        if not self._is_lost:
            return
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.ensure_future(self._renew(engine, talk))
            self._renewing.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Whoever waits may leave half-way; this is then still done.
        await asyncio.shield(self._renewing)

    async def _renew(self, engine: Engine, talk: Conversation) -> None:
        async with self._turn:
            if not self._is_lost:
                return
            self._doorless = True
            # Also if only the doors are missing: who was given some, unheard of here, loses them.
            await self._gateway.renew(self.lease, self.rules)
            self._began_at = time.monotonic()
            try:
                if engine.capabilities.doors:
                    await cast(DoorEngine, engine).open_doors(talk.wall, self._doors())
                else:
                    await talk.open_doors(self._doors())
            except EngineError as error:
                # No error of whoever runs something: it goes on without, and is told so.
                self._shut_why = error.message
                return
            self._doorless, self._shut_why = False, ""

    def lives(self, engine: Engine, talk: Conversation) -> None:
        """A kept sandbox, or a branch of it, that gets its network back by itself."""
        self._living = [one for one in self._living if not one[1].lost] + [(engine, talk)]

    @property
    def _is_lost(self) -> bool:
        return self._doorless or self.lease.lost

    def _lost(self) -> None:
        """The gateway's process has ended: programs in a kept sandbox do not wait for a run."""
        if not self._living:
            self.remarks = (
                "the gateway was lost during this run; from then on the run had no network",
            )
        if self._living and not (self._reviving and not self._reviving.done()):
            self._reviving = asyncio.ensure_future(self._revive())
            self._reviving.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _revive(self) -> None:
        shortest, longest = REVIVE_S
        lived_s = time.monotonic() - self._began_at
        self._wait_s = shortest if lived_s > 2 * longest else self._wait_s
        while self._is_lost:
            await asyncio.sleep(self._wait_s)
            self._wait_s = min(longest, 2 * self._wait_s)
            self._living = [(engine, talk) for engine, talk in self._living if not talk.lost]
            if not self._living:
                return
            try:
                await self.revive(*self._living[0])
            except Closed:
                return
            except BelljarError:
                continue  # and the next run says why

    def check(self, asked: object) -> Rules:
        """These rules as it may have them; NetworkRefused if it may not."""
        from belljar.policy.network import check_inspected, check_network

        found = check_network(asked, self._settings)
        check_inspected(found, self._secrets)
        if not self._trusts_others and not all(rule.inspect for rule in found):
            raise NetworkRefused(
                "network: inspect=False cannot be added to a sandbox that was made without it",
                hint="make a new sandbox with that rule",
            )
        return found

    async def change(self, asked: object, engine: Engine, talk: Conversation) -> None:
        """Other rules, from now on; what they do not allow is cut."""
        found = self.check(asked)
        async with self._turn:
            try:
                await self.lease.change(found)
            except NetworkUnavailable:
                if not self.lease.lost:
                    raise
            self.rules = found  # also those of a gateway that follows a lost one
            if self._is_lost:
                return
            if engine.capabilities.doors:
                await cast(DoorEngine, engine).name_hosts(talk.wall, self.lease.hosts)
            else:
                await talk.name_hosts(self.lease.hosts)

    def _doors(self) -> Doors:
        return Doors(wire=self.lease.wire, hosts=self.lease.hosts)

    # -- what is tried ---------------------------------------------------------------------------

    def tried(self, egress: Egress) -> None:
        """One attempt, as the gateway tells it. It belongs to the runs in which it began."""
        spans = [one for one in (*self._past, *self._runs.values()) if one.has(egress.at)]
        for told in (self.egress, *(one.egress for one in spans)):
            if len(told) < MOST_TOLD:
                told.append(egress)
        entry = next((one for one in self._entries if not one.over), self._entries[0])
        run = spans[0].run if len(spans) == 1 else ""
        if writing := entry.tried(egress, run=run):
            future = asyncio.ensure_future(writing)
            self._unwritten.add(future)
            future.add_done_callback(self._written)
        if self._on_egress:
            self._on_egress(egress, entry.tenant)

    def look(self, engine: Engine, wall: Wall) -> None:
        """For what went past the gateway and reached nothing; where the wall can tell."""
        if not engine.capabilities.doors:
            return
        from belljar.network import Egress

        count = cast(DoorEngine, engine).strays(wall)
        if (more := count - self._strays) > 0:  # none of a wall that is gone
            self._strays = count
            why = "dialled or sent past the gateway: nothing leads there"
            told = Egress(
                at=time.time(),
                host="",
                port=0,
                verdict="refused",
                scheme="direct",
                why=why,
                count=more,
            )
            self.tried(told)

    def watch(self, run: str) -> None:
        """A run of a kept sandbox begins."""
        self._runs[run] = _Span(run)

    async def told(self, run: str, result: Result) -> Result:
        """The end of that run, with what was tried meanwhile; it is in the trail. What is not over
        is told as it looks now, and in the trail when it is."""
        under_way: list[Egress] = []
        with contextlib.suppress(BelljarError):
            async with self._turn:
                under_way = await self.lease.under_way()
        await self._settled()
        span = self._runs.get(run)
        told = [*span.egress, *(one for one in under_way if span.has(one.at))] if span else []
        warnings = result.warnings
        if self._shut_why:
            why = f"this sandbox has no network since its gateway was lost: {self._shut_why}"
            warnings += (f"{why} (does something inside listen on port 3128, 80 or 443?)",)
        return dataclasses.replace(result, egress=tuple(told[:MOST_TOLD]), warnings=warnings)

    def unwatch(self, run: str) -> None:
        """That run is over, however it ended."""
        if span := self._runs.pop(run, None):
            span.ended_at = time.time()
            self._past.append(span)

    async def _settled(self) -> None:
        """Nothing that was tried is left to be written."""
        if self._unwritten:
            await asyncio.wait(self._unwritten)
        failure, self._failure = self._failure, None
        if failure:  # once: the sandbox goes on, without a network until it is given rules again
            raise failure

    def _written(self, future: asyncio.Future[None]) -> None:
        self._unwritten.discard(future)
        if not future.cancelled() and isinstance(error := future.exception(), TrailError):
            if self._failure is None:
                self.rules = ()
                cutting = asyncio.ensure_future(self._cut())
                cutting.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._failure = self._failure or error

    async def _cut(self) -> None:
        """Nobody reaches anything that is not written down."""
        await self.lease.change(())

    # -- the end ---------------------------------------------------------------------------------

    def share(self) -> None:
        """By one more branch."""
        self._users += 1

    def belongs(self, entry: Entry) -> None:
        """To this one, too, and to it alone when those before are over."""
        self._entries.append(entry)

    async def leave(self) -> None:
        """One of those that share it is gone; with the last it is closed."""
        self._users -= 1
        if not self._users:
            with contextlib.suppress(TrailError):  # the trail calls the sandbox lost
                await self.close()

    async def close(self) -> None:
        """Every attempt was told, and is in the trail."""
        self._living.clear()
        if self._reviving:
            self._reviving.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self.lease.close()
        await self._settled()
