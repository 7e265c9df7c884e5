"""F2: a task that takes the gateway's only thread is ended, and no other. In a process of its own:
it is about a signal."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, re
from belljar.egress import burning
from belljar.egress.refusal import Refusal

ended = []

async def burns():
    burning.blamed.set(burning.Account(lambda why: ended.append("its lease")))
    try:
        re.match("(a*)*b", "a" * 60)  # would take longer than the world is old
    except Refusal as refusal:
        print(refusal.status, "CPU time" in refusal.why)
        raise

async def spins():
    burning.blamed.set(burning.Account(lambda why: ended.append("the other's")))
    for _ in range(40):
        for _ in range(200_000):
            pass
        await asyncio.sleep(0)
    return "spun"

async def nobodys():
    from time import process_time
    until = process_time() + 3.0
    while process_time() < until:
        pass
    return "not blamed"

async def main():
    burning.Watch().start()
    tasks = [asyncio.create_task(one()) for one in (burns, spins, nobodys)]
    burnt, *others = await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)
    print(type(burnt).__name__, *others, *ended)

asyncio.run(main())
"""


def test_f2_who_burns_time_is_ended_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.splitlines() == ["503 True", "Refusal spun not blamed its lease"], (
        done.stderr
    )


MANY = """
import asyncio, time
from belljar.egress import burning

ended = []

async def works(name):
    burning.blamed.set(burning.Account(lambda why: ended.append(name)))
    until = time.process_time() + 0.6
    while time.process_time() < until:
        pass

async def main():
    burning.Watch().start()
    done = await asyncio.gather(*map(works, range(6)), return_exceptions=True)
    await asyncio.sleep(0)
    print(done, ended)

asyncio.run(main())
"""


def test_f2_nobody_is_blamed_for_what_several_took_together() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MANY], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == f"{[None] * 6} []\n", done.stderr


SHARED = """
import asyncio, time
from belljar.egress import burning

async def works(account, until_s):
    burning.blamed.set(account)
    while time.process_time() < until_s:
        for _ in range(20_000):
            pass
        await asyncio.sleep(0)

async def main():
    burning.Watch().start()
    burns, rests = burning.Account(print), burning.Account(print)
    now = time.process_time()
    await asyncio.gather(works(burns, now + 1.5), works(rests, 0))
    print(burns.owed() > 1.0, rests.owed() < 0.1)

asyncio.run(main())
"""


def test_f2_what_a_lease_takes_in_many_short_turns_is_on_its_account() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHARED], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == "True True\n", done.stderr


CROWD = """
import asyncio, re
from belljar.egress import burning, limits
from belljar.egress.refusal import Refusal

ended, begun = [], []
account = burning.Account(ended.append)
turns = limits.Turns(account, limits.Crowd())

async def burns():
    burning.blamed.set(account)
    async with turns:
        begun.append(None)
        re.match("(a*)*b", "a" * 60)

async def main():
    burning.Watch().start()
    done = await asyncio.gather(*(burns() for _ in range(20)), return_exceptions=True)
    print({type(one) for one in done} == {Refusal}, len(begun), len(ended))

asyncio.run(main())
"""


def test_f2_a_lease_that_burns_has_no_further_turn() -> None:
    """Not even those of its connections that are ready already: each would take as long again."""
    done = subprocess.run(
        [sys.executable, "-c", CROWD], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == "True 1 1\n", done.stderr
