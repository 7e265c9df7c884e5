"""A1: the asynchronous twin."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import belljar
from belljar import Settings, aio

SLEEP = "import time; print('on', flush=True); time.sleep(60)"


def test_runs_side_by_side() -> None:
    """A1: thirty at once, each with its own answer, in less than their sum."""

    async def main() -> None:
        async with aio.Belljar() as jar:
            await jar.run("pass")
            started = time.monotonic()
            results = await asyncio.gather(
                *(jar.run(f"import time; time.sleep(0.3); print({n})") for n in range(30))
            )
            assert [result.stdout for result in results] == [f"{n}\n" for n in range(30)]
            assert time.monotonic() - started < 30 * 0.3 * 0.7

    asyncio.run(main())


def test_the_loop_is_never_blocked() -> None:
    """A1: also while the first zygote starts."""

    async def main() -> None:
        gaps = []

        async def ticker() -> None:
            while True:
                before = time.monotonic()
                await asyncio.sleep(0.01)
                gaps.append(time.monotonic() - before)

        async with aio.Belljar(Settings(pool_size=1)) as jar:
            await jar.run("pass")
            ticking = asyncio.create_task(ticker())
            await jar.run("import time; time.sleep(0.5)")
            await jar.run("print('x' * 1000000)")
            ticking.cancel()
        assert len(gaps) > 15
        assert sorted(gaps)[-2] < 0.3

    asyncio.run(main())


def test_cancelling_destroys_the_sandbox(traces: Any, eventually: Callable[..., None]) -> None:
    """A1, R3: the code is killed at once, not when its time is up."""

    async def main() -> None:
        async with aio.Belljar(Settings(pool_size=1, pool_maximum=1)) as jar:
            started = asyncio.Event()
            run = asyncio.create_task(jar.run(SLEEP, on_output=lambda *_: started.set()))
            await started.wait()
            old = traces.processes()
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            deadline = time.monotonic() + 5
            # One unused sandbox waits in the pool: an agent and its runner, neither of them old.
            while (now := traces.processes()) & old or len(now) != 2:
                assert time.monotonic() < deadline, (old, now)
                await asyncio.sleep(0.01)
            assert (await jar.run("print(1)")).stdout == "1\n"

    asyncio.run(main())
    eventually(traces.processes, set())
    assert traces.groups() == set()


def test_a_callers_own_time_out(traces: Any) -> None:
    """A1"""

    async def main() -> None:
        async with aio.Belljar() as jar:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await jar.run(SLEEP)
            assert (await jar.run("print(1)")).stdout == "1\n"

    asyncio.run(main())
    assert traces.processes() == set()


@pytest.mark.parametrize("pool_size", [0, 2])
def test_cancelling_at_any_moment_harms_no_neighbour(pool_size: int, traces: Any) -> None:
    """A1, R3: in every step of making, running and unmaking a sandbox."""

    async def main() -> None:
        async with aio.Belljar(Settings(pool_size=pool_size)) as jar:
            await jar.run("pass")
            neighbour = asyncio.create_task(
                jar.run("import time\nfor n in range(40): time.sleep(0.05)\nprint('whole')")
            )
            await asyncio.sleep(0.3)
            for step in range(60):
                run = asyncio.create_task(jar.run("print(1)"))
                await asyncio.sleep(step * 0.0004)
                run.cancel()
                await asyncio.gather(run, return_exceptions=True)
            assert (await jar.run("print(2)")).stdout == "2\n"
            result = await neighbour
            assert (result.status, result.stdout) == ("ok", "whole\n")

    asyncio.run(main())
    assert traces.zygotes() == traces.processes() == traces.groups() == set()


def test_the_shared_jar_serves_several_loops() -> None:
    """A1: `aio.run` in one loop after another, and in several threads at once."""
    assert asyncio.run(aio.run("print(1)")).stdout == "1\n"
    assert asyncio.run(aio.run("print(2)")).stdout == "2\n"
    answers: list[str] = []

    def loop(number: int) -> None:
        async def main() -> None:
            results = await asyncio.gather(*(aio.run(f"print({number})") for _ in range(3)))
            answers.extend(result.stdout for result in results)

        asyncio.run(main())

    threads = [threading.Thread(target=loop, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == sorted(f"{number}\n" for number in range(6) for _ in range(3))


def test_cancelling_the_shared_run() -> None:
    """A1: the cancellation reaches the sandbox through the portal."""

    async def main() -> None:
        before = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await aio.run(SLEEP)
        assert time.monotonic() - before < 5
        assert (await aio.run("print(1)")).stdout == "1\n"

    asyncio.run(main())


def test_wrong_use_raises_in_the_task(jar: belljar.Belljar) -> None:
    """R5"""

    async def main() -> None:
        async with aio.Belljar() as jar:
            good, bad = await asyncio.gather(
                jar.run("print(1)"), jar.run("print(1)", timeout_s=-1), return_exceptions=True
            )
            assert isinstance(good, belljar.Result)
            assert isinstance(bad, belljar.InvalidRequest)

    asyncio.run(main())


def test_a_closed_one_says_so(traces: Any) -> None:
    """A1: used or not; closing again is harmless."""

    async def main() -> None:
        used, unused = aio.Belljar(), aio.Belljar()
        await used.run("pass")
        for jar in (used, unused):
            await jar.close()
            await jar.close()
            with pytest.raises(belljar.Closed):
                await jar.run("pass")
            with pytest.raises(belljar.Closed):
                await jar.warm("base", 1)

    asyncio.run(main())
    assert traces.zygotes() == set()


def test_closing_under_way(traces: Any) -> None:
    """R3: whoever still waits gets an answer."""

    async def main() -> None:
        jar = aio.Belljar()
        await jar.run("pass")
        runs = [asyncio.create_task(jar.run(SLEEP)) for _ in range(3)]
        await asyncio.sleep(0.3)
        async with asyncio.timeout(8):
            await jar.close()
            for answer in await asyncio.gather(*runs, return_exceptions=True):
                assert isinstance(answer, belljar.Closed) or answer.status == "killed"

    asyncio.run(main())
    assert traces.zygotes() == traces.processes() == traces.groups() == set()


def test_output_arrives_on_the_callers_loop() -> None:
    """A1: a callback may touch what belongs to the loop."""

    async def main() -> None:
        threads = set()
        async with aio.Belljar() as jar:
            await jar.run("print(1)", on_output=lambda *_: threads.add(threading.get_ident()))
        assert threads == {threading.get_ident()}

    asyncio.run(main())


def test_warm_is_awaited(traces: Any) -> None:
    """F1"""

    async def main() -> None:
        async with aio.Belljar(Settings(pool_size=1)) as jar:
            await jar.warm("base", 4)
            assert len(traces.sandboxes()) == 4

    asyncio.run(main())
