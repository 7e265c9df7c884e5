"""What one lease may use, and how its connections are watched."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .asking import Wanted
from .burning import Account
from .refusal import Refusal, blocked, failed, refused
from .streams import ClientStream, Stream

LONGEST_WAIT_S = 10.0
"""Who comes too fast, or when all places are taken, waits so long at most."""
HEAD_S = 30.0
"""A request's head must be complete after so long, however it trickles."""

RESTING_S = 60.0
"""So long a connection is kept on which nothing is asked for."""
_HUNG_UP_S = 1.0
_HUNG_UP_HALF_S = 60.0
"""A tunnel may be closed in one direction and go on in the other."""
_SLICE_S = 0.002
_LONG_S = 0.05
_LIGHT_S = 3.0
"""Who did something within so long may have something to do."""
_LOOK_S = 0.01
_LONGEST_REST_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The settings of the same names without `network_`."""

    connections: int
    bytes: int
    requests_per_s: float
    connection_s: float
    idle_s: float

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Limits:
        return cls(**data)


class Pace:
    """A bucket of tokens. Who finds it empty is slowed down, not turned away."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._most = max(1.0, per_s)
        self._tokens = self._most
        self._at = time.monotonic()

    async def wait(self) -> None:
        now = time.monotonic()
        self._tokens = min(self._most, self._tokens + (now - self._at) * self._per_s)
        self._at = now
        if self._tokens + self._per_s * LONGEST_WAIT_S < 1:
            raise refused(f"more than {self._per_s:g} requests per second", status=429)
        self._tokens -= 1
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / self._per_s)


class Crowd:
    """All leases of the process. Those that are heavy (`burning`) have one step between them in a
    turn of the loop, first the one that took least. As long as others have something to do, the
    next one waits for as long as the last one took."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], Account] = {}
        self._is_taken = False
        self._look_again: asyncio.TimerHandle | None = None
        self._rests_until = 0.0
        self._last_spent_s = 0.0
        self._latest: Account | None = None
        self._latest_at = self._before_at = 0.0
        self.is_late = False
        """A step in this turn of the loop was long, whoever's: the next one waits for the loop to
        come round. Else many leases that are not heavy yet could have a long one each."""

    def was_long(self) -> None:
        self.is_late = True
        asyncio.get_running_loop().call_soon(self._came_round)

    def _came_round(self) -> None:
        self.is_late = False

    def mark(self, account: Account, now: float) -> None:
        """One that is not heavy does something."""
        if self._latest is not account:
            self._latest, self._before_at = account, self._latest_at
        self._latest_at = now

    def enter(self, account: Account) -> bool:
        """Whether it need not wait; to be followed by `go_on`."""
        if self._is_taken or self._rests(account):
            return False
        self._is_taken = True
        return True

    async def wait(self, account: Account) -> None:
        """To be followed by `go_on`."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = account
        self._choose()
        try:
            await turn
        except asyncio.CancelledError:
            if self._waiting.pop(turn, None) is None:  # it was given the turn just now
                self.go_on(account)
            raise

    def go_on(self, account: Account) -> None:
        if owed_s := account.owed():
            now = time.monotonic()
            self._rests_until = max(now, self._rests_until) + min(_LONGEST_REST_S, owed_s)
            self._last_spent_s = account.spent_s
        self._is_taken = False
        self._choose()

    def _choose(self) -> None:
        """Who goes next. Whoever has to rest keeps nobody from it; one that was cancelled leaves in
        a moment."""
        if self._is_taken:
            return
        there = [one for one in self._waiting.items() if not one[0].done()]
        ready = [one for one in there if not self._rests(one[1])]
        if ready:
            turn, _ = min(ready, key=lambda one: one[1].spent_s)
            del self._waiting[turn]
            self._is_taken = True
            turn.set_result(None)
        elif there and not self._look_again:
            self._look_again = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        self._look_again = None
        self._choose()

    def _rests(self, account: Account) -> bool:
        if not self._rests_until:
            return False
        now = time.monotonic()
        if now >= self._rests_until:
            self._rests_until = 0.0
            return False
        others_at = self._before_at if self._latest is account else self._latest_at
        return now - others_at < _LIGHT_S and account.spent_s > self._last_spent_s / 2


