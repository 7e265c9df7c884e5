"""The other engines, each beside the tool it is made of, in the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rich.progress import track

from belljar import Belljar, Settings
from bench import docker, gvisor, microvm, wasm
from bench.contenders import row
from bench.timing import Absent, Contender, in_turns

Find = Callable[[Belljar, Belljar], list[Contender | Absent]]
WALLS: dict[str, tuple[Find, str]] = {
    "docker": (docker.contenders, docker.PLAIN),
    "gvisor": (gvisor.contenders, gvisor.PLAIN),
    "microvm": (microvm.contenders, microvm.COLD),
    "wasm": (wasm.contenders, "wasmtime, compiled ahead"),
}
"""Engine → who takes part, and which of them the others are compared with."""


def measure(engines: Iterable[str], *, rounds: int) -> dict[str, Any]:
    return {engine: _wall(engine, rounds) for engine in engines}


def _wall(engine: str, rounds: int) -> dict[str, Any]:
    find, baseline = WALLS[engine]
    settings = Settings(engine=engine, pool_size=2)
    unpooled = Settings(engine=engine, pool_size=0)
    with Belljar(settings) as with_pool, Belljar(unpooled) as without:
        taking = find(with_pool, without)
        present = [item for item in taking if isinstance(item, Contender)]
        in_turns(present, track(range(rounds), description=f"wall, {engine}"))
    rows = {
        item.name: {"absent": item.why} if isinstance(item, Absent) else row(item)
        for item in taking
    }
    return {"baseline": baseline, "rows": rows}
