"""L7: what a run uses can be watched while it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from belljar import Belljar, Usage, aio
from belljar.mcp.once import once
from belljar.settings import Settings
from belljar.trail.trail import Trail

GROWS = """
import time
kept = bytearray(64 << 20)
end = time.monotonic() + 1.5
while time.monotonic() < end:
    pass
"""


def test_usage_is_reported_while_the_code_runs(jar: Belljar) -> None:
    """L7"""
    seen: list[Usage] = []
    result = jar.run(GROWS, on_usage=seen.append)
    assert result.success
    assert len(seen) >= 3
    cpu = [usage.cpu_ms for usage in seen]
    assert cpu == sorted(cpu) and cpu[-1] > cpu[0]
    assert cpu[-1] <= result.usage.cpu_ms
    assert seen[-1].peak_memory_bytes > 64 << 20
    assert seen[-1].peak_processes == 1


def test_a_callback_that_fails_ends_the_run_and_is_told(jar: Belljar) -> None:
    """L7"""

    def fails(usage: Usage) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        jar.run(GROWS, on_usage=fails)


def test_a_run_of_a_kept_sandbox_is_counted_from_before_it_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """L7: what is taken for the start is read before the code can be under way."""
    order: list[str] = []

    async def play() -> None:
        async with aio.Belljar(Settings(pool_size=1)) as jar, aio.Sandbox(jar) as box:
            assert box._held is not None
            wall = box._held.conversation.wall
            settle, begin = wall.settle, box._held.conversation.begin
            monkeypatch.setattr(wall, "settle", lambda: (order.append("settle"), settle())[1])
            monkeypatch.setattr(
                box._held.conversation,
                "begin",
                lambda op, **more: (order.append(op), begin(op, **more))[1],
            )
            await box.run("x = 1")

    asyncio.run(play())
    assert order == ["settle", "run"]


def test_what_a_sandbox_used_is_counted_across_its_runs() -> None:
    """L7: a program beside many short runs hides nothing between them."""
    busy = "import time\nwhile time.process_time() < 1: pass\nprint(time.process_time())"

    async def play() -> tuple[float, float, float]:
        async with aio.Belljar(Settings(pool_size=1)) as jar:
            async with aio.Sandbox(jar, max_runs=1000) as box:
                before = box.all_cpu_ms()
                if before is None:
                    pytest.skip("the wall cannot tell")
                program = await box.start(["python3", "-c", busy])
                seen = [before]
                while program.running:
                    await box.run("pass")
                    seen.append(box.all_cpu_ms() or 0.0)
                assert seen == sorted(seen)
                last = box.all_cpu_ms() or 0.0
            return before, last, box.all_cpu_ms() or 0.0

    before, last, ended = asyncio.run(play())
    assert last - before >= 1000 and ended >= last


def test_what_a_run_for_a_model_left_running_is_in_its_figure_and_in_the_trail(
    tmp_path: Path,
) -> None:
    """L7: what the tenant is told, and pays, is what the trail says of the sandbox."""
    url = f"sqlite:///{tmp_path}/trail/trail.db"
    code = "import subprocess\nsubprocess.Popen(['python3', '-c', 'while True: pass'])"

    async def play() -> Usage:
        async with aio.Belljar(Settings(pool_size=1, trail=url)) as jar:
            return (await once(jar, code, {})).usage

    usage = asyncio.run(play())
    with Trail(url) as trail:
        ends = {one.attempt["action"]: one.end for one in trail.recent()}
    sandbox, run = ends["sandbox"], ends["run"]
    assert sandbox is not None and run is not None
    if "cpu_ms" not in sandbox:
        pytest.skip("the wall cannot tell")
    assert round(usage.cpu_ms, 3) == sandbox["cpu_ms"] >= run["usage"]["cpu_ms"]
