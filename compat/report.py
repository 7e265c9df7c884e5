"""How a comparison is shown: a line as it goes, a summary, and the tables of the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from compat.accounts import Comparison

SHOWN = 30
SHORT = 8
BEGIN, END = "<!-- written by `python -m compat --docs` -->", "<!-- end -->"


def line(item: Comparison, console: Console) -> None:
    mark = "[red]![/red]" if item.unexplained else "[green]=[/green]"
    console.print(
        f"{mark} {item.suite} {item.target}: {item.same} passed on both,"
        f" {item.count('bare', 'skipped')} skipped bare, {len(item.differences)} different"
        f" [dim]({item.bare.seconds:.0f} s bare, {item.inside.seconds:.0f} s inside)[/dim]",
        highlight=False,
        soft_wrap=True,
    )
    for difference in item.unexplained[:SHOWN]:
        last = (difference.detail.strip().splitlines() or [""])[-1]
        name = difference.name.removeprefix(f"test.{item.target}.")
        console.print(
            f"    {escape(name)}: {difference.bare} bare, {difference.inside} inside:"
            f" {escape(last[:300])}",
            highlight=False,
            soft_wrap=True,
        )
    if len(item.unexplained) > SHOWN:
        console.print(f"    … and {len(item.unexplained) - SHOWN} more")


def summary(items: Sequence[Comparison], console: Console) -> None:
    same = sum(item.same for item in items)
    explained = sum(len(item.differences) - len(item.unexplained) for item in items)
    unexplained = sum(len(item.unexplained) for item in items)
    console.print(
        f"{len(items)} targets: {same} tests passed on both sides, {explained} differ for known"
        f" reasons, {unexplained} differ without one"
    )


def rewrite(page: Path, items: Sequence[Comparison]) -> None:
    """Replaces what stands between the markers."""
    text = page.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    page.write_text(f"{head}{BEGIN}\n{_tables(items)}{END}{tail}")


def _tables(items: Sequence[Comparison]) -> str:
    lines: list[str] = []
    for suite, group in groupby(items, key=lambda item: item.suite):
        members = list(group)
        same = sum(item.same for item in members)
        lines += ["", f"### {suite}: {same:,} tests pass on both sides", ""]
        lines.append("| target | pass on both | fail on both | skipped on both | differ |")
        lines.append("| --- | ---: | ---: | ---: | ---: |")
        for item in members:
            both = [item.on_both(outcome) or "" for outcome in ("passed", "failed", "skipped")]
            cells = " | ".join(map(str, [*both, len(item.differences) or ""]))
            lines.append(f"| {item.target} | {cells} |")
        lines += _differences(members)
    return "\n".join(lines) + "\n"


def _differences(members: Sequence[Comparison]) -> list[str]:
    """Reason by reason; the tests of one class that changed alike share a line."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for item in members:
        for difference in item.differences:
            why = difference.reason or "**Not explained.**"
            short = difference.name.removeprefix(f"test.{item.target}.")
            head, _, test = short.rpartition(".")
            change = f"{difference.bare} bare, {difference.inside} inside"
            place = f"{item.target}{f' `{head}`' if head else ''} ({change})"
            reasons.setdefault(why, {}).setdefault(place, []).append(test)
    lines: list[str] = []
    for why, places in reasons.items():
        lines += ["", why, ""]
        for place, tests in places.items():
            names = ", ".join(f"`{test}`" for test in tests)
            lines.append(f"- {place}: {names if len(tests) <= SHORT else f'{len(tests)} tests'}")
    return lines