class Turns:
    """Work that goes on and on without a wait, as with what comes in tiny pieces, is stopped for
    others: of all connections of a lease only one goes on at a time.

    As a context: a step whose length code or a host can choose, without a wait in it. However many
    connections of a lease are ready for one, the other leases have their turn after the first."""

    def __init__(self, account: Account, crowd: Crowd) -> None:
        self._account = account
        self._crowd = crowd
        self._next = asyncio.Lock()
        self._began_at = 0.0
        self._is_heavy = False

    async def __aenter__(self) -> None:
        await self._next.acquire()
        try:
            if self._account.ended:
                raise self._account.ended
            while self._crowd.is_late:
                await asyncio.sleep(0)
            self._is_heavy = self._account.is_heavy
            if self._is_heavy and not self._crowd.enter(self._account):
                await self._crowd.wait(self._account)
        except BaseException:
            self._next.release()
            raise
        self._began_at = time.monotonic()
        if not self._is_heavy:
            self._crowd.mark(self._account, self._began_at)

    async def __aexit__(self, *_: object) -> None:
        is_heavy = self._is_heavy
        try:
            took_s = time.monotonic() - self._began_at
            if took_s >= _LONG_S:
                self._crowd.was_long()
            if took_s >= _SLICE_S:
                await asyncio.sleep(0)
        finally:
            try:
                if is_heavy:
                    self._crowd.go_on(self._account)
            finally:
                self._next.release()

    async def pass_on(self, since: float) -> float:
        """To be called again and again, with what it returned."""
        now = time.monotonic()
        if now - since < _SLICE_S:
            return since
        async with self._next:
            if self._account.ended:
                raise self._account.ended
            if self._account.is_heavy:
                await self._crowd.wait(self._account)
                self._crowd.go_on(self._account)
            else:
                self._crowd.mark(self._account, now)
            await asyncio.sleep(0)
        return time.monotonic()

    async def rest(self) -> None:
        """If it is heavy: before it begins something more."""
        await self.pass_on(0.0)


class Connection:
    """One connection from a sandbox, as it is watched from outside its task."""

    def __init__(self, limits: Limits, client: ClientStream) -> None:
        now = time.monotonic()
        self._client = client
        self._idle_s = limits.idle_s
        self._moved_at = now
        self._ends_at = now + limits.connection_s
        self._head_by = 0.0
        self._longest_s = limits.connection_s
        self.task: asyncio.Task[None] | None = None
        self.wanted: Wanted | None = None
        """What is on its way right now."""
        self.is_tunnel = False
        self.is_open_ended = False
        """Carries events or another protocol, for which silence is nothing unusual."""
        self.is_resting = False
        """Kept open by a client that asks for nothing at the moment."""
        self.why_cut: Refusal | None = None

    def moved(self) -> None:
        self._moved_at = time.monotonic()

    def head_begins(self) -> None:
        self._head_by = time.monotonic() + HEAD_S

    def head_ends(self) -> None:
        self._head_by = 0.0

    def overdue(self, now: float) -> Refusal | None:
        silent_s = now - self._moved_at
        if self.wanted is None:
            if silent_s > min(self._idle_s, RESTING_S):
                return failed(f"nothing was asked for {min(self._idle_s, RESTING_S):g} s")
        elif self.is_tunnel or self.is_open_ended:
            if silent_s > _HUNG_UP_HALF_S and self._client.has_hung_up():
                return failed("the code hung up")
        elif silent_s > self._idle_s:
            return failed(f"nothing moved for {self._idle_s:g} s", status=504)
        elif silent_s > _HUNG_UP_S and self._client.has_hung_up():
            return failed("the code hung up before the response came")
        if now > self._ends_at:
            return failed(f"the connection lasted longer than {self._longest_s:g} s")
        if self._head_by and now > self._head_by:
            return blocked(f"the request was not complete after {HEAD_S:g} s")
        return None

    def cut(self, refusal: Refusal) -> None:
        if self.why_cut is None and self.task:
            self.why_cut = refusal
            self.task.cancel()


class Bytes:
    """What is left for one lease, both ways together."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0

    def spend(self, count: int) -> None:
        self.used += count
        if self.used > self.most:
            raise refused(f"more than {self.most} bytes, all that this sandbox may move")


class Watched:
    """A stream whose every piece is a sign of life."""

    def __init__(self, stream: Stream, connection: Connection, budget: Bytes | None = None) -> None:
        self._stream = stream
        self._connection = connection
        self._budget = budget
        self.sent = 0
        self.received = 0
        self.end = stream.end
        self.close = stream.close

    def expect_silence(self) -> None:
        """From here on until the exchange is over."""
        self._connection.is_open_ended = True

    async def read(self) -> bytes:
        data = await self._stream.read()
        self._connection.moved()
        self.received += len(data)
        if self._budget:
            self._budget.spend(len(data))
        return data

    async def write(self, data: bytes) -> None:
        if self._budget:
            self._budget.spend(len(data))
        self.sent += len(data)
        await self._stream.write(data)
        self._connection.moved()
