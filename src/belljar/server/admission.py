"""Who runs next: a bounded queue per tenant, and turns between tenants (F2)."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from types import TracebackType

from belljar.server.budget import Hold
from belljar.server.errors import ApiError
from belljar.server.tenants import Tenant

LONGEST_RETRY_S = 60


class Admission:
    """`async with admission.place(tenant, memory_bytes=…): …` runs inside one of `slots`."""

    def __init__(self, *, slots: int, wait_s: float, held_bytes: int = 1 << 62) -> None:
        """`held_bytes`: what all runs and programs together may make the server hold (`budget`)."""
        self.slots = slots
        self.running = 0
        self.held_bytes = 0
        self._most_held = held_bytes
        self._sharing = False
        self._wait_s = wait_s
        self._lines: dict[str, _Line] = {}
        self._turn: deque[_Line] = deque()
        """Tenants with somebody waiting, the next one first."""
        self._pace = _Pace()
        self._closed = False

    def share(self, sharing: bool) -> None:
        """When there are several tenants nobody gets everything, so that nobody finds every place
        taken by somebody's long runs."""
        self._sharing = sharing

    @property
    def most_each(self) -> int:
        return max(1, self.slots * 3 // 4) if self._sharing else self.slots

    @property
    def most_held_each(self) -> int:
        return self._most_held * 3 // 4 if self._sharing else self._most_held

    def place(
        self,
        tenant: Tenant,
        *,
        memory_bytes: int = 0,
        disk_bytes: int = 0,
        held_bytes: int = 0,
    ) -> Place:
        return Place(self, tenant, memory_bytes, disk_bytes, held_bytes)

    @property
    def waiting(self) -> int:
        return sum(len(line.waiting) for line in self._turn)

    def counts(self, tenant: str) -> tuple[int, int]:
        """How many of a tenant's runs are under way, and how many wait."""
        line = self._lines.get(tenant)
        return (line.running, len(line.waiting)) if line else (0, 0)

    def close(self) -> None:
        """Everybody who waits is told that the server ends."""
        self._closed = True
        for line in self._turn:
            for place in line.waiting:
                if place.called and not place.called.done():
                    place.called.set_exception(_closing())
        self._turn.clear()

    def hold(self, tenant: Tenant, *, memory_bytes: int, disk_bytes: int) -> Callable[[], None]:
        """Counts what a kept sandbox may use, from now until what this returns is called."""
        place = Place(self, tenant, memory_bytes, disk_bytes, 0)
        line = self._line(tenant)
        if not line.has_room(place):
            self._drop(line)
            raise ApiError(
                "quota_exceeded",
                "memory or disk of all runs and sandboxes would be above this key's quota",
                hint="end a sandbox, or ask for less memory_bytes or disk_bytes",
                retry_after_s=LONGEST_RETRY_S,
            )
        line.held += 1
        line.memory_bytes += memory_bytes
        line.disk_bytes += disk_bytes
        return partial(self._let_go, place)

    def hold_output(self, tenant: Tenant, held_bytes: int) -> Hold:
        """Counts what a program may make the server hold; there is no queue for programs."""
        line = self._line(tenant)
        if line.held_bytes + held_bytes > self.most_held_each:
            self._drop(line)
            raise ApiError(
                "quota_exceeded",
                "what the runs and programs of this key may print is all that may be held for it",
                hint="end programs or their sandbox, or make it with less output_bytes",
                retry_after_s=1,
            )
        if self.held_bytes + held_bytes > self._most_held:
            self._drop(line)
            raise ApiError(
                "overloaded",
                "what runs and programs may print is all that this server may hold",
                hint="try again, or make the sandbox with less output_bytes",
                retry_after_s=5,
            )
        self._hold(line, held_bytes)
        return Hold(held_bytes, partial(self.give_back, tenant))

    # -- the places' side --------------------------------------------------------------------------

    def enter(self, place: Place) -> asyncio.Future[None] | None:
        """None when it may go at once; else what it has to wait for."""
        if self._closed:
            raise _closing()
        tenant = place.tenant
        line = self._line(tenant)
        if not line.waiting and self.running < self.slots and self._fits(line, place):
            self._begin(line, place)
            return None
        if len(line.waiting) >= tenant.quotas.queue:
            raise ApiError(
                "queue_full",
                f"{len(line.waiting)} runs wait already",
                hint="wait as long as Retry-After says, then try again",
                retry_after_s=self._pace.seconds_for(len(line.waiting) + 1),
            )
        if line.never_fits(place):
            raise ApiError(
                "quota_exceeded",
                "memory or disk of this one run is above this key's quota for all",
                hint="ask for less memory_bytes or disk_bytes",
            )
        if place.held_bytes > self.most_held_each:
            raise ApiError(
                "quota_exceeded",
                "this one run may print and leave more than this server may hold",
                hint="ask for less output_bytes or result_bytes; the operator has held_bytes",
            )
        if not line.waiting:
            self._turn.append(line)
        line.waiting.append(place)
        place.called = asyncio.get_running_loop().create_future()
        return place.called

    def leave(self, place: Place) -> None:
        line = self._lines[place.tenant.name]
        line.running -= 1
        line.memory_bytes -= place.memory_bytes
        line.disk_bytes -= place.disk_bytes
        self._hold(line, -place.held_bytes)
        self.running -= 1
        self._pace.ended()
        if self._turn:
            self._call()
        else:
            self._drop(line)

    def give_back(self, tenant: Tenant, held_bytes: int) -> None:
        """Of what is held beyond a run."""
        line = self._lines[tenant.name]
        self._hold(line, -held_bytes)
        if self._turn:
            self._call()
        else:
            self._drop(line)

    def _hold(self, line: _Line, held_bytes: int) -> None:
        line.held_bytes += held_bytes
        self.held_bytes += held_bytes

    def give_up(self, place: Place) -> None:
        """It waits no longer: its client is gone, or its time is over."""
        line = self._lines.get(place.tenant.name)
        if line is None or place not in line.waiting:
            return  # somebody's turn came first, and it was passed over
        line.waiting.remove(place)
        if not line.waiting and line in self._turn:
            self._turn.remove(line)
        self._call()  # the next in line may be one that fits

    def timed_out(self) -> ApiError:
        return ApiError(
            "queue_timeout",
            f"no place became free in {self._wait_s:g} s",
            hint="wait as long as Retry-After says, then try again",
            retry_after_s=self._pace.seconds_for(self.waiting + 1),
        )

    @property
    def wait_s(self) -> float:
        return self._wait_s

    def _line(self, tenant: Tenant) -> _Line:
        line = self._lines.get(tenant.name)
        if line is None:
            line = self._lines[tenant.name] = _Line()
        line.tenant = tenant  # its quotas may have changed
        return line

    def _drop(self, line: _Line) -> None:
        if not (line.running or line.waiting or line.held or line.held_bytes):
            self._lines.pop(line.tenant.name, None)

    def _let_go(self, place: Place) -> None:
        line = self._lines[place.tenant.name]
        line.held -= 1
        line.memory_bytes -= place.memory_bytes
        line.disk_bytes -= place.disk_bytes
        if self._turn:
            self._call()
        else:
            self._drop(line)

    def _fits(self, line: _Line, place: Place) -> bool:
        room = (
            self.held_bytes + place.held_bytes <= self._most_held
            and line.held_bytes + place.held_bytes <= self.most_held_each
        )
        return line.running < self.most_each and line.fits(place) and (room or not place.held_bytes)

    def _begin(self, line: _Line, place: Place) -> None:
        line.running += 1
        line.memory_bytes += place.memory_bytes
        line.disk_bytes += place.disk_bytes
        self._hold(line, place.held_bytes)
        self.running += 1

    def _call(self) -> None:
        """Fills free slots, one tenant after the other."""
        looked = 0
        while self.running < self.slots and looked < len(self._turn):
            line = self._turn.popleft()
            while line.waiting and line.waiting[0].gave_up:
                line.waiting.popleft()
            if not line.waiting:
                self._drop(line)
                continue
            if not self._fits(line, line.waiting[0]):
                self._turn.append(line)
                looked += 1
                continue
            looked = 0
            place = line.waiting.popleft()
            if line.waiting:
                self._turn.append(line)
            self._begin(line, place)
            assert place.called is not None
            place.called.set_result(None)


class Place:
    """One run's way through the queue."""

    def __init__(
        self,
        admission: Admission,
        tenant: Tenant,
        memory_bytes: int,
        disk_bytes: int,
        held_bytes: int,
    ) -> None:
        self.tenant = tenant
        self.memory_bytes = memory_bytes
        self.disk_bytes = disk_bytes
        self.held_bytes = held_bytes
        self.called: asyncio.Future[None] | None = None
        self._admission = admission

    @property
    def gave_up(self) -> bool:
        """Whoever is cancelled notices a step of the loop later; until then it stands in line."""
        return self.called is not None and self.called.done()

    def keep(self, size: int) -> Hold:
        """What became of it stays counted when its place is somebody else's already."""
        size = min(size, self.held_bytes)
        self.held_bytes -= size
        return Hold(size, partial(self._admission.give_back, self.tenant))

    async def __aenter__(self) -> Place:
        called = self._admission.enter(self)
        if called is None:
            return self
        try:
            async with asyncio.timeout(self._admission.wait_s):
                await called
        except BaseException as error:
            if called.done() and not called.cancelled() and called.exception() is None:
                self._admission.leave(self)  # called in the moment it gave up
            else:
                self._admission.give_up(self)
            if isinstance(error, TimeoutError):
                raise self._admission.timed_out() from None
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._admission.leave(self)


class _Line:
    """One tenant's queue."""

    tenant: Tenant

    def __init__(self) -> None:
        self.waiting: deque[Place] = deque()
        self.running = 0
        self.held = 0
        """Kept sandboxes."""
        self.memory_bytes = 0
        self.disk_bytes = 0
        self.held_bytes = 0

    def fits(self, place: Place) -> bool:
        most = self.tenant.quotas.runs_at_once
        return (not most or self.running < most) and self.has_room(place)

    def has_room(self, place: Place) -> bool:
        quotas = self.tenant.quotas
        # What takes nothing always has room: quotas may have become less than what is held.
        return (
            not place.memory_bytes
            or _within(self.memory_bytes + place.memory_bytes, quotas.memory_bytes)
        ) and (
            not place.disk_bytes or _within(self.disk_bytes + place.disk_bytes, quotas.disk_bytes)
        )

    def never_fits(self, place: Place) -> bool:
        quotas = self.tenant.quotas
        return not (
            _within(place.memory_bytes, quotas.memory_bytes)
            and _within(place.disk_bytes, quotas.disk_bytes)
        )


class _Pace:
    """How fast runs end, to say when to come again."""

    def __init__(self) -> None:
        self._interval_s = 0.0
        self._last = time.monotonic()

    def ended(self) -> None:
        now = time.monotonic()
        self._interval_s += (now - self._last - self._interval_s) / 16
        self._last = now

    def seconds_for(self, runs: int) -> int:
        return min(LONGEST_RETRY_S, max(1, math.ceil(runs * self._interval_s)))


def _within(amount: int, most: int) -> bool:
    return not most or amount <= most


def _closing() -> ApiError:
    return ApiError(
        "shutting_down", "the server is shutting down", hint="try again", retry_after_s=5
    )
