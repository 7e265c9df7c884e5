"""Threads by purpose: a share of them for each name, and none of the process's common ones."""

from __future__ import annotations

import asyncio
import threading
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import belljar
from belljar import inputs
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
    assert [name for name in vars(Threads) if not name.startswith("_")] == ["do_for"]


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
