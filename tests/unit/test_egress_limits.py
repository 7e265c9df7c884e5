"""How long a connection may be silent, by what is under way on it (N1)."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from belljar.egress.asking import Wanted
from belljar.egress.burning import Account
from belljar.egress.limits import Connection, Crowd, Limits, Turns
from belljar.egress.targets import Target
from belljar.settings import Settings

MINUTES = 60.0
PLENTY_S = 60.0


class Client:
    """As far as a connection looks at it."""

    is_gone = False

    def has_hung_up(self) -> bool:
        return self.is_gone

    async def read(self) -> bytes:
        return b""

    async def write(self, data: bytes) -> None: ...

    async def end(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def connection(client: Client) -> Connection:
    """With the limits that everybody has who sets none."""
    known = Settings()
    limits = Limits(
        connections=known.network_connections,
        bytes=known.network_bytes,
        requests_per_s=known.network_requests_per_s,
        connection_s=known.network_connection_s,
        idle_s=known.network_idle_s,
    )
    return Connection(limits, client)


def account(spent_s: float = 0.0) -> Account:
    made = Account(lambda _: None)
    made.charge(spent_s)
    return made


def why(connection: Connection, after_s: float) -> str:
    refusal = connection.overdue(time.monotonic() + after_s)
    return refusal.why if refusal else ""


def test_a_host_may_think_for_minutes(connection: Connection) -> None:
    connection.wanted = Wanted(Target("api.example.com", 443))
    assert why(connection, 9.5 * MINUTES) == ""
    assert "nothing moved" in why(connection, 11 * MINUTES)


def test_where_nothing_is_asked_for_a_minute_is_enough(connection: Connection) -> None:
    assert why(connection, 50) == ""
    assert "nothing was asked" in why(connection, 1.5 * MINUTES)


@pytest.mark.parametrize("kind", ["is_tunnel", "is_open_ended"])
def test_streams_last_for_hours(connection: Connection, client: Client, kind: str) -> None:
    connection.wanted = Wanted(Target("api.example.com", 443))
    setattr(connection, kind, True)
    assert why(connection, 8 * 60 * MINUTES) == ""
    client.is_gone = True  # one direction; the other may go on
    assert why(connection, 30) == ""
    assert "hung up" in why(connection, 2 * MINUTES)


def test_who_has_hung_up_waits_for_nothing(connection: Connection, client: Client) -> None:
    connection.wanted = Wanted(Target("api.example.com", 443))
    client.is_gone = True
    assert why(connection, 0.5) == ""
    assert "hung up" in why(connection, 2)


def test_f2_one_lease_has_one_step_in_a_turn_however_many_are_ready() -> None:
    """Steps of its connections that take long are not all taken before anybody else's."""
    done: list[str] = []

    async def step(turns: Turns) -> None:
        async with turns:
            until = time.monotonic() + 0.005
            while time.monotonic() < until:
                pass
            done.append("step")

    async def other() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        done.append("other")

    async def all_at_once() -> None:
        turns = Turns(account(), Crowd())
        await asyncio.gather(*(step(turns) for _ in range(30)), other())

    asyncio.run(all_at_once())
    assert done.index("other") < 10 and len(done) == 31


def test_a_step_that_fails_leaves_the_way_free() -> None:
    async def fail(turns: Turns) -> None:
        async with turns:
            time.sleep(0.005)
            raise ValueError

    async def twice() -> None:
        turns = Turns(account(), Crowd())
        for _ in range(2):
            with pytest.raises(ValueError):
                await fail(turns)

    asyncio.run(twice())


def test_f2_heavy_leases_have_one_step_between_them_in_a_turn() -> None:
    """And of them the one goes first that took least."""
    done: list[str] = []

    async def step(turns: Turns, name: str) -> None:
        async with turns:
            until = time.monotonic() + 0.005
            while time.monotonic() < until:
                pass
            done.append(name)

    async def other() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        done.append("other")

    async def all_at_once() -> None:
        crowd = Crowd()
        heavy = [Turns(account(1.9 - one / 100), crowd) for one in range(30)]
        await asyncio.gather(*(step(one, str(at)) for at, one in enumerate(heavy)), other())

    asyncio.run(all_at_once())
    assert done.index("other") < 10 and len(done) == 31
    heaviest_last = [one for one in done if one not in ("other", "0")]
    assert heaviest_last == [str(29 - at) for at in range(29)]


