"""`python -m tests.machines`: the matrix, or one command in one guest."""

from __future__ import annotations

import argparse
import fcntl
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from belljar.settings import default_home

from . import matrix, report
from .archive import Archives
from .cells import CELLS
from .errors import CannotBeHad, MachinesError
from .guest import Booted
from .guests import GUESTS
from .matrix import Bench, choose
from .report import Row
from .selections import SELECTIONS

REPOSITORY = Path(__file__).resolve().parents[2]
DAY_S = 24 * 3600.0
RED, WRONG = 1, 2


def main() -> int:
    arguments = parser().parse_args()
    console = Console(highlight=False)
    cache = default_home() / "machines"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        # Two at once would make the same root, and each guest takes two processors.
        fcntl.flock(lock, fcntl.LOCK_EX)
        bench = Bench(
            cache=cache,
            checkout=arguments.checkout.resolve(),
            archives=Archives(cache),
        )
        try:
            if arguments.action == "try":
                return try_one(bench, arguments.guest, arguments.cell, arguments.command, console)
            return run(bench, arguments, console)
        except ValueError as error:
            console.print(f"test-machines: {error}", soft_wrap=True)
            return WRONG
        except CannotBeHad as error:
            console.print(f"test-machines: cannot be had here: {error}", soft_wrap=True)
            return 0 if arguments.if_possible else WRONG
        except MachinesError as error:
            console.print(f"test-machines: {error}", soft_wrap=True)
            return RED


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.machines", description=__doc__)
    made.add_argument("--checkout", type=Path, default=REPOSITORY, help="what to test")
    made.add_argument("--limit-s", type=float, default=DAY_S, help="for each guest, from its boot")
    made.add_argument(
        "--if-possible", action="store_true", help="succeed where QEMU or an archive is missing"
    )
    made.set_defaults(action="run", guests="", cells="", selection="full", report=True)
    actions = made.add_subparsers()
    ran = actions.add_parser("run", help="the matrix (default)")
    ran.set_defaults(action="run")
    ran.add_argument("--guests", default="", help=f"of {','.join(GUESTS)}")
    ran.add_argument("--cells", default="", help=f"of {','.join(CELLS)}")
    ran.add_argument("--selection", choices=sorted(SELECTIONS), default="full")
    ran.add_argument("--no-report", dest="report", action="store_false")
    tried = actions.add_parser("try", help="commands in one guest; without any, standard input's")
    tried.set_defaults(action="try")
    tried.add_argument("guest", choices=sorted(GUESTS))
    tried.add_argument("cell", choices=sorted(CELLS))
    tried.add_argument("command", nargs="*")
    return made


def run(bench: Bench, arguments: argparse.Namespace, console: Console) -> int:
    """The cells asked for; the table is written after each guest, so that none is lost."""
    chosen = choose(arguments.guests, arguments.cells)
    selection = SELECTIONS[arguments.selection]
    rows: list[Row] = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        started = time.monotonic()

        def say(what: str) -> None:
            progress.update(task, description=what)
            passed = time.monotonic() - started
            progress.console.print(f"[dim]{passed:6.0f} s[/dim]  {what}", soft_wrap=True)

        for guest, cells in chosen:
            limit_s = arguments.limit_s
            for row in matrix.run(bench, guest, cells, selection, limit_s=limit_s, say=say):
                say(f"{guest.title}, {row.cell}: {'green' if row.ok else 'red'}")
                rows.append(row)
                if arguments.report:
                    report.write([row], bench.checkout / report.FILE)
    show(rows, console)
    console.print(f"Logs: {bench.logs}", soft_wrap=True)
    return 0 if all(row.ok for row in rows) else RED


def show(rows: list[Row], console: Console) -> None:
    table = Table("guest", "kernel", "Python", "session", "doctor", "probes", "tests", "result")
    for row in rows:
        result = "[green]green[/green]" if row.ok else "[red]red[/red]"
        facts = (row.guest, row.kernel, row.python, row.cell, row.doctor, row.probes, row.tests)
        table.add_row(*facts, result)
    console.print(table)
    for row in rows:
        for reason in row.reasons:
            console.print(f"{row.guest}, {row.cell}: {reason}", soft_wrap=True, markup=False)


def try_one(bench: Bench, name: str, cell: str, command: list[str], console: Console) -> int:
    """For people who look for a cause: what the commands print comes at once."""
    guest, session = GUESTS[name], CELLS[cell]

    def say(what: str) -> None:
        console.print(what, style="dim")

    hardware = bench.hardware(guest, say)
    qemu = bench.qemu(hardware, say)
    with Booted(qemu, hardware, bench.logs / f"try-{name}.console") as booted:
        say(f"{booted.release}, booted in {booted.boot_s:.0f} s")
        status = 0
        if session.prepare:
            ready = booted.run(session.prepare, limit_s=DAY_S, log=sys.stdout)
            if ready.status:
                return RED
        for line in [" ".join(command)] if command else sys.stdin:
            if line.strip():
                answer = booted.run(session.wrap(line.strip()), limit_s=DAY_S, log=sys.stdout)
                say(f"status {answer.status} after {answer.seconds:.1f} s")
                status = answer.status
    return min(abs(status), 125)


if __name__ == "__main__":
    sys.exit(main())
