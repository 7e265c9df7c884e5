"""Threads by purpose: a share of them for each name, and none of the process's common ones."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import time
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import belljar
from belljar import inputs
from belljar.egress import running
from belljar.server import datasets
from belljar.server.datasets import Datasets
from belljar.server.tenants import Quotas, Tenant
from belljar.settings import Settings
from belljar.threads import FILES, OURS, Threads

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


def test_f2_no_thread_is_used_without_saying_for_whom() -> None:
    """Inputs of one tenant took all of them, because they were written for nobody."""
    names = [name for name in vars(Threads) if not name.startswith("_")]
    assert names == ["do_for", "take_for", "finish_for"]
    for name in names:
        assert list(inspect.signature(getattr(Threads, name)).parameters)[1] == "whose"


# -- what nobody takes -----------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["running", "done", "waiting"])
def test_f2_what_nobody_takes_is_put_away_once(when: str) -> None:
    async def play() -> None:
        threads = Threads("test", 1, each=1)
        begun, go, discarded = threading.Event(), threading.Event(), list[int]()
        made: list[int] = []

        def work() -> int:
            begun.set()
            go.wait(PLENTY_S)
            made.append(7)
            return 7

        before = asyncio.ensure_future(threads.do_for("a", work)) if when == "waiting" else None
        await asyncio.sleep(0)
        taking = asyncio.ensure_future(threads.take_for("a", discarded.append, work))
        await asyncio.sleep(0)
        assert begun.wait(PLENTY_S)
        if when == "done":  # with the result on its way to whoever is cancelled
            go.set()
            while threads._under_way:
                time.sleep(0.001)
        taking.cancel()
        await asyncio.wait((taking,))
        assert taking.cancelled()
        go.set()
        async with asyncio.timeout(PLENTY_S):
            if before:
                await before
            while threads._under_way or (not before and not discarded):
                await asyncio.sleep(0.01)
        assert (made, discarded) == ([7], [] if before else [7])

    asyncio.run(play())


def test_f2_what_is_taken_is_not_put_away() -> None:
    discarded: list[int] = []
    assert asyncio.run(FILES.take_for(OURS, discarded.append, lambda: 7)) == 7
    assert not discarded


def test_f2_what_a_thread_uses_is_not_put_away_before_it_is_done() -> None:
    async def play() -> None:
        begun, go = threading.Event(), threading.Event()
        done: list[str] = []

        def work() -> None:
            begun.set()
            go.wait(PLENTY_S)
            done.append("work")

        async def use() -> None:
            try:
                await FILES.finish_for(OURS, work)
            finally:
                done.append("closed")

        using = asyncio.ensure_future(use())
        await asyncio.sleep(0)
        assert begun.wait(PLENTY_S)
        for _ in range(3):
            using.cancel()
            await asyncio.sleep(0.01)
        assert not done
        go.set()
        await asyncio.wait((using,))
        assert done == ["work", "closed"] and using.cancelled()

    asyncio.run(play())


@pytest.mark.parametrize("where", ["_create", "_complete"])
def test_s4_an_upload_that_is_cancelled_in_a_thread_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    async def play() -> None:
        found = Datasets(tmp_path / "server" / "datasets", most_bytes=1 << 30)
        begun, go, over = threading.Event(), threading.Event(), threading.Event()
        place: Any = datasets if where == "_create" else found
        work = getattr(place, where)

        def slow(*args: Any) -> Any:
            made = work(*args)
            begun.set()
            go.wait(PLENTY_S)
            over.set()
            return made

        monkeypatch.setattr(place, where, slow)

        async def pieces() -> AsyncIterator[bytes]:
            yield b"x"

        files = set(os.listdir("/proc/self/fd"))
        adding = asyncio.ensure_future(
            found.add(Tenant("ann", Quotas()), "x", pieces(), declared=None)
        )
        async with asyncio.timeout(PLENTY_S):
            while not begun.is_set():
                await asyncio.sleep(0.01)
            adding.cancel()
            await asyncio.wait((adding,))
            go.set()
            while not over.is_set() or FILES._under_way:
                await asyncio.sleep(0.01)
            while list((tmp_path / "server" / "datasets").iterdir()):
                await asyncio.sleep(0.01)
        assert not found.of("ann") and not found._arriving
        assert set(os.listdir("/proc/self/fd")) <= files

    asyncio.run(play())


def test_n1_a_gateway_that_nobody_waits_for_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        begun, go, launched = threading.Event(), threading.Event(), list[Any]()
        launch = running._launch

        def slow(settings: Settings) -> Any:
            launched.append(launch(settings))
            begun.set()
            go.wait(PLENTY_S)
            return launched[0]

        monkeypatch.setattr(running, "_launch", slow)
        starting = asyncio.ensure_future(running.Running.start(Settings(home=tmp_path)))
        async with asyncio.timeout(PLENTY_S):
            while not begun.is_set():
                await asyncio.sleep(0.01)
            starting.cancel()
            await asyncio.wait((starting,))
            go.set()
            while launched[0].process.returncode is None:
                await asyncio.sleep(0.01)
            while launched[0].talk.fileno() >= 0:
                await asyncio.sleep(0.01)

    asyncio.run(play())


class Slow(BytesIO):
    """A file whose content takes as long to come as `go` says."""

    def __init__(self, go: threading.Event, begun: list[str]) -> None:
        super().__init__(b"x")
        self._go, self._begun = go, begun

    def read(self, size: int | None = -1) -> bytes:
        self._begun.append("read")
        self._go.wait(PLENTY_S)
        return super().read(size)


def test_f2_inputs_of_one_tenant_leave_threads_for_others(tmp_path: Path) -> None:
    """They are written on the host where the wall has a folder for them."""

    async def play() -> None:
        go, begun = threading.Event(), list[str]()
        talk: Any = SimpleNamespace(wall=SimpleNamespace(inputs=tmp_path))
        crowd = [
            asyncio.create_task(inputs.place(talk, str(number), Slow(go, begun), whose="eve"))
            for number in range(40)
        ]
        try:
            async with asyncio.timeout(PLENTY_S):
                while not begun:
                    await asyncio.sleep(0.01)
                assert await FILES.do_for("ann", lambda: 42) == 42
                assert await FILES.do_for(OURS, lambda: 42) == 42
                assert len(begun) <= 4
        finally:
            go.set()
            await asyncio.gather(*crowd)

    asyncio.run(play())
    assert len(list(tmp_path.iterdir())) == 40