def test_f2_there_is_one_long_step_in_a_turn_whoevers_it_is() -> None:
    """Many leases that took nothing so far, each with one: together they must not stop the loop."""
    done: list[str] = []

    async def step(turns: Turns) -> None:
        async with turns:
            time.sleep(0.06)
            done.append("long")

    async def other() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        done.append("other")

    async def all_at_once() -> None:
        crowd = Crowd()
        await asyncio.gather(*(step(Turns(account(), crowd)) for _ in range(14)), other())

    asyncio.run(all_at_once())
    assert done.index("other") < 6 and len(done) == 15


def test_f2_a_heavy_lease_waits_while_others_have_something_to_do() -> None:
    done: list[str] = []

    async def step(turns: Turns, name: str) -> None:
        async with turns:
            done.append(name)

    async def both() -> None:
        crowd = Crowd()
        heavy, light = Turns(account(), crowd), Turns(account(), crowd)
        await step(heavy, "alone")
        heavy._account.charge(100.0)
        await step(heavy, "alone")  # waits for nobody, and not for itself
        await step(light, "light")
        waiting = asyncio.create_task(step(heavy, "heavy"))
        for _ in range(20):
            await asyncio.sleep(0)
            await step(light, "light")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        crowd.mark(light._account, 0.0)
        await step(heavy, "alone")  # and whoever left holds up nobody

    asyncio.run(both())
    assert done == ["alone", "alone", *["light"] * 21, "alone"]


def test_f2_who_leaves_in_the_moment_of_its_turn_passes_it_on() -> None:
    async def leave() -> None:
        crowd = Crowd()
        first, second, third = (account(9.0) for _ in range(3))
        await crowd.wait(first)
        leaving = asyncio.create_task(crowd.wait(second))
        staying = asyncio.create_task(crowd.wait(third))
        await asyncio.sleep(0)
        crowd.go_on(first)
        leaving.cancel()
        await asyncio.wait_for(staying, 60)

    asyncio.run(leave())


def test_f2_who_was_cancelled_while_it_waited_takes_nothing_from_others() -> None:
    """In the moment between: its task has not run since, and somebody else's step is over."""

    async def play() -> None:
        crowd = Crowd()
        one, other = Turns(account(1.5), crowd), Turns(account(1.0), crowd)
        entered = asyncio.Event()

        async def step(turns: Turns) -> None:
            async with turns:
                entered.set()

        async with one:
            waiting = asyncio.create_task(step(other))
            await asyncio.sleep(0)
            waiting.cancel()
        assert not entered.is_set()
        async with asyncio.timeout(PLENTY_S):
            await step(one)
            await step(other)

    asyncio.run(play())


def test_f2_the_way_is_free_again_whoever_is_cancelled_when() -> None:
    chance = random.Random(7)

    async def play() -> None:
        crowd = Crowd()
        leases = [Turns(account(0.5 + at / 10), crowd) for at in range(6)]

        async def step(turns: Turns) -> None:
            for _ in range(3):
                async with turns:
                    time.sleep(0.001)
                await turns.pass_on(0.0)

        for _ in range(40):
            tasks = [asyncio.create_task(step(chance.choice(leases))) for _ in range(12)]
            for _ in range(chance.randrange(20)):
                await asyncio.sleep(0)
            for task in chance.sample(tasks, 8):
                task.cancel()
            async with asyncio.timeout(PLENTY_S):
                ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(end is None or isinstance(end, asyncio.CancelledError) for end in ends)
        assert not crowd._waiting and not crowd._is_taken

    asyncio.run(play())


def test_f2_one_that_rests_keeps_no_other_from_its_turn() -> None:
    """The heaviest rests as long as others have something to do; a lighter one goes meanwhile."""
    done: list[str] = []

    async def play() -> None:
        crowd = Crowd()
        heaviest, lighter = account(2.0), account(0.5)
        heaviest.charge(2.0)
        crowd.mark(account(), time.monotonic())  # somebody who is not heavy
        crowd.go_on(heaviest)  # now it rests for two seconds

        async def step(whose: Account, name: str) -> None:
            async with Turns(whose, crowd):
                done.append(name)

        first = asyncio.create_task(step(heaviest, "heaviest"))
        await asyncio.sleep(0.05)
        async with asyncio.timeout(PLENTY_S):
            await asyncio.gather(first, step(lighter, "lighter"))

    asyncio.run(play())
    assert done == ["lighter", "heaviest"]


def test_f2_who_takes_less_than_its_share_is_never_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    light, heavy = account(), account()
    for _ in range(100):
        now += 1.0
        light.charge(0.01)
        heavy.charge(0.3)
        assert not light.is_heavy
    assert heavy.is_heavy
    now += 100.0
    assert not heavy.is_heavy
