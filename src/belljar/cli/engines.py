"""`belljar engines`: the walls there are, what each is for, and how fast it is here."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from belljar.cli.progress import Bar
    from belljar.jar import Belljar
    from belljar.model import Result
    from belljar.settings import Settings

EPILOG = """\
\b
Examples:
  belljar engines
  belljar engines --no-measure --json
  belljar run -c "print(6 * 7)" --engine docker
  belljar run -c "print(6 * 7)" --need strongest
"""
POOLED_RUNS = 3


def engines(
    measure: Annotated[
        bool,
        typer.Option("--measure/--no-measure", help="Start sandboxes to see how long it takes."),
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> int:
    """Show every wall: what it is for, whether it works here, what it can do."""
    from belljar.cli.progress import Bar
    from belljar.settings import Settings

    progress = Bar(title="measuring")
    try:
        found = survey(Settings(), progress=progress if measure else None)
    finally:
        progress.close()
    if json:
        from json import dumps

        print(dumps(found, indent=2))
    else:
        _draw(found)
    return 0


def survey(settings: Settings, *, progress: Bar | None = None) -> list[dict[str, Any]]:
    """A row for each engine. With `progress`, those that work are also measured."""
    from belljar.engines import choice, registry
    from belljar.errors import Unavailable

    rows: list[dict[str, Any]] = []
    names = registry.names()
    for index, name in enumerate(names):
        missing = registry.why_not(name, settings)
        try:
            capabilities = _plain(registry.capabilities(name))
        except Unavailable:  # another package's, which cannot be loaded
            capabilities = {}
        row: dict[str, Any] = {
            "name": name,
            "purpose": choice.PURPOSES.get(name, "an engine of another package"),
            "available": missing is None,
            "why_not": missing.why if missing else "",
            "hint": missing.hint if missing else "",
            "capabilities": capabilities,
            "start_ms": None,
        }
        if progress and missing is None:
            progress.update(name, index / len(names))
            row |= _measure(name, settings)
        rows.append(row)
    return rows


def _measure(name: str, settings: Settings) -> dict[str, Any]:
    """What `print(1)` takes: the first time, from nothing, and from a pool."""
    from belljar.errors import BelljarError
    from belljar.jar import Belljar

    try:
        with Belljar(dataclasses.replace(settings, pool_size=0)) as jar:
            first, fresh = (_run_ms(jar, name) for _ in range(2))
        with Belljar(dataclasses.replace(settings, pool_size=POOLED_RUNS)) as jar:
            jar.warm("base", POOLED_RUNS, engine=name)
            pooled = sorted(_run_ms(jar, name) for _ in range(POOLED_RUNS))[POOLED_RUNS // 2]
    except BelljarError as error:
        return {"available": False, "why_not": error.full_message, "hint": error.hint}
    return {"start_ms": {"first": first, "fresh": fresh, "pooled": pooled}}


def _run_ms(jar: Belljar, name: str) -> float:
    from belljar.errors import EngineError

    result: Result = jar.run("print(1)", engine=name, timeout_s=jar.settings.maxima.timeout_s)
    if result.stdout != "1\n":
        said = "; ".join(result.warnings) or result.stderr[-200:]
        raise EngineError(f"print(1) ended in {result.status}: {said}")
    return round(result.duration_ms, 1)


def _plain(capabilities: Any) -> dict[str, Any]:
    return {
        field.name: sorted(value) if isinstance(value, frozenset) else value
        for field in dataclasses.fields(capabilities)
        for value in [getattr(capabilities, field.name)]
    }


# -- drawing ---------------------------------------------------------------------------------------


def _draw(found: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("engine", no_wrap=True)
    table.add_column("here", no_wrap=True)
    for name in ("first", "fresh", "pooled"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("for", overflow="fold")
    table.add_column("cannot", overflow="fold")
    for row in found:
        times = row["start_ms"] or {}
        shown = [_duration(times.get(name)) for name in ("first", "fresh", "pooled")]
        mark = "[green]✓[/]" if row["available"] else "[yellow]✗[/]"
        limits = ", ".join(limits_of(row["capabilities"]))
        table.add_row(escape(row["name"]), mark, *shown, escape(row["purpose"]), escape(limits))
    console.print(table)
    for row in found:
        if not row["available"]:
            print_missing(console, row)


def print_missing(console: Any, row: dict[str, Any]) -> None:
    from rich.markup import escape

    console.print(f"[yellow]✗ {escape(row['name'])}[/]: {escape(row['why_not'])}", soft_wrap=True)
    if row["hint"]:
        console.print(f"    {escape(row['hint'])}", soft_wrap=True)


def limits_of(capabilities: dict[str, Any]) -> list[str]:
    """What an engine cannot do, in the words of the options it would be asked with."""
    found = []
    for name, words in {"languages": "languages but", "environments": "environments but"}.items():
        if (allowed := capabilities.get(name)) is not None:
            found.append(f"{words} {', '.join(allowed)}")
    found += [
        name.replace("_", " ")
        for name in ("processes", "fresh_exec", "live_stdin", "files", "disk_files")
        if capabilities.get(name) is False
    ]
    if capabilities.get("kept") is False:
        found.append("kept sandboxes")
    else:
        of_kept = ("branches", "mounts", "terminals")
        found += [f"{name} of kept sandboxes" for name in of_kept if not capabilities.get(name)]
    return found


def _duration(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms"
