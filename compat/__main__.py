"""`python -m compat`: runs public suites on both sides and says where they differ."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from rich.console import Console

from belljar import Belljar
from compat import report, sides, suites
from compat.accounts import Comparison, restore
from compat.compare import compare
from compat.reasons import explain

RESULTS = Path(__file__).parent.parent / "build" / "compat.json"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m compat", description=__doc__)
    parser.add_argument("suite", nargs="*", help=f"which of: {', '.join(suites.SUITES)} (all)")
    parser.add_argument("--target", action="append", help="only targets that fit this pattern")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the outcomes go")
    parser.add_argument("--docs", type=Path, help="the page whose tables are to be rewritten")
    parser.add_argument(
        "--earlier", type=Path, action="append", help="take outcomes from this file, run nothing"
    )
    return parser.parse_args()


def jobs(chosen: argparse.Namespace) -> Iterator[sides.Job]:
    for name in chosen.suite or suites.SUITES:
        for job in suites.SUITES[name]():
            if not chosen.target or any(fnmatch(job.target, item) for item in chosen.target):
                yield job


def main() -> None:
    chosen = arguments()
    console = Console()
    done = earlier(chosen.earlier) if chosen.earlier else run(chosen, console)
    report.summary(done, console)
    if chosen.docs:
        report.rewrite(chosen.docs, done)
    sys.exit(any(item.unexplained for item in done))


def run(chosen: argparse.Namespace, console: Console) -> list[Comparison]:
    done: list[Comparison] = []
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    with Belljar(sides.settings()) as jar:
        for job in jobs(chosen):
            done.append(compare(jar, job))
            report.line(done[-1], console)
            chosen.json.write_text(json.dumps([dataclasses.asdict(item) for item in done]))
    return done


def earlier(paths: Sequence[Path]) -> list[Comparison]:
    """What earlier runs found, with the reasons known today; a later file replaces targets."""
    found: dict[tuple[str, str], Comparison] = {}
    for path in paths:
        for saved in json.loads(path.read_text()):
            item = restore(saved)
            item.differences = explain(item.suite, item.differences)
            found[item.suite, item.target] = item
    order = list(suites.SUITES)
    return sorted(found.values(), key=lambda item: order.index(item.suite))


if __name__ == "__main__":
    main()
