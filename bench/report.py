"""The tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.targets import BARE, MIB, TARGETS


def show(numbers: Mapping[str, Any], console: Console) -> None:
    _latency(numbers, console)
    if numbers["load"]:
        _load(numbers, console)
    if numbers["footprint"]:
        _footprint(numbers, console)
    for engine, wall in numbers["walls"].items():
        _wall(engine, wall, console)
    for part, title in (
        ("kept", "kept sandboxes"),
        ("server", "over HTTP: print(1)"),
        ("gateway", "through the gateway: GET of 6 bytes on loopback"),
    ):
        if numbers[part]:
            _parts(numbers[part], title, console)
    _targets(numbers, console)


def _parts(parts: Mapping[str, Any], title: str, console: Console) -> None:
    table = Table(title=title, title_justify="left", show_header=False)
    for part, fields in parts.items():
        for name, value in fields.items():
            shown = f"{value / MIB:.1f} MiB" if "bytes" in name else f"{value:.2f}"
            table.add_row(part, name, shown)
    console.print(table)


def _wall(engine: str, wall: Mapping[str, Any], console: Console) -> None:
    table = Table(title=f"{engine}: print(1)", title_justify="left")
    table.add_column("a fresh sandbox per run")
    for column in ("n", "p50 ms", "p99 ms", f"p50 / {wall['baseline']}", "failed"):
        table.add_column(column, justify="right")
    beside = wall["rows"].get(wall["baseline"], {}).get("p50_ms")
    for name, row in wall["rows"].items():
        if "absent" in row:
            table.add_row(name, "", "", "", f"[dim]absent: {row['absent']}[/dim]", "")
            continue
        ratio = f"{row['p50_ms'] / beside:.3f}" if beside and row["samples"] else ""
        both = _ms(row, digits=2).split(" / ")
        table.add_row(name, str(row["samples"]), *both, ratio, str(row["failures"]))
    console.print(table)


def _latency(numbers: Mapping[str, Any], console: Console) -> None:
    for group, rows in numbers["latency"].items():
        table = Table(title=f"{group}: {numbers['code'][group]}", title_justify="left")
        table.add_column("a fresh sandbox per run")
        for column in ("n", "p50 ms", "p99 ms", "p50 / bare", "failed"):
            table.add_column(column, justify="right")
        bare = rows.get(BARE, {}).get("p50_ms")
        for name, row in rows.items():
            if "absent" in row:
                table.add_row(name, "", "", "", f"[dim]absent: {row['absent']}[/dim]", "")
                continue
            ratio = f"{row['p50_ms'] / bare:.3f}" if bare and row["samples"] else ""
            table.add_row(
                name,
                str(row["samples"]),
                *_ms(row, digits=2).split(" / "),
                ratio,
                str(row["failures"]),
            )
        console.print(table)


def _load(numbers: Mapping[str, Any], console: Console) -> None:
    table = Table(title="sustained load, fresh sandboxes", title_justify="left")
    for column in ("code", "callers", "runs/s", "p50 ms", "p99 ms", "failed"):
        table.add_column(column, justify="left" if column == "code" else "right")
    for row in numbers["load"]:
        table.add_row(
            row["group"],
            str(row["callers"]),
            f"{row['per_second']:.0f}",
            *_ms(row).split(" / "),
            str(row["failures"]) + (f" ({row['first_failure']})" if row["failures"] else ""),
        )
    console.print(table)


def _footprint(numbers: Mapping[str, Any], console: Console) -> None:
    table = Table(title="idle sandboxes, per sandbox", title_justify="left")
    table.add_column("")
    environments = numbers["footprint"]
    for name, report in environments.items():
        table.add_column(f"{name} × {report['idle']['sandboxes']}", justify="right")

    def row(label: str, cell: Any) -> None:
        table.add_row(label, *(cell(report) for report in environments.values()))

    def mib(amount: int | None, report: Mapping[str, Any]) -> str:
        return "–" if amount is None else f"{amount / report['idle']['sandboxes'] / MIB:.2f} MiB"

    def inside(report: Mapping[str, Any], field: str) -> str:
        part = report["idle"]["inside"]
        return mib(None if part["unreadable"] else part[field], report)

    row("proportional size (PSS)", lambda r: inside(r, "pss_bytes"))
    row("page tables", lambda r: inside(r, "page_table_bytes"))
    row("charged to its cgroup", lambda r: mib(r["idle"]["cgroup_bytes"], r))
    row("machine's available memory", lambda r: mib(r["idle"]["machine_bytes"], r))
    row("processes", lambda r: f"{r['idle']['inside']['processes'] / r['idle']['sandboxes']:.1f}")
    for label, key in (("making it", "making"), ("ending it", "ending")):
        row(f"{label}: wall / CPU of the machine", lambda r, key=key: _cost(r["idle"][key]))
    row("answer until gone: p50 / p99", lambda r: f"{_ms(r['gone'])} ms")
    console.print(table)


def _ms(row: Mapping[str, Any], *, digits: int = 1) -> str:
    """p50 / p99, or dashes where nothing succeeded."""
    both = (row["p50_ms"], row["p99_ms"])
    return " / ".join("–" if value is None else f"{value:.{digits}f}" for value in both)


def _cost(cost: Mapping[str, float]) -> str:
    return f"{cost['wall_ms']:.1f} / {cost['cpu_ms']:.1f} ms"


def _targets(numbers: Mapping[str, Any], console: Console) -> None:
    table = Table(title="what is promised", title_justify="left")
    for column in ("", "promised", "measured", ""):
        table.add_column(column, justify="right" if column else "left")
    for target in TARGETS:
        promised = f"≤ {target.most:g}" if target.most is not None else f"≥ {target.least:g}"
        judged = target.judge(numbers)
        if judged is None:
            table.add_row(target.text, promised, "", "[dim]not measured[/dim]")
            continue
        value, met = judged
        verdict = "[green]met[/green]" if met else "[red]missed[/red]"
        table.add_row(target.text, promised, f"{value:.3g}", verdict)
    console.print(table)
