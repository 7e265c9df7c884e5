"""What Belljar promises about speed and size, each judged against this very run.

Ratios are to bare Python measured in the same rounds, so they hold on any machine; the absolute
figures are those promised for two cores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench import docker, gvisor, microvm

Numbers = Mapping[str, Any]
"""The JSON report: latency[group][name], load[], footprint[environment]."""

BARE = "bare python3"
POOLED, UNPOOLED = "belljar, pooled", "belljar, pool off"
CLI = "belljar run, cold command line"
MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Target:
    text: str
    most: float | None = None
    least: float | None = None
    measure: Callable[[Numbers], float]

    def judge(self, numbers: Numbers) -> tuple[float, bool] | None:
        """The measured value and whether it is met; None when it was not measured."""
        try:
            value = self.measure(numbers)
        except (KeyError, TypeError, StopIteration, ZeroDivisionError):
            return None
        met = (self.most is None or value <= self.most) and (
            self.least is None or value >= self.least
        )
        return value, met


def _ratio(group: str, name: str) -> Callable[[Numbers], float]:
    def measure(numbers: Numbers) -> float:
        rows = numbers["latency"][group]
        return float(rows[name]["p50_ms"] / rows[BARE]["p50_ms"])

    return measure


def _tail(group: str, name: str) -> Callable[[Numbers], float]:
    def measure(numbers: Numbers) -> float:
        row = numbers["latency"][group][name]
        return float(row["p99_ms"] / row["p50_ms"])

    return measure


def _wall(engine: str, name: str, beside: str) -> Callable[[Numbers], float]:
    def measure(numbers: Numbers) -> float:
        rows = numbers["walls"][engine]["rows"]
        return float(rows[name]["p50_ms"] / rows[beside]["p50_ms"])

    return measure


def _load(group: str, callers: int, field: str) -> Callable[[Numbers], float]:
    def measure(numbers: Numbers) -> float:
        rows: Sequence[Numbers] = numbers["load"]
        row = next(r for r in rows if r["group"] == group and r["callers"] == callers)
        return float(row[field])

    return measure


def _kept(part: str, field: str, *, per: float = 1.0) -> Callable[[Numbers], float]:
    return lambda numbers: float(numbers["kept"][part][field] / per)


def _server(part: str, field: str, *, per: float = 1.0) -> Callable[[Numbers], float]:
    return lambda numbers: float(numbers["server"][part][field] / per)


def _gateway(part: str, field: str, *, per: float = 1.0) -> Callable[[Numbers], float]:
    return lambda numbers: float(numbers["gateway"][part][field] / per)


def _ten_steps(numbers: Numbers) -> float:
    taken = numbers["kept"]["analysis"]
    return float(taken["kept_ms"] / taken["bare_ms"])


def _with_packages(numbers: Numbers) -> float:
    taken = numbers["kept"]["packages"]
    return float(taken["packages_ms"] / taken["plain_ms"])


def _idle_mib(numbers: Numbers) -> float:
    idle = numbers["footprint"]["base"]["idle"]
    if idle["inside"]["unreadable"]:
        return float(idle["machine_bytes"] / idle["sandboxes"] / MIB)
    held = idle["inside"]["pss_bytes"] + idle["inside"]["page_table_bytes"]
    return float(held / idle["sandboxes"] / MIB)


TARGETS = (
    Target(text="base, pooled: p50 to bare", most=0.25, measure=_ratio("base", POOLED)),
    Target(text="base, pool off: p50 to bare", most=0.8, measure=_ratio("base", UNPOOLED)),
    Target(text="data, pooled: p50 to bare", most=0.02, measure=_ratio("data", POOLED)),
    Target(text="data, pool off: p50 to bare", most=0.05, measure=_ratio("data", UNPOOLED)),
    Target(text="base, pooled: p99 to p50", most=5, measure=_tail("base", POOLED)),
    Target(text="base, pool off: p99 to p50", most=5, measure=_tail("base", UNPOOLED)),
    Target(text="data, pooled: p99 to p50", most=5, measure=_tail("data", POOLED)),
    Target(text="data, pool off: p99 to p50", most=5, measure=_tail("data", UNPOOLED)),
    Target(text="cold command line: p50 to bare", most=12, measure=_ratio("base", CLI)),
    Target(text="base, 50 callers: runs/s", least=150, measure=_load("base", 50, "per_second")),
    Target(text="base, 50 callers: failures", most=0, measure=_load("base", 50, "failures")),
    Target(text="data, 50 callers: runs/s", least=60, measure=_load("data", 50, "per_second")),
    Target(text="data, 50 callers: failures", most=0, measure=_load("data", 50, "failures")),
    Target(
        text="idle base sandboxes at once",
        least=500,
        measure=lambda numbers: numbers["footprint"]["base"]["idle"]["sandboxes"],
    ),
    Target(text="MiB per idle base sandbox beyond the zygote", most=8, measure=_idle_mib),
    Target(
        text="docker, pool off: p50 to docker-py with the same hardening",
        most=1.15,
        measure=_wall("docker", docker.FRESH, docker.PLAIN),
    ),
    Target(
        text="docker, pooled: p50 to docker-py with the same hardening",
        most=0.1,
        measure=_wall("docker", docker.POOLED, docker.PLAIN),
    ),
    Target(
        text="gvisor, pooled: p50 to runsc do",
        most=0.1,
        measure=_wall("gvisor", gvisor.POOLED, gvisor.PLAIN),
    ),
    Target(
        text="microvm, restored: p50 to its own cold boot",
        most=0.3,
        measure=_wall("microvm", "belljar microvm, restored", microvm.COLD),
    ),
    Target(
        text="wasm, pool off: p50 to wasmtime without snapshot or cache",
        most=0.5,
        measure=_wall("wasm", "belljar wasm, pool off", "wasmtime, compiling"),
    ),
    Target(text="kept: ms of 1 + 1, p50", most=2, measure=_kept("step", "p50_ms")),
    Target(
        text="kept: ten steps of an analysis to ten bare processes",
        most=0.1,
        measure=_ten_steps,
    ),
    Target(
        text="kept: ready with packages to ready without",
        most=1.5,
        measure=_with_packages,
    ),
    Target(
        text="kept: ms until a branch of a 200 MB frame answers, p50",
        most=60,
        measure=_kept("branching", "fork_p50_ms"),
    ),
    Target(
        text="kept: ms of a rollback, p50", most=60, measure=_kept("branching", "rollback_p50_ms")
    ),
    Target(
        text="kept: MB that 20 branches of it add",
        most=400,
        measure=_kept("branching", "branches_added_bytes", per=1e6),
    ),
    Target(text="kept: data sandboxes alive", least=200, measure=_kept("many", "alive")),
    Target(text="POST /execute: p50 to bare", most=0.6, measure=_server("execute", "ratio")),
    Target(text="50 clients: runs/s over HTTP", least=100, measure=_server("load", "per_second")),
    Target(text="50 clients: failures", most=0, measure=_server("load", "failures")),
    Target(text="50 clients: ms, p99", most=1000, measure=_server("load", "p99_ms")),
    Target(
        text="50 clients: MB that the server grows in the last three quarters",
        most=20,
        measure=_server("load", "grown_bytes", per=1e6),
    ),
    Target(
        text="gateway: ms added to a plain request of a sandbox, p50",
        most=3,
        measure=_gateway("from the jail", "plain, new: added ms, p50"),
    ),
    Target(
        text="gateway: ms added with interception, p50",
        most=10,
        measure=_gateway("from the jail", "intercepted, new: added ms, p50"),
    ),
    Target(text="gateway: requests/s", least=300, measure=_gateway("many", "per_second")),
    Target(text="gateway: failed requests", most=0, measure=_gateway("many", "failures")),
    Target(
        text="gateway: MB that it grows over 100,000 requests",
        most=5,
        measure=_gateway("many", "grown_bytes", per=1e6),
    ),
)
