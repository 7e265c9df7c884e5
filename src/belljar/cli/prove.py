"""`belljar prove`: the containment probes, run against the walls of this machine (I8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from belljar.cli.say import say

if TYPE_CHECKING:
    from belljar.engines.base import Missing
    from belljar.probes import Proven, Report
    from belljar.settings import Settings

EPILOG = """\
Exit status: 0 when every probe that applies held, 1 when one is broken (or none applies),
125 when no sandbox could be started, 2 for a mistake in the arguments.

\b
Examples:
  belljar prove
  belljar prove --engine all
  belljar prove --kept
  belljar prove --list
  belljar prove --only PV-17,network
  belljar prove --json > proof.json
"""
USAGE = 2


def prove(
    engine: Annotated[
        str,
        typer.Option(metavar="NAME,…", help="The walls: auto, names (docker+runsc, too), or all."),
    ] = "auto",
    only: Annotated[
        str,
        typer.Option(metavar="ID,…", help="Only these probes, by id or boundary. Default: all."),
    ] = "",
    kept: Annotated[
        bool, typer.Option("--kept", help="From inside sandboxes that live from run to run.")
    ] = False,
    list_: Annotated[
        bool, typer.Option("--list", help="List the probes, and run none of them.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> int:
    """Attack the walls on this machine, and print what held."""
    chosen = [name.strip() for name in only.split(",") if name.strip()]
    engines = [name.strip() for name in engine.split(",") if name.strip()] or ["auto"]
    try:
        if list_:
            return _list(chosen, json=json)
        if engines == ["all"] or len(engines) > 1:
            return _prove_several(chosen, engines, json=json, kept=kept)
        return _prove_one(chosen, engines[0], json=json, kept=kept)
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


def _prove_one(chosen: list[str], engine: str, *, json: bool, kept: bool) -> int:
    report = _prove(chosen, engine, kept=kept)
    if json:
        from json import dumps

        print(dumps(report.to_dict(), indent=2))
    else:
        _draw(report)
    return 0 if report.ok else 1


def _prove_several(chosen: list[str], engines: list[str], *, json: bool, kept: bool) -> int:
    """All there are, or those named: one that does not work here is told, not left out."""
    from belljar.engines import registry

    reports: dict[str, Report] = {}
    missing: dict[str, Missing] = {}
    for name in _all() if engines == ["all"] else engines:
        if problem := registry.why_not(*_wall(name)):
            missing[name] = problem
        else:
            reports[name] = _prove(chosen, name, kept=kept)
    ok = bool(reports) and all(report.ok for report in reports.values())
    if engines != ["all"]:
        ok = ok and not missing
    if json:
        from json import dumps

        found = {
            "ok": ok,
            "reports": {name: report.to_dict() for name, report in reports.items()},
            "unavailable": {name: vars(problem) for name, problem in missing.items()},
        }
        print(dumps(found, indent=2))
    else:
        from belljar.cli.proofs import draw

        draw(reports, missing)
    return 0 if ok else 1


def _all() -> list[str]:
    """Docker twice: with gVisor as its runtime it is another wall."""
    from belljar.engines import registry

    found = list(registry.names())
    if "docker" in found:
        found.insert(found.index("docker") + 1, "docker+runsc")
    return found


def _wall(name: str) -> tuple[str, Settings]:
    """`docker+runsc`: Docker with that runtime."""
    from belljar.settings import Settings

    engine, _, runtime = name.partition("+")
    return engine, Settings(docker_runtime=runtime) if runtime else Settings()


def _prove(chosen: list[str], engine: str, *, kept: bool) -> Report:
    from belljar import probes
    from belljar.cli.progress import Bar
    from belljar.jar import Belljar

    progress = Bar(title="proving" if engine == "auto" else f"proving {engine}")

    def step(item: Proven, done: int, total: int) -> None:
        progress.update(item.probe.boundary, done / total)

    name, settings = _wall(engine)
    try:
        with Belljar(settings, on_progress=progress.update) as jar:
            return probes.prove(jar, engine=name, on_progress=step, only=chosen or None, kept=kept)
    finally:
        progress.close()


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
    for why, ids in report.reasons().items():
        console.print(f"[yellow]~ {', '.join(ids)}[/] not tried here: {escape(harmless(why))}")
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
