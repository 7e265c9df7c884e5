"""Guests times cells: what was asked for, and running it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from . import layers, outcomes, qemu, roots
from .archive import Archives
from .cells import BIN, CELLS, Cell
from .errors import GuestLost
from .guest import Booted, Hardware
from .guests import GUESTS, Guest
from .outcomes import Outcome
from .report import Row
from .selections import Selection, pytest_command

Say = Callable[[str], None]
DOCTOR_S = 600.0
PREPARE_S = 900.0
_PYTHON = f"{BIN}/python -c 'import platform; print(platform.python_version())'"


def choose(guests: str, cells: str) -> list[tuple[Guest, list[Cell]]]:
    """From two lists with commas; an empty one means all. A guest gets the cells it has."""
    wanted_guests = _names(guests, GUESTS)
    wanted_cells = _names(cells, CELLS)
    chosen = []
    for name in wanted_guests:
        has = [CELLS[cell] for cell in wanted_cells if cell in GUESTS[name].cells]
        if has:
            chosen.append((GUESTS[name], has))
    if not chosen:
        raise ValueError(f"none of {', '.join(wanted_guests)} has {', '.join(wanted_cells)}")
    return chosen


def _names(written: str, known: Iterable[str]) -> list[str]:
    known = list(known)
    wanted = [name.strip() for name in written.split(",") if name.strip()] or known
    for name in wanted:
        if name not in known:
            raise ValueError(f"there is no {name}; there are {', '.join(known)}")
    return [name for name in known if name in wanted]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where guests are made and booted."""

    cache: Path
    checkout: Path
    archives: Archives
    logs: Path
    deadline: float
    """By time.monotonic(): no cell runs longer."""

    def hardware(self, guest: Guest, say: Say) -> Hardware:
        root = roots.ensure(guest, self.cache, self.archives, say)
        kernel, initrd = roots.kernel(root)
        return Hardware(
            kernel=kernel,
            initrd=initrd,
            root=roots.image(guest, self.cache),
            layer=layers.ensure(guest, self.checkout, self.cache, say),
            cpus=min(2, os.cpu_count() or 1),
        )

    def qemu(self, hardware: Hardware, say: Say) -> qemu.Qemu:
        return qemu.ensure(self.cache, self.archives, hardware.kernel, say)

    def left_s(self, limit_s: float) -> float:
        return max(1.0, min(limit_s, self.deadline - time.monotonic()))


def run(
    bench: Bench, guest: Guest, cells: list[Cell], selection: Selection, say: Say
) -> Iterator[Row]:
    """A row for each cell. A guest that was lost is booted anew for the next one."""
    hardware = bench.hardware(guest, say)
    program = bench.qemu(hardware, say)
    with ExitStack() as life:
        booted: Booted | None = None
        for number, cell in enumerate(cells):
            log = bench.logs / f"{guest.name}-{cell.name}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            try:
                if booted is None:
                    say(f"{guest.title}: boots ({program.accelerator})")
                    console = bench.logs / f"{guest.name}-{number}.console"
                    booted = life.enter_context(Booted(program, hardware, console))
                    say(f"{guest.title}: {booted.release} booted in {booted.boot_s:.0f} s")
                with log.open("w") as written:
                    yield examine(bench, booted, guest, cell, selection, written, say)
            except GuestLost as lost:
                with log.open("a") as written:
                    written.write(f"\n{lost}\n{lost.tail}\n")
                release = booted.release if booted is not None else "did not boot"
                yield lost_row(guest, cell, selection, release, lost)
                booted = None


def examine(
    bench: Bench,
    booted: Booted,
    guest: Guest,
    cell: Cell,
    selection: Selection,
    log: IO[str],
    say: Say,
) -> Row:
    """Doctor, the probes, the tests: each runs even if the one before it failed."""

    def step(title: str, command: str, limit_s: float) -> tuple[int, str]:
        say(f"{guest.title}, {cell.title}: {title}")
        log.write(f"\n$ {command}\n")
        answer = booted.run(cell.wrap(command), limit_s=bench.left_s(limit_s), log=log)
        log.write(f"\n[{title}: status {answer.status} after {answer.seconds:.0f} s]\n")
        return answer.status, answer.printed

    if cell.prepare:
        say(f"{guest.title}, {cell.title}: is prepared")
        ready = booted.run(cell.prepare, limit_s=bench.left_s(PREPARE_S), log=log)
        if ready.status:
            raise GuestLost(f"the session could not be made (status {ready.status})")
    _, session = step("session", f"{_PYTHON}; id; cat /proc/self/cgroup", DOCTOR_S)
    _, printed = step("doctor", f"{BIN}/belljar doctor --json", DOCTOR_S)
    doctor = outcomes.doctor(printed)
    _, printed = step("probes", f"{BIN}/belljar prove --json", selection.prove_s)
    probes = outcomes.probes(printed)
    status, printed = step("tests", pytest_command(selection, f"{BIN}/python"), selection.tests_s)
    tests = outcomes.pytest(printed, status)
    return row(guest, cell, selection, booted.release, session, (doctor, probes, tests))


def row(
    guest: Guest,
    cell: Cell,
    selection: Selection,
    release: str,
    session: str,
    found: tuple[Outcome, Outcome, Outcome],
) -> Row:
    doctor, probes, tests = found
    return Row(
        guest=guest.name,
        kernel=release,
        python=session.strip().partition("\n")[0],
        cell=cell.name,
        selection=selection.name,
        doctor=doctor.said,
        probes=probes.said,
        tests=tests.said,
        ok=doctor.ok and probes.ok and tests.ok,
        when=today(),
        reasons=(*doctor.reasons, *probes.reasons, *tests.reasons),
    )


def lost_row(guest: Guest, cell: Cell, selection: Selection, release: str, lost: GuestLost) -> Row:
    last = lost.tail.splitlines()[-1] if lost.tail else ""
    return Row(
        guest=guest.name,
        kernel=release,
        python="",
        cell=cell.name,
        selection=selection.name,
        doctor="",
        probes="",
        tests="",
        ok=False,
        when=today(),
        reasons=(str(lost), f"console: {last[:200]}") if last else (str(lost),),
    )


def today() -> str:
    return datetime.now(UTC).date().isoformat()
