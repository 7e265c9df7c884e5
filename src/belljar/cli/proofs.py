"""The table of `belljar prove --engine all`: boundaries by engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from belljar.engines.base import Missing
    from belljar.probes import Report


def draw(reports: Mapping[str, Report], missing: Mapping[str, Missing]) -> None:
    from rich.console import Console
    from rich.markup import escape

    from belljar.cli.terminal import harmless

    console = Console(highlight=False)
    if reports:
        console.print(_table(reports))
    for name, report in reports.items():
        for item in report.broken:
            # The detail is what hostile code printed.
            detail = escape(harmless(item.detail))
            console.print(f"[bold red]✗ {name} {item.probe.id}[/] {escape(item.probe.title)}")
            console.print(f"    {detail}")
        for why, ids in report.reasons().items():
            shown = (
                f"{', '.join(ids[:6])} and {len(ids) - 6} more" if len(ids) > 7 else ", ".join(ids)
            )
            console.print(f"[yellow]~ {name}[/] {shown}: {escape(harmless(why))}")
    for name, problem in missing.items():
        hint = f" ({problem.hint})" if problem.hint else ""
        console.print(f"[yellow]✗ {name} was not proven:[/] {escape(problem.why + hint)}")


def _table(reports: Mapping[str, Report]) -> Any:
    """Held of tried; what does not apply behind a wall is counted beside."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("boundary")
    rows: dict[str, list[str]] = {}
    for name, report in reports.items():
        table.add_column(name, justify="right")
        for boundary in report.boundaries():
            colour = "[green]" if boundary.held == boundary.total else "[bold red]"
            beside = f" [yellow]~{len(boundary.inapplicable)}[/]" if boundary.inapplicable else ""
            cell = f"{colour}{boundary.held}/{boundary.total}[/]{beside}"
            rows.setdefault(boundary.name, []).append(cell)
    for boundary_name, cells in rows.items():
        table.add_row(boundary_name, *cells)
    totals = [
        f"{len(report.held)}/{len(report.held) + len(report.broken)}" for report in reports.values()
    ]
    table.add_section()
    table.add_row("all", *totals)
    table.add_row("seconds", *(f"{report.duration_s:.0f}" for report in reports.values()))
    return table
