"""`belljar prove`: the containment probes, run against the walls of this machine (I8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from belljar.cli.say import say

if TYPE_CHECKING:
    from belljar.probes import Proven, Report

EPILOG = """\
Exit status: 0 when every probe that applies here held, 1 when one is broken (or none applies),
125 when no sandbox could be started, 2 for a mistake in the arguments.

\b
Examples:
  belljar prove
  belljar prove --list
  belljar prove --only PV-17,network
  belljar prove --json > proof.json
"""
USAGE = 2


def prove(
    engine: Annotated[str, typer.Option(metavar="NAME", help="The wall: auto, jail.")] = "auto",
    only: Annotated[
        str,
        typer.Option(metavar="ID,…", help="Only these probes, by id or boundary. Default: all."),
    ] = "",
    list_: Annotated[
        bool, typer.Option("--list", help="List the probes, and run none of them.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> int:
    """Attack the wall on this machine, and print what held."""
    chosen = [name.strip() for name in only.split(",") if name.strip()]
    try:
        return _list(chosen, json=json) if list_ else _prove(chosen, engine=engine, json=json)
    except ValueError as error:
        say(str(error), hint="belljar prove --list names them all")
        return USAGE


def _list(chosen: list[str], *, json: bool) -> int:
    from belljar.probes.prove import choose

    probes = choose(chosen)
    if json:
        from json import dumps

        rows = [{"id": p.id, "boundary": p.boundary, "title": p.title} for p in probes]
        print(dumps(rows, indent=2))
    else:
        for probe in probes:
            print(f"{probe.id}  {probe.boundary:15}  {probe.title}")
    return 0


def _prove(chosen: list[str], *, engine: str, json: bool) -> int:
    from belljar import probes
    from belljar.cli.progress import Bar
    from belljar.jar import Belljar

    progress = Bar(title="proving")

    def step(item: Proven, done: int, total: int) -> None:
        progress.update(item.probe.boundary, done / total)

    try:
        with Belljar(on_progress=progress.update) as jar:
            report = probes.prove(jar, engine=engine, on_progress=step, only=chosen or None)
    finally:
        progress.close()
    if json:
        from json import dumps

        print(dumps(report.to_dict(), indent=2))
    else:
        _draw(report)
    return 0 if report.ok else 1


def _draw(report: Report) -> None:
    from rich.console import Console
    from rich.markup import escape

    from belljar.cli.terminal import harmless

    console = Console(highlight=False)
    console.print(_table(report))
    for item in report.broken:
        # The detail is what hostile code printed.
        detail = escape(harmless(item.detail))
        console.print(f"[bold red]✗ {item.probe.id}[/] {escape(item.probe.title)}\n    {detail}")
    for item in report.inapplicable:
        detail = escape(harmless(item.detail))
        console.print(f"[yellow]~ {item.probe.id}[/] not tried here: {detail}")
    held, tried = len(report.held), len(report.held) + len(report.broken)
    colour = "green" if report.ok else "bold red"
    console.print(
        f"[{colour}]{held} of {tried} held[/] behind the {report.engine} engine"
        f" in {report.duration_s:.1f} s"
    )


def _table(report: Report) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("boundary")
    table.add_column("held", justify="right")
    table.add_column("broken", overflow="fold")
    for boundary in report.boundaries():
        mark = "[green]" if boundary.held == boundary.total else "[bold red]"
        table.add_row(
            boundary.name, f"{mark}{boundary.held}/{boundary.total}[/]", ", ".join(boundary.broken)
        )
    return table
