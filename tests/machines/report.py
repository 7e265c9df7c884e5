"""docs/machines-tested.md: one row for each cell, kept until that cell runs again."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .cells import CELLS
from .guests import GUESTS

FILE = Path("docs/machines-tested.md")
GREEN, REFUSED, OUT_OF_TIME, RED = "green", "refused", "out of time", "red"
_HEAD = """\
# Machines Belljar was tested on

Written by `make test-machines`; see [CONTRIBUTING.md](../CONTRIBUTING.md#machines). Each row is
one session in a QEMU guest made from the distribution's own archive. A row is replaced when that
session runs again, so rows may be of different days. *Probes* are those that held of those that
apply, and how many do not apply; *tests* are passed / failed / skipped / left out. A commit with a
plus had changes beside it. The results:

- **green**: doctor found all that this machine can give, every probe that applies held, and no test
  failed;
- **refused**: the machine keeps ordinary users from sandboxes until somebody allows them, Belljar
  refused to run anything, and doctor said what to type;
- **out of time**: nothing had failed when the time was up, and not everything was reached;
- **red**: anything else.

"""
_COLUMNS = (
    "guest", "kernel", "Python", "session", "selection", "doctor", "probes", "tests", "result",
    "commit", "when", "why",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    guest: str
    kernel: str
    python: str
    cell: str
    selection: str
    doctor: str
    probes: str
    tests: str
    result: str
    commit: str
    when: str
    reasons: tuple[str, ...] = ()

    @property
    def is_red(self) -> bool:
        """Whatever else a table may say by hand, too."""
        return self.result not in (GREEN, REFUSED, OUT_OF_TIME)


def write(rows: Iterable[Row], file: Path = FILE) -> None:
    """Replaces the rows of the cells that ran, and keeps the others."""
    old = read(file.read_text()) if file.is_file() else []
    file.write_text(render(merge(old, rows)))


def merge(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    by_cell = {(row.guest, row.cell): row for row in (*old, *new)}
    guests, cells = list(GUESTS), list(CELLS)

    def place(row: Row) -> tuple[int, str, int, str]:
        guest = guests.index(row.guest) if row.guest in guests else len(guests)
        cell = cells.index(row.cell) if row.cell in cells else len(cells)
        return guest, row.guest, cell, row.cell

    return sorted(by_cell.values(), key=place)


def render(rows: Iterable[Row]) -> str:
    lines = [_line(_COLUMNS), _line(["---"] * len(_COLUMNS))]
    for row in rows:
        values = [row.guest, row.kernel, row.python, row.cell, row.selection, row.doctor]
        result = f"**{row.result}**" if row.is_red else row.result
        values += [row.probes, row.tests, result, row.commit, row.when]
        lines.append(
            _line([*map(_cell, values), "<br>".join(filter(None, map(_cell, row.reasons)))])
        )
    return _HEAD + "\n".join(lines) + "\n"


def read(text: str) -> list[Row]:
    """Rows of an earlier run; a table with other columns holds none."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    if not lines or _split(lines[0]) != list(_COLUMNS):
        return []
    found = []
    for line in lines[2:]:
        values = _split(line)
        if len(values) != len(_COLUMNS):
            continue
        guest, kernel, python, cell, selection, doctor, probes, tests, *rest = values
        result, commit, when, why = rest
        found.append(
            Row(
                guest=guest,
                kernel=kernel,
                python=python,
                cell=cell,
                selection=selection,
                doctor=doctor,
                probes=probes,
                tests=tests,
                result=result.strip("*"),
                commit=commit,
                when=when,
                reasons=tuple(part for part in why.split("<br>") if part),
            )
        )
    return found


def _line(values: Iterable[str]) -> str:
    return "| " + " | ".join(values) + " |"


def _split(line: str) -> list[str]:
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [part.strip().replace("\\|", "|") for part in re.split(r"(?<!\\)\|", inner)]


def _cell(text: str) -> str:
    """What a guest printed becomes no markup of the page."""
    plain = " ".join(text.split())
    return plain.replace("<", "‹").replace(">", "›").replace("|", "\\|")
