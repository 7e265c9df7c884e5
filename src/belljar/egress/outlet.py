"""One lease as the gateway's process has it: what is allowed, what is used, what is under way."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence

from belljar.network import Rules

from .addresses import Address
from .asking import Wanted
from .burning import Account
from .judging import Judge, Permission
from .ledger import Attempt, Ledger
from .limits import LONGEST_WAIT_S, Bytes, Connection, Crowd, Limits, Pace, Turns, Watched
from .refusal import Refusal, failed, refused
from .resolving import Resolver
from .secrets import Keeper
from .streams import ClientStream, Stream, Tcp
from .targets import Target, denied

_LOOKUPS = 4
_KNOCKS_PER_REQUEST = 5
"""So many connections may be opened for each request that the pace allows."""

Door = Callable[["Outlet", Connection, Stream], Awaitable[None]]


class Operator:
    """What holds for every lease."""

    def __init__(self, *, allowed: Rules | None, denied: Sequence[str], resolver: Resolver) -> None:
        self.allowed = None if allowed is None else Judge(allowed)
        self.denied = denied
        self.resolver = resolver
        self.crowd = Crowd()


class Outlet:
    def __init__(
        self,
        *,
        rules: Rules,
        limits: Limits,
        ledger: Ledger,
        keeper: Keeper,
        operator: Operator,
        trust: ssl.SSLContext,
        certificate: Callable[[str], ssl.SSLContext],
        settled: Callable[[], Awaitable[None]],
    ) -> None:
        """`settled` waits until the host has taken what it was told: nothing goes out unheard."""
        self.ledger = ledger
        self.keeper = keeper
        self.trust = trust
        self.certificate = certificate
        self.pace = Pace(limits.requests_per_s)
        self.budget = Bytes(limits.bytes)
        self.account = Account(self.end)
        self.turns = Turns(self.account, operator.crowd)
        self._judge = Judge(rules)
        self._generation = 0
        """Of the rules. Whatever was judged by an older one is judged again before it goes out."""
        self._ended: Refusal | None = None
        self._knocks = Pace(limits.requests_per_s * _KNOCKS_PER_REQUEST)
        self._limits = limits
        self._operator = operator
        self._settled = settled
        self._lookups = asyncio.Semaphore(_LOOKUPS)
        self._places = asyncio.Semaphore(limits.connections)
        self._waiting = 0
        self._connections: set[Connection] = set()
        self._wires: set[asyncio.Task[None]] = set()

    # -- judgement -------------------------------------------------------------------------------

    def permit(
        self, target: Target, method: str | None = None, path: str | None = None
    ) -> Permission:
        """What allows it, or a refusal."""
        if self._ended:
            raise self._ended
        if denied(self._operator.denied, target):
            raise refused(f"{target.host} is denied here, whatever the rules of a sandbox are")
        found = self._judge.permission(target.host, target.port, method, path)
        if not found.rule:
            raise refused(found.why)
        most = self._operator.allowed
        if most is not None and not most.permission(target.host, target.port).rule:
            raise refused(f"{target.host}:{target.port} is beyond what may be allowed here")
        return found

    def allow(self, wanted: Wanted) -> Permission:
        """The same about all that it asks for."""
        found = self.permit(wanted.target, wanted.method, wanted.path)
        for method, path in wanted.others(has_paths=found.has_paths):
            if (method, path) != (wanted.method, wanted.path):
                self.permit(wanted.target, method, path)
        wanted.judged_at = self._generation
        return found

    def check_again(self, wanted: Wanted) -> None:
        """Right before something goes out for it: while it waited, the rules may have changed."""
        if wanted.judged_at != self._generation:
            self.allow(wanted)

    async def look_up(self, target: Target) -> list[Address]:
        self.keeper.name(target.host)
        return await self._operator.resolver.look_up(target, self._lookups)

    async def dial(self, wanted: Wanted, judged: Sequence[Address]) -> tuple[Tcp, Address]:
        await self._settled()
        self.check_again(wanted)
        return await self._operator.resolver.dial(wanted.target, judged)

    def change(self, rules: Rules) -> None:
        """What is on its way to where the new rules do not lead is cut."""
        self._judge = Judge(rules)
        self._generation += 1
        for connection in list(self._connections):
            wanted = connection.wanted
            if wanted is None:
                continue
            host = wanted.target.host
            try:
                found = self.allow(wanted)
            except Refusal:
                connection.cut(refused(f"{host} is not allowed any more"))
            else:
                if connection.is_tunnel and found.inspect:
                    connection.cut(refused(f"{host} is to be inspected from now on"))

    def end(self, why: Refusal) -> None:
        """Nothing goes through it any more; the code is told why."""
        self._ended = why
        self._generation += 1
        for connection in list(self._connections):
            connection.cut(why)

    # -- connections -----------------------------------------------------------------------------

    async def knock(self) -> None:
        """Before a connection is accepted: so that one sandbox cannot keep the gateway busy."""
        with contextlib.suppress(Refusal):
            await self._knocks.wait()
        await self.turns.rest()
        await self._settled()

    def begin(self, stream: ClientStream, door: Door) -> Connection:
        connection = Connection(self._limits, stream)
        self._connections.add(connection)
        connection.task = asyncio.create_task(self._serve(connection, stream, door))
        # A task that is cancelled before its first step runs no `finally` of its own.
        connection.task.add_done_callback(lambda _: self._over(connection, stream))
        return connection

    def _over(self, connection: Connection, stream: Stream) -> None:
        self._connections.discard(connection)
        stream.close()

    async def _serve(self, connection: Connection, stream: Stream, door: Door) -> None:
        try:
            await self._place()
            try:
                await door(self, connection, Watched(stream, connection))
            finally:
                self._places.release()
        except Refusal as refusal:
            Attempt(self.ledger, scheme="").ended(refusal)
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await stream.write(_unread_answer(refusal))
        except (OSError, EOFError):
            pass
        except asyncio.CancelledError:
            pass  # cut from outside, which the attempt under way has told

    async def _place(self) -> None:
        if self._places.locked():
            most = self._limits.connections
            if self._waiting >= most:
                raise refused(f"more than {most} connections at once", status=503)
            resting = next((one for one in self._connections if one.is_resting), None)
            if resting and resting.task:
                resting.task.cancel()
            self._waiting += 1
            try:
                async with asyncio.timeout(LONGEST_WAIT_S):
                    await self._places.acquire()
            except TimeoutError:
                raise refused(f"more than {most} connections at once", status=503) from None
            finally:
                self._waiting -= 1
        else:
            await self._places.acquire()

    def sweep(self) -> None:
        """Once a second: ends what takes too long, tells what was counted together."""
        now = time.monotonic()
        for connection in list(self._connections):
            if why := connection.overdue(now):
                connection.cut(why)
        self.ledger.flush()

    # -- the end ---------------------------------------------------------------------------------

    def on_close(self, wire: asyncio.Task[None]) -> None:
        """It ends with the lease."""
        self._wires.add(wire)
        wire.add_done_callback(self._wires.discard)

    async def close(self) -> None:
        """When it returns, all is told."""
        tasks = list(self._wires)
        for wire in tasks:
            wire.cancel()
        for connection in list(self._connections):
            connection.cut(failed("the sandbox ended"))
            tasks += [connection.task] if connection.task else []
        await asyncio.gather(*tasks, return_exceptions=True)
        self.ledger.flush()


def _unread_answer(refusal: Refusal) -> bytes:
    """To a connection of which nothing was read; what it wanted to speak is not known."""
    return (
        f"HTTP/1.1 {refusal.status} belljar: {refusal.why}\r\n"
        "Connection: close\r\nContent-Length: 0\r\n\r\n"
    ).encode()
