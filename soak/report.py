"""What a soak found, as Markdown with charts for people and as JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

from rich.console import Console
from rich.table import Table

from .charts import Series, chart
from .checks import MIB, Check
from .record import Op, Record

MOST_SHOWN = 20
"""Kinds of violations of one check in the report; the JSON has all."""
_PARTICULAR = re.compile(r"t[0-9a-f]+x[0-9a-f]{6}|[0-9a-f]{32}|(alice|bob|carol)'s|[0-9.]+")
"""What tells violations of one kind apart: tokens, ids, tenants, numbers."""
MOST_DOTS = 4000
BUCKETS = 120


def write(
    record: Record, checks: Sequence[Check], folder: Path, options: Mapping[str, Any]
) -> Path:
    """The Markdown's path; everything else is beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in _charts(record).items():
        (folder / f"{name}.svg").write_text(text)
    figures = {
        "machine": _machine(),
        "options": dict(options),
        "held": all(check.held for check in checks),
        "checks": [dataclasses.asdict(check) | {"held": check.held} for check in checks],
        "requests": _requests(record.ops),
        "record": record.to_dict(),
    }
    (folder / "soak.json").write_text(json.dumps(figures, indent=1, default=str))
    report = folder / "report.md"
    report.write_text(_markdown(record, checks, figures))
    return report


def show(checks: Sequence[Check], console: Console) -> None:
    table = Table("check", "what must hold", "result")
    for check in checks:
        table.add_row(check.name, check.promise, _result(check, colour=True))
    console.print(table)
    for check in checks:
        for violation in grouped(check.violations)[:MOST_SHOWN]:
            console.print(f"{check.name}: {violation}", markup=False, soft_wrap=True)


