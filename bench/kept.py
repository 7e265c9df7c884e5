"""Sandboxes that live between runs: a step, an analysis in ten steps, branches, many at once."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.progress import track

from belljar import Belljar, Sandbox
from belljar.model import GIB
from bench.contenders import Code, bare_python, lone_environment
from bench.footprint import available_bytes
from bench.timing import percentile

MANY, BRANCHES = 200, 20
LOADED = """\
import numpy, pandas
generator = numpy.random.default_rng(1)
frame = pandas.DataFrame({"shop": generator.integers(0, 50, 100_000),
                          "price": generator.random(100_000)})
"""
STEPS = (
    "frame.shape",
    "frame.describe()",
    "frame.price.mean()",
    "frame.groupby('shop').price.sum().head()",
    "frame.groupby('shop').price.sum().idxmax()",
    "frame['dear'] = frame.price > 0.9\nframe.dear.mean()",
    "frame.sample(5, random_state=1)",
    "frame.price.quantile([0.1, 0.5, 0.9])",
    "frame.sort_values('price').tail(3)",
    "frame.corr()",
)
BIG = """\
import numpy, pandas
big = pandas.DataFrame({"value": numpy.random.default_rng(1).random(25_000_000)})
"""


def measure(*, rounds: int, packages: Path) -> dict[str, Any]:
    with Belljar() as jar:
        return {
            "step": _step(jar, rounds),
            "analysis": _analysis(jar, packages, max(3, rounds // 20)),
            "packages": _packages(jar, max(5, rounds // 5)),
            "branching": _branching(jar, max(5, rounds // 10)),
            "many": _many(jar),
        }


def _timed(once: Callable[[], object]) -> float:
    started = time.perf_counter()
    once()
    return (time.perf_counter() - started) * 1000


def _step(jar: Belljar, rounds: int) -> dict[str, float]:
    """`1 + 1`, one run after the other, with checkpoints as they are by default."""
    samples = []
    with Sandbox(jar, environment="base", max_runs=rounds + 1) as box:
        box.run("1 + 1")
        for _ in track(range(rounds), description="kept, a step"):
            samples.append(_timed(lambda: _expect(box, "1 + 1", "2")))
            time.sleep(0.005)  # nobody sends the next step at once
    return {"p50_ms": percentile(samples, 50), "p99_ms": percentile(samples, 99)}


def _analysis(jar: Belljar, packages: Path, rounds: int) -> dict[str, float]:
    """The same ten questions: in one sandbox, made for it, and as ten scripts for bare Python,
    each of which has to load what it asks about."""
    code = Code(group="data", text="", environment="data", packages=packages)
    jar.run("import pandas", environment="data")
    kept, bare = [], []
    for _ in track(range(rounds), description="kept, ten steps"):
        kept.append(_timed(lambda: _in_steps(jar)))
        bare.append(_timed(lambda: _as_scripts(code)))
    return {"kept_ms": percentile(kept, 50), "bare_ms": percentile(bare, 50)}


def _in_steps(jar: Belljar) -> None:
    with Sandbox(jar, environment="data") as box:
        _expect(box, LOADED)
        for step in STEPS:
            _expect(box, step)


def _as_scripts(code: Code) -> None:
    for step in STEPS:
        argv = [bare_python(), "-c", LOADED + step]
        subprocess.run(argv, env=lone_environment(code), check=True, capture_output=True)


def _packages(jar: Belljar, rounds: int) -> dict[str, float]:
    """Until a sandbox is ready, with a set of packages that is built already, and without."""
    taken: dict[str, list[float]] = {"plain_ms": [], "packages_ms": []}
    _ready(jar, ("humanize",))
    for _ in track(range(rounds), description="kept, packages"):
        taken["plain_ms"].append(_timed(lambda: _ready(jar, ())))
        taken["packages_ms"].append(_timed(lambda: _ready(jar, ("humanize",))))
    return {name: percentile(samples, 50) for name, samples in taken.items()}


def _ready(jar: Belljar, packages: Sequence[str]) -> None:
    Sandbox(jar, environment="base", packages=packages).__enter__().close()


def _branching(jar: Belljar, rounds: int) -> dict[str, float]:
    """Of a sandbox that holds a frame of 200 MB: `fork` until the copy has answered."""
    forks, rollbacks = [], []
    with Sandbox(
        jar, environment="data", memory_bytes=2 * GIB, disk_bytes=GIB, max_runs=10_000
    ) as box:
        _expect(box, BIG)
        for _ in track(range(rounds), description="kept, branches"):
            forks.append(_timed(lambda: _branch(box)))
            run_id = box.run("big.loc[0, 'value'] = 2.0").run_id
            assert run_id is not None
            rollbacks.append(_timed(lambda run_id=run_id: box.rollback(run_id)))  # type: ignore[misc]
        before = available_bytes()
        children = box.fork(BRANCHES)
        try:
            for child in children:
                _expect(child, "len(big)", "25000000")
            added = before - available_bytes()
        finally:
            for child in children:
                child.close()
    return {
        "fork_p50_ms": percentile(forks, 50),
        "rollback_p50_ms": percentile(rollbacks, 50),
        "branches": BRANCHES,
        "branches_added_bytes": added,
    }


def _branch(box: Sandbox) -> None:
    (child,) = box.fork(1)
    _expect(child, "len(big)", "25000000")
    child.close()


def _many(jar: Belljar) -> dict[str, float]:
    """Data sandboxes that are alive at once, each of which has answered twice."""
    before = available_bytes()
    boxes: list[Sandbox] = []
    try:
        for number in track(range(MANY), description="kept, many"):
            boxes.append(Sandbox(jar, environment="data"))
            boxes[-1].open()
            _expect(boxes[-1], f"import pandas\nmine = pandas.Series([{number}])")
        for number, box in enumerate(boxes):
            _expect(box, "int(mine.sum())", str(number))
        return {"alive": len(boxes), "bytes_each": (before - available_bytes()) / len(boxes)}
    finally:
        for box in boxes:
            box.close()


def _expect(box: Sandbox, code: str, value: str | None = None) -> None:
    result = box.run(code)
    if not result.success or (value is not None and result.value != value):
        raise RuntimeError(f"{code!r}: {result.status} {result.value!r} {result.stderr[-200:]}")
