"""Threads by purpose: a share of them for each name, and none of the process's common ones."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import belljar
from belljar.threads import Threads

PLENTY_S = 30.0


def test_f2_a_name_has_its_share_of_the_threads_and_no_more() -> None:
    async def play() -> None:
        threads = Threads("test", 3, each=2)
        go = threading.Event()
        begun: list[str] = []

        def work(name: str) -> None:
            begun.append(name)
            go.wait(PLENTY_S)

        crowd = [asyncio.create_task(threads.do_for("a", work, "a")) for _ in range(8)]
        async with asyncio.timeout(PLENTY_S):
            while len(begun) < 2:
                await asyncio.sleep(0.01)
            # Those that gave up have their threads until the work is done.
            for task in crowd[:2]:
                task.cancel()
            await asyncio.wait(crowd[:2])
            other = asyncio.create_task(threads.do_for("b", work, "b"))
            while "b" not in begun:
                await asyncio.sleep(0.01)
            assert begun.count("a") == 2
            go.set()
            await asyncio.gather(other, *crowd[2:])
            assert begun.count("a") == 8

    asyncio.run(play())


def test_f2_nothing_waits_in_the_common_executor() -> None:
    """Whatever uses that waits for everything else that does."""
    top = Path(belljar.__file__).parent
    users = {
        str(path.relative_to(top))
        for path in top.rglob("*.py")
        if any(name in path.read_text() for name in ("to_thread(", "run_in_executor("))
    }
    assert not users
