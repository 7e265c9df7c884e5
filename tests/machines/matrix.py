"""Guests times cells: what was asked for, and running it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from . import layers, outcomes, qemu, roots
from .archive import Archives
from .cells import BIN, CELLS, Cell
from .errors import GuestLost
from .guest import Answer, Booted, Hardware
from .guests import GUESTS, Guest
from .outcomes import Outcome
from .progress import Teller
from .report import Row
from .selections import Selection, prove_command, pytest_command

DOCTOR_S = 600.0
PREPARE_S = 900.0
NOT_ASKED = Outcome("", True)
_SESSION = (
    f"{BIN}/python -c 'import platform; print(platform.python_version())';"
    " id; cat /proc/self/cgroup"
)


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

    @property
    def logs(self) -> Path:
        return self.cache / "logs"

    def hardware(self, guest: Guest, tell: Teller) -> Hardware:
        root = roots.ensure(guest, self.cache, self.archives, tell.doing)
        kernel, initrd = roots.kernel(root)
        return Hardware(
            kernel=kernel,
            initrd=initrd,
            root=roots.image(guest, self.cache),
            layer=layers.ensure(guest, self.checkout, self.cache, tell.doing),
            cpus=min(2, os.cpu_count() or 1),
        )

    def qemu(self, hardware: Hardware, tell: Teller) -> qemu.Qemu:
        return qemu.ensure(self.cache, self.archives, hardware.kernel, tell.doing)


def run(
    bench: Bench,
    guest: Guest,
    cells: list[Cell],
    selection: Selection,
    *,
    limit_s: float,
    tell: Teller,
) -> Iterator[Row]:
    """A row for each cell. A guest that was lost is booted anew for the next one.

    The limit is for all cells together, from the first boot: making images is not counted.
    """
    hardware = bench.hardware(guest, tell)
    program = bench.qemu(hardware, tell)
    deadline = time.monotonic() + limit_s
    bench.logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as life:
        booted: Booted | None = None
        for cell in cells:
            log = bench.logs / f"{guest.name}-{cell.name}.log"
            log.write_text("")
            release = "did not boot"
            try:
                if booted is None:
                    tell.doing(f"{guest.title}: boots ({program.accelerator})")
                    console = log.with_suffix(".console")
                    booted = life.enter_context(Booted(program, hardware, console))
                    tell.did(f"{guest.title}: Linux {booted.release} in {booted.boot_s:.0f} s")
                release = booted.release
                session = Session(booted, cell, log, deadline, tell)
                yield examine(session, guest, selection)
            except GuestLost as lost:
                with log.open("a") as written:
                    written.write(f"\n{lost}\n{lost.tail}\n")
                yield lost_row(guest, cell, selection, release, lost)
                booted = None


@dataclass(frozen=True)
class Session:
    """A cell of a booted guest, and what it may still take."""

    booted: Booted
    cell: Cell
    log: Path
    deadline: float
    """By time.monotonic()."""
    tell: Teller

    def step(self, title: str, command: str, limit_s: float) -> Answer:
        return self._run(title, self.cell.wrap(command), limit_s, shown=command)

    def prepare(self) -> None:
        if not self.cell.prepare:
            return
        ready = self._run("preparation", self.cell.prepare, PREPARE_S, shown=self.cell.prepare)
        if ready.status:
            raise GuestLost(f"the session could not be made: {outcomes.last(ready.printed)}")

    def _run(self, title: str, command: str, limit_s: float, *, shown: str) -> Answer:
        self.tell.doing(f"{self.cell.title}: {title}")
        left_s = max(1.0, min(limit_s, self.deadline - time.monotonic()))
        with self.log.open("a") as log:
            log.write(f"\n$ {shown}\n")
            try:
                answer = self.booted.run(command, limit_s=left_s, log=log)
            except GuestLost as lost:
                raise GuestLost(f"{title}: {lost}", tail=lost.tail) from lost
            log.write(f"\n[{title}: status {answer.status} after {answer.seconds:.0f} s]\n")
        self.tell.did(f"{self.cell.title}: {title} took {answer.seconds:.0f} s")
        return answer


def examine(session: Session, guest: Guest, selection: Selection) -> Row:
    """Doctor, the probes, the tests: each runs even if the one before it failed."""
    session.prepare()
    about = session.step("session", _SESSION, DOCTOR_S)
    doctor = session.step("doctor", f"{BIN}/belljar doctor --json", DOCTOR_S)
    probes = tests = NOT_ASKED
    if selection.prove_s:
        command = prove_command(selection, f"{BIN}/belljar")
        probes = outcomes.probes(session.step("probes", command, selection.prove_s).printed)
    if selection.tests:
        command = pytest_command(selection, f"{BIN}/python")
        ran = session.step("tests", command, selection.tests_s)
        tests = outcomes.pytest(ran.printed, ran.status)
    return row(
        guest,
        session.cell,
        selection,
        release=session.booted.release,
        python=about.printed.strip().partition("\n")[0],
        doctor=outcomes.doctor(doctor.printed),
        probes=probes,
        tests=tests,
    )


def row(
    guest: Guest,
    cell: Cell,
    selection: Selection,
    *,
    release: str,
    python: str,
    doctor: Outcome,
    probes: Outcome,
    tests: Outcome,
) -> Row:
    return Row(
        guest=guest.name,
        kernel=release,
        python=python,
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
    said = outcomes.last(lost.tail)
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
        reasons=(str(lost), f"console: {said}"),
    )


def today() -> str:
    return datetime.now(UTC).date().isoformat()