def grouped(violations: Sequence[str]) -> list[str]:
    """The first of each kind, and how many are like it."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for one in violations:
        kinds[_PARTICULAR.sub("", one)[:200]].append(one)
    return [
        many[0][:400] + (f" (and {len(many) - 1} like it)" if many[1:] else "")
        for many in kinds.values()
    ]


def _markdown(record: Record, checks: Sequence[Check], figures: Mapping[str, Any]) -> str:
    machine, options = figures["machine"], figures["options"]
    verdict = "Everything held." if figures["held"] else "**Not everything held.**"
    ended = " It was interrupted: this is what was seen until then." if record.interrupted else ""
    again = " ".join(f"{name.upper()}={value}" for name, value in options.items() if value != "")
    lines = [
        "# Soak",
        "",
        f"{verdict}{ended} {record.duration_s / 60:.1f} minutes, {len(record.ops)} requests by"
        f" three tenants, {len(record.faults)} faults, {len(record.lives)} lives of the server.",
        f"{machine['cores']} cores, Linux {machine['kernel']}, Python {machine['python']},"
        f" {machine['when']}. Again: `make soak {again}`.",
        "",
        *(f"- {note}" for note in record.notes),
        "",
        "## What must hold",
        "",
        "| check | what must hold | result |",
        "| --- | --- | --- |",
        *(f"| {check.name} | {check.promise} | {_result(check)} |" for check in checks),
        "",
    ]
    for check in checks:
        if check.violations:
            lines += [f"### Violations: {check.name}", ""]
            lines += [f"- {_inline(one)}" for one in grouped(check.violations)[:MOST_SHOWN]]
            lines += ["", "soak.json has every one.", ""]
    lines += [
        "## Over time",
        "",
        "Red: from the beginning of a fault until the server was itself again.",
        "",
        *(f"![{name}]({name}.svg)" for name in ("latency", "throughput", "memory", "descriptors")),
        "",
        "## Faults",
        "",
        "| at | fault | lasted | recovered after | |",
        "| --- | --- | --- | --- | --- |",
    ]
    for fault in record.faults:
        lasted = _seconds(fault.began, fault.lifted)
        after = _seconds(fault.lifted, fault.recovered)
        detail = _inline(fault.detail)
        lines.append(f"| {fault.began:.0f} s | {fault.kind} | {lasted} | {after} | {detail} |")
    lines += [
        "",
        "## Requests",
        "",
        "Milliseconds are those of right answers outside of faults.",
        "",
        "| request | right | refused | no answer | left | wrong | p50 | p99 |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for kind, row in _requests(record.ops, record).items():
        counts = (row[name] for name in ("right", "refused", "broken", "left", "wrong"))
        times = (f"{row['p50_ms']:.0f}", f"{row['p99_ms']:.0f}") if "p50_ms" in row else ("", "")
        lines.append(f"| {kind} | {' | '.join(map(str, (*counts, *times)))} |")
    lines += ["", "## Figures", ""]
    for check in checks:
        if check.figures:
            told = json.dumps(check.figures, indent=1)
            lines += [f"{check.name}:", "", "```json", told, "```", ""]
    return "\n".join(lines)


def _requests(ops: Sequence[Op], record: Record | None = None) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    taken: dict[str, list[float]] = defaultdict(list)
    for op in ops:
        row = found.setdefault(
            op.kind, dict.fromkeys(("right", "refused", "broken", "left", "wrong"), 0)
        )
        row[op.outcome] += 1
        if op.outcome == "right" and (record is None or not record.disturbed(op)):
            taken[op.kind].append((op.ended - op.began) * 1000)
    for kind, times in taken.items():
        cuts = quantiles(times, n=100, method="inclusive") if len(times) > 1 else times * 99
        found[kind] |= {"p50_ms": round(cuts[49], 2), "p99_ms": round(cuts[98], 2)}
    return dict(sorted(found.items()))


def _charts(record: Record) -> dict[str, str]:
    until = max(record.duration_s, 1.0)
    kinds = ("print", "execute", "egress")
    ops = [op for op in record.ops if op.outcome == "right" and op.kind in kinds]
    ops = ops[:: max(1, len(ops) // MOST_DOTS)]
    latency = [
        Series(
            name=kind,
            dots=True,
            points=[(op.began, (op.ended - op.began) * 1000) for op in ops if op.kind == kind],
        )
        for kind in kinds
    ]
    every_s = max(2.0, until / BUCKETS)
    answered = [0] * (int(until // every_s) + 1)
    for op in record.ops:
        if op.outcome == "right" and op.ended <= until:
            answered[int(op.ended // every_s)] += 1
    throughput = [
        Series(
            name="right answers",
            points=[(number * every_s, count / every_s) for number, count in enumerate(answered)],
        )
    ]
    memory = [
        Series(name="server", points=[(s.at, s.memory_bytes / MIB) for s in record.samples]),
        Series(name="gateway", points=[(s.at, s.gateway_bytes / MIB) for s in record.samples]),
    ]
    descriptors = [
        Series(name="descriptors", points=[(s.at, s.descriptors) for s in record.samples]),
        Series(name="processes", points=[(s.at, s.processes) for s in record.samples]),
        Series(name="threads", points=[(s.at, s.threads) for s in record.samples]),
    ]
    faults = record.faults
    return {
        "latency": chart("Latency", "ms", latency, faults, until, powers=True),
        "throughput": chart("Throughput", "per second", throughput, faults, until),
        "memory": chart("Memory", "MiB", memory, faults, until),
        "descriptors": chart("Descriptors", "", descriptors, faults, until),
    }


def _result(check: Check, *, colour: bool = False) -> str:
    if check.violations:
        text, shade = f"{len(check.violations)} violations", "red"
    elif check.note:
        text, shade = f"not judged: {check.note}", "yellow"
    else:
        text, shade = "held", "green"
    return f"[{shade}]{text}[/{shade}]" if colour else text


def _seconds(start: float | None, end: float | None) -> str:
    return "" if start is None or end is None else f"{end - start:.1f} s"


def _inline(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")[:600]


def _machine() -> dict[str, Any]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "root": os.geteuid() == 0,
        "load_after": os.getloadavg()[0],
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
