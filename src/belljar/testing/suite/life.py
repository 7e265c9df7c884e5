"""How runs are cut short, and what is left afterwards: nothing (R3)."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path

import pytest

from belljar import core
from belljar.errors import Closed
from belljar.jar import Belljar
from belljar.testing.base import Suite

STAY = "import time\nprint('up', flush=True)\ntime.sleep(100)"


class Life(Suite):
    def test_r3_closing_ends_a_run(self) -> None:
        up = threading.Event()
        with self.new_jar() as jar:
            future = jar.submit(
                STAY,
                engine=self.engine,
                timeout_s=120,
                on_output=lambda stream, data: up.set(),
            )
            assert up.wait(self.seconds(30)), "it never ran"
            started = time.monotonic()
        assert time.monotonic() - started < self.seconds(15)
        with pytest.raises(Closed):
            future.result(1)
        with pytest.raises(Closed):
            jar.run("print(1)", engine=self.engine)

    def test_r3_cancelling_ends_a_run(self, jar: Belljar) -> None:
        up = threading.Event()
        future = jar.submit(
            STAY, engine=self.engine, timeout_s=120, on_output=lambda stream, data: up.set()
        )
        assert up.wait(self.seconds(30)), "it never ran"
        future.cancel()
        with pytest.raises(CancelledError):
            future.result(self.seconds(15))
        assert jar.run("print(6 * 7)", engine=self.engine).stdout == "42\n"

    def test_r3_closing_while_many_start(self) -> None:
        with self.new_jar() as jar:
            futures = [
                jar.submit("print(1)", engine=self.engine, timeout_s=min(120, self.seconds(30)))
                for _ in range(self.at_once)
            ]
        for future in futures:
            with suppress(Closed, CancelledError):
                assert future.result(self.seconds(15)).stdout == "1\n"

    def test_a1_the_callers_own_loop(self) -> None:
        self.check_available()

        async def main() -> list[str]:
            async with core.Belljar(self.settings()) as jar:
                several = (jar.run(f"print({n})", engine=self.engine) for n in range(3))
                return [result.stdout for result in await asyncio.gather(*several)]

        assert asyncio.run(main()) == ["0\n", "1\n", "2\n"]

    def test_r3_nothing_is_left(self) -> None:
        """After `close`: no process, descriptor, mount or temporary folder of this one's."""
        with self.new_jar() as jar:  # what a first use leaves for good is not a leak
            jar.run("pass", engine=self.engine)
        before = _traces()
        with self.new_jar() as jar:
            jar.warm("base", 1, engine=self.engine)
            jar.run("open('/tmp/x', 'w').write('x')", engine=self.engine)
            jar.run("while True: pass", engine=self.engine, timeout_s=self.seconds(0.5))
            future = jar.submit(STAY, engine=self.engine, timeout_s=60)
            jar.run("pass", engine=self.engine)
        with suppress(Closed):
            future.result(1)
        _eventually(lambda: not _traces() - before, within_s=self.seconds(10))
        assert sorted(_traces() - before)[:5] == []

    def test_f1_warming(self) -> None:
        with self.new_jar() as jar:
            jar.warm("base", 2, engine=self.engine)
            result = jar.run("print(1)", engine=self.engine)
            assert result.stdout == "1\n" and result.engine == self.engine


def _traces() -> set[str]:
    """Ours by name, or by descent: on a machine that others use too, the rest is theirs."""
    found = {f"process {pid}" for pid in _descendants()}
    found |= {f"descriptor {name}" for name in os.listdir("/proc/self/fd")}
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found |= {f"mount {line}" for line in mounts if "belljar" in line}
    return found | {f"/tmp/{name}" for name in os.listdir("/tmp") if "belljar" in name}


def _descendants() -> set[int]:
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                stat = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
                if stat[0] not in "ZX":
                    parents[int(name)] = int(stat[1])
    found, new = set[int](), {os.getpid()}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def _eventually(look: Callable[[], bool], *, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not look() and time.monotonic() < deadline:
        time.sleep(0.05)
