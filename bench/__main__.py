"""`python -m bench`: measures, prints tables, writes JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from belljar import Belljar, Settings
from belljar.environments import catalogue
from belljar.environments.build import build
from bench import contenders, gateway, kept, load, report, server, walls
from bench.contenders import BASE, DATA, Code
from bench.timing import Absent, Contender, in_turns, percentile

RESULTS = Path(__file__).parent / "results" / "latest.json"
CALLERS = (1, 2, 8, 50)
PARTS = ("latency", "load", "footprint", "walls", "kept", "server", "gateway")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fast look: few rounds, short load")
    parser.add_argument("--rounds", type=int, help="rounds of the latency comparison (200)")
    parser.add_argument("--seconds", type=float, help="seconds per load measurement (10)")
    parser.add_argument("--idle", type=int, help="idle base sandboxes to hold at once (500)")
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--wall", choices=tuple(walls.WALLS), action="append", help="only these")
    parser.add_argument("--skip-data", action="store_true", help="leave the data environment out")
    parser.add_argument("--bwrap", help="the bubblewrap program, if it is not on the PATH")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the numbers go")
    chosen = parser.parse_args()
    quick = chosen.quick
    chosen.rounds = chosen.rounds or (20 if quick else 200)
    chosen.seconds = chosen.seconds or (2.0 if quick else 10.0)
    chosen.idle = chosen.idle or (50 if quick else 500)
    chosen.wall_rounds = 5 if quick else 20
    chosen.only = chosen.only or list(PARTS)
    chosen.wall = chosen.wall or list(walls.WALLS)
    return chosen


def main() -> None:
    chosen = arguments()
    console = Console()
    codes = [Code(group="base", text=BASE, environment="base")]
    if not chosen.skip_data:
        codes.append(
            Code(group="data", text=DATA, environment="data", packages=data_packages(), every=4)
        )
    numbers: dict[str, Any] = {
        "machine": machine(),
        "code": {code.group: code.text for code in codes},
        "latency": latency(chosen, codes) if "latency" in chosen.only else {},
        "load": sustained(chosen, codes) if "load" in chosen.only else [],
        "footprint": footprint(chosen, codes) if "footprint" in chosen.only else {},
        "walls": walls.measure(chosen.wall, rounds=chosen.wall_rounds)
        if "walls" in chosen.only
        else {},
        "kept": kept.measure(rounds=chosen.rounds, packages=data_packages())
        if "kept" in chosen.only and not chosen.skip_data
        else {},
        "server": server.measure(
            requests=100 if chosen.quick else 500, seconds=5.0 if chosen.quick else 60.0
        )
        if "server" in chosen.only
        else {},
        "gateway": gateway.measure(
            rounds=chosen.rounds, requests=10_000 if chosen.quick else 100_000
        )
        if "gateway" in chosen.only
        else {},
    }
    report.show(numbers, console)
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(numbers, indent=1))
    console.print(f"[dim]{chosen.json}[/dim]")


def data_packages() -> Path:
    """The folder of Belljar's own environment, so that bare Python imports the same files."""
    return build(catalogue.DATA, Settings())


def latency(chosen: argparse.Namespace, codes: Sequence[Code]) -> dict[str, Any]:
    pooled, unpooled = Belljar(Settings()), Belljar(Settings(pool_size=0))
    table: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, pooled, unpooled, _trailed(folder) as trailed:
        for code in codes:
            taking: list[Contender | Absent] = [
                contenders.bare(code),
                contenders.bubblewrap(code, chosen.bwrap),
                contenders.docker(code),
                *contenders.belljar(code, pooled, unpooled),
            ]
            if code.environment == "base":
                taking.append(contenders.trailed(code, trailed))
                taking.append(contenders.command_line(code))
            present = [item for item in taking if isinstance(item, Contender)]
            in_turns(present, track(range(chosen.rounds), description=f"latency, {code.group}"))
            table[code.group] = {
                item.name: {"absent": item.why}
                if isinstance(item, Absent)
                else contenders.row(item)
                for item in taking
            }
    return table


def _trailed(folder: str) -> Belljar:
    return Belljar(Settings(trail=f"sqlite:///{folder}/trail.db"))


def sustained(chosen: argparse.Namespace, codes: Sequence[Code]) -> list[dict[str, Any]]:
    rows = []
    for code in codes:
        for callers in track(CALLERS, description=f"load, {code.group}"):
            with Belljar() as jar:
                found = load.sustain(jar, code, callers=callers, seconds=chosen.seconds)
            rows.append(dataclasses.asdict(found) | {"per_second": found.per_second})
    return rows


def footprint(chosen: argparse.Namespace, codes: Sequence[Code]) -> dict[str, Any]:
    reports = {}
    for code in codes:
        count = chosen.idle if code.environment == "base" else max(2, chosen.idle // 10)
        argv = [sys.executable, "-m", "bench.footprint", code.environment, str(count)]
        argv.append(str(min(chosen.rounds, 100)))
        root = str(Path(__file__).parent.parent)
        done = subprocess.run(argv, stdout=subprocess.PIPE, check=True, cwd=root)
        found: dict[str, Any] = json.loads(done.stdout)
        taken = found["gone_ms"]
        found["gone"] = {"p50_ms": percentile(taken, 50), "p99_ms": percentile(taken, 99)}
        reports[code.environment] = found
    return reports


def machine() -> Mapping[str, Any]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "root": os.geteuid() == 0,
        "load_before": os.getloadavg()[0],
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


if __name__ == "__main__":
    main()
