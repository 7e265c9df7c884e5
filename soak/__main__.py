"""`python -m soak`: a server under mixed load and faults; what held, in a report.

Exit status: 0 when everything held, 1 when something did not, 2 when the server was never ready.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from . import checks, harm, report
from .record import Record
from .soaking import NotReady, Options, soak

RESULTS = Path(__file__).parent / "results"
HELD, VIOLATED, NOTHING = 0, 1, 2


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=0.1, help="fractions allowed (0.1)")
    parser.add_argument("--seed", type=int, default=0, help="decides jobs and faults (the time)")
    parser.add_argument("--workers", type=int, default=6, help="jobs at once (6)")
    parser.add_argument("--rate", type=float, default=15.0, help="jobs a second at most (15)")
    faults = ",".join(harm.FAULTS)
    parser.add_argument("--faults", default="all", help=f"all, none, or some of {faults}")
    parser.add_argument(
        "--docker",
        action="store_true",
        help="also with Docker, by a daemon of its own that is killed now and then",
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="the report's folder")
    chosen = parser.parse_args()
    if chosen.hours <= 0 or chosen.workers < 1 or chosen.rate <= 0:
        parser.error("hours, workers and rate must be positive")
    chosen.seed = chosen.seed or int(time.time())
    usual = {"all": harm.usual(chosen.hours * 3600), "none": ()}
    kinds = usual.get(chosen.faults, tuple(chosen.faults.split(",")))
    if unknown := set(kinds) - set(harm.FAULTS):
        parser.error(f"unknown faults: {', '.join(sorted(unknown))}")
    chosen.kinds = kinds
    return chosen


def main() -> int:
    chosen = arguments()
    console = Console(highlight=False)
    options = Options(
        seconds=chosen.hours * 3600,
        seed=chosen.seed,
        workers=chosen.workers,
        rate=chosen.rate,
        faults=chosen.kinds,
        docker=chosen.docker,
    )
    length = f"{options.seconds:.0f} s, SEED={options.seed}"
    console.print(f"soak: {length}; Ctrl-C ends it with a report")
    try:
        found = asyncio.run(_run(options, console))
    except NotReady as error:
        console.print(f"soak: the server did not become ready: {error}", markup=False)
        return NOTHING
    judged = checks.judge(found)
    words = {name: getattr(chosen, name) for name in ("hours", "seed", "workers", "rate", "faults")}
    words["docker"] = "1" if chosen.docker else ""
    written = report.write(found.record, judged, chosen.output, words)
    report.show(judged, console)
    console.print(f"Report: {written}", soft_wrap=True)
    return HELD if all(check.held for check in judged) else VIOLATED


async def _run(options: Options, console: Console) -> checks.Evidence:
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted.set)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    began = time.monotonic()

    def tell(what: str) -> None:
        console.print(f"{time.monotonic() - began:6.0f} s  {what}", soft_wrap=True, markup=False)

    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=options.seconds)

        def progress(record: Record, at: float) -> None:
            count = Counter(op.outcome for op in record.ops)
            lasting = [one.kind for one in record.faults[-1:] if one.recovered is None]
            shown = ", ".join(f"{number} {name}" for name, number in count.most_common())
            bar.update(task, completed=at, description=f"{shown}  [red]{''.join(lasting)}[/red]")

        return await soak(options, interrupted, tell, progress)


if __name__ == "__main__":
    sys.exit(main())
