"""`python -m tests.machines`: the matrix, or one command in one guest."""

from __future__ import annotations

import argparse
import fcntl
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from rich.console import Console
from rich.table import Table

from belljar.settings import default_home

from . import matrix, report
from .archive import Archives
from .cells import CELLS, Cell
from .errors import CannotBeHad, MachinesError, SetupFailed
from .guest import Booted
from .guests import GUESTS, Guest
from .matrix import Bench, choose
from .progress import Teller
from .report import Row
from .selections import SELECTIONS

REPOSITORY = Path(__file__).resolve().parents[2]
DAY_S = 24 * 3600.0
RED, WRONG = 1, 2


def main() -> int:
    arguments = parser().parse_args()
    console = Console(highlight=False)
    cache = private(default_home() / "machines")
    with (cache / "lock").open("w") as lock:
        # Two at once would make the same root, and each guest takes two processors.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print("test-machines: waits for another that uses these images")
            fcntl.flock(lock, fcntl.LOCK_EX)
        bench = Bench(
            cache=cache,
            checkout=arguments.checkout.resolve(),
            archives=Archives(cache),
            at_once=arguments.at_once,
        )
        try:
            if arguments.action == "try":
                return try_one(bench, arguments.guest, arguments.cell, arguments.command, console)
            return run(bench, arguments, console)
        except ValueError as error:
            console.print(f"test-machines: {error}", soft_wrap=True)
            return WRONG
        except MachinesError as error:
            console.print(f"test-machines: {told(error)}", soft_wrap=True, markup=False)
            return verdict([], [error], if_possible=arguments.if_possible)


def private(cache: Path) -> Path:
    """It holds programs that root runs, owned by the guests' user 1000: this machine's user 1000
    must not come near them."""
    cache.mkdir(parents=True, exist_ok=True)
    cache.chmod(0o700)
    return cache


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.machines", description=__doc__)
    made.add_argument("--checkout", type=Path, default=REPOSITORY, help="what to test")
    made.add_argument("--limit-s", type=float, default=DAY_S, help="for each guest, from its boot")
    made.add_argument(
        "--if-possible",
        action="store_true",
        help="succeed where QEMU, a privilege, the network or the time is missing",
    )
    made.add_argument(
        "--at-once", type=int, default=1, choices=range(1, 9), help="guests side by side"
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
    """The cells asked for; the table is written after each, so that none is lost."""
    chosen = matrix.units(choose(arguments.guests, arguments.cells), bench.at_once)
    selection = SELECTIONS[arguments.selection]
    rows: list[Row] = []
    failed: list[MachinesError] = []
    writing = Lock()

    def boot(guest: Guest, cells: list[Cell]) -> None:
        limit_s = arguments.limit_s
        try:
            for row in matrix.run(bench, guest, cells, selection, limit_s=limit_s, tell=tell):
                tell.did(f"{guest.title}, {row.cell}: {row.result}")
                with writing:
                    rows.append(row)
                    if arguments.report and selection.is_evidence:
                        report.write([row], bench.checkout / report.FILE)
        except MachinesError as error:  # the other guests may be there all the same
            failed.append(error)
        except OSError as error:  # a full disk, say
            failed.append(SetupFailed(f"{guest.title}: {error}"))

    with Teller(console) as tell:
        if bench.at_once == 1:  # without threads, an interrupt ends it at once
            for guest, cells in chosen:
                boot(guest, cells)
        else:
            with ThreadPoolExecutor(bench.at_once) as pool:
                for ended in [pool.submit(boot, guest, cells) for guest, cells in chosen]:
                    ended.result()
    if rows:
        show(rows, console)
        console.print(f"Logs: {bench.logs}", soft_wrap=True)
    for problem in failed:
        console.print(f"test-machines: {told(problem)}", soft_wrap=True, markup=False)
    return verdict(rows, failed, if_possible=arguments.if_possible)


def told(error: MachinesError) -> str:
    return f"cannot be had here: {error}" if isinstance(error, CannotBeHad) else str(error)


def verdict(rows: list[Row], failed: list[MachinesError], *, if_possible: bool) -> int:
    """A red cell is red everywhere. A machine that cannot be had, or that is too slow for its time,
    is no fault of Belljar's: whoever asks for what is possible passes it over."""
    if any(row.is_red for row in rows):
        return RED
    if any(not isinstance(error, CannotBeHad) for error in failed):
        return RED
    if if_possible:
        return 0
    if any(row.result == report.OUT_OF_TIME for row in rows):
        return RED
    return WRONG if failed else 0


def show(rows: list[Row], console: Console) -> None:
    table = Table("guest", "kernel", "Python", "session", "doctor", "probes", "tests", "result")
    for row in rows:
        colour = "red" if row.is_red else "yellow" if row.result == report.OUT_OF_TIME else "green"
        result = f"[{colour}]{row.result}[/{colour}]"
        facts = (row.guest, row.kernel, row.python, row.cell, row.doctor, row.probes, row.tests)
        table.add_row(*facts, result)
    console.print(table)
    for row in rows:
        for reason in row.reasons:
            console.print(f"{row.guest}, {row.cell}: {reason}", soft_wrap=True, markup=False)


def try_one(bench: Bench, name: str, cell: str, command: list[str], console: Console) -> int:
    """For people who look for a cause: what the commands print comes at once."""
    guest, session = GUESTS[name], CELLS[cell]

    tell = Teller(console)
    with tell:
        qemu, hardware = bench.machine(guest, tell)
    with Booted(qemu, hardware, bench.logs / f"try-{name}.console") as booted:
        tell.did(f"{booted.release}, booted in {booted.boot_s:.0f} s")
        status = 0
        if session.prepare:
            ready = booted.run(session.prepare, limit_s=DAY_S, log=sys.stdout)
            if ready.status:
                return RED
        for line in [" ".join(command)] if command else sys.stdin:
            if line.strip():
                answer = booted.run(session.wrap(line.strip()), limit_s=DAY_S, log=sys.stdout)
                tell.did(f"status {answer.status} after {answer.seconds:.1f} s")
                status = answer.status
    return min(abs(status), 125)


if __name__ == "__main__":
    sys.exit(main())
