"""Guests times cells: what was asked for, and running it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from . import expectations, layers, outcomes, qemu, report, roots
from .archive import Archives
from .cells import BIN, CELLS, SUDO_GIVEN, SUDO_TAKEN, Cell
from .errors import GuestLost, TimeUp
from .guest import Answer, Booted, Hardware
from .guests import CONTAINERS, GUESTS, Guest
from .outcomes import Outcome
from .progress import Teller
from .qemu import Qemu
from .report import Row
from .selections import ADVICE, Selection, prove_command, pytest_command

DOCTOR_S = 600.0
PREPARE_S = 900.0
NOT_ASKED = Outcome("", True)
REFUSED_STATUS = 125
"""Of `belljar run` where no sandbox can be started."""
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
    at_once: int = 1
    making: Lock = field(default_factory=Lock)
    """Two threads would make the same image."""

    @property
    def logs(self) -> Path:
        return self.cache / "logs"

    @property
    def cpus(self) -> int:
        """For a guest: more than its share of the cores would only be waited for."""
        return max(1, min(2, (os.cpu_count() or 1) // self.at_once))

    def machine(self, guest: Guest, tell: Teller) -> tuple[Qemu, Hardware]:
        """Makes what is missing."""
        with self.making:
            root = roots.ensure(guest, self.cache, self.archives, tell.doing)
            kernel, initrd = roots.kernel(root)
            layer = layers.ensure(guest, root, self.checkout, self.cache, tell.doing)
            program = qemu.ensure(self.cache, self.archives, kernel, tell.doing)
        image = roots.image(root)
        return program, Hardware(
            kernel=kernel, initrd=initrd, root=image, layer=layer, cpus=self.cpus
        )


def units(chosen: list[tuple[Guest, list[Cell]]], at_once: int) -> list[tuple[Guest, list[Cell]]]:
    """What shares a boot: all cells of a guest, or, where guests run side by side, each cell its
    own, so that a slow one holds up none of the others. Containers stay together: the daemon takes
    minutes to start."""
    if at_once == 1:
        return chosen
    found = []
    for guest, cells in chosen:
        found += [(guest, [cell]) for cell in cells if cell.name not in CONTAINERS]
        if contained := [cell for cell in cells if cell.name in CONTAINERS]:
            found.append((guest, contained))
    return found


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
    program, hardware = bench.machine(guest, tell)
    commit = layers.commit(bench.checkout)
    deadline = time.monotonic() + limit_s
    bench.logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as life:
        booted: Booted | None = None
        for cell in cells:
            log = bench.logs / f"{guest.name}-{cell.name}.log"
            log.write_text(f"{guest.title}, {cell.title}, commit {commit}\n")
            found = Findings()
            try:
                if booted is None:
                    tell.doing(f"{guest.title}: boots ({program.accelerator})")
                    console = log.with_suffix(".console")
                    booted = life.enter_context(Booted(program, hardware, console))
                    tell.did(f"{guest.title}: Linux {booted.release} in {booted.boot_s:.0f} s")
                found.kernel = booted.release
                examine(Session(booted, guest, cell, log, deadline, tell), selection, found)
            except GuestLost as lost:
                with log.open("a") as written:
                    written.write(f"\n{lost}\n{lost.tail}\n")
                found.lost(lost)
                booted = None
            yield found.row(guest, cell, selection, commit)


@dataclass
class Findings:
    """Of a cell, as far as it came."""

    kernel: str = "did not boot"
    python: str = ""
    doctor: Outcome = NOT_ASKED
    probes: Outcome = NOT_ASKED
    tests: Outcome = NOT_ASKED
    broken: bool = False
    late: bool = False
    ending: tuple[str, ...] = ()

    def lost(self, lost: GuestLost) -> None:
        self.late = isinstance(lost, OutOfTime)
        self.broken = not self.late
        self.ending = (str(lost),)
        if not self.late:
            self.ending = (str(lost), f"console: {outcomes.last(lost.tail)}")

    @property
    def result(self) -> str:
        """What failed is red, however far the cell came."""
        if self.broken or not (self.doctor.ok and self.probes.ok and self.tests.ok):
            return report.RED
        if self.late:
            return report.OUT_OF_TIME
        return report.REFUSED if self.doctor.refused else report.GREEN

    def row(self, guest: Guest, cell: Cell, selection: Selection, commit: str) -> Row:
        return Row(
            guest=guest.name,
            kernel=self.kernel,
            python=self.python,
            cell=cell.name,
            selection=selection.name,
            doctor=self.doctor.said,
            probes=self.probes.said,
            tests=self.tests.said,
            result=self.result,
            commit=commit,
            when=datetime.now(UTC).date().isoformat(),
            reasons=(
                *self.ending,
                *self.doctor.reasons,
                *self.probes.reasons,
                *self.tests.reasons,
            ),
        )


class OutOfTime(TimeUp):
    """The time for all cells was up, not that of one step."""


@dataclass(frozen=True)
class Session:
    """A cell of a booted guest, and what it may still take."""

    booted: Booted
    guest: Guest
    cell: Cell
    log: Path
    deadline: float
    """By time.monotonic()."""
    tell: Teller

    def step(self, title: str, command: str, limit_s: float) -> Answer:
        return self._run(title, self.cell.wrap(command), limit_s, shown=command)

    def as_agent(self, title: str, command: str) -> None:
        """As root, outside of the session."""
        done = self._run(title, command, PREPARE_S, shown=command)
        if done.status:
            raise GuestLost(f"{title} failed: {outcomes.last(done.printed)}")

    def _run(self, title: str, command: str, limit_s: float, *, shown: str) -> Answer:
        where = f"{self.guest.title}, {self.cell.title}: {title}"
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise OutOfTime(f"out of time before {title}")
        self.tell.doing(where)
        with self.log.open("a") as log:
            log.write(f"\n$ {shown}\n")
            try:
                answer = self.booted.run(command, limit_s=min(limit_s, left_s), log=log)
            except TimeUp as late:
                if left_s < limit_s:
                    message = f"out of time during {title}"
                    raise OutOfTime(message, tail=late.tail, printed=late.printed) from late
                raise TimeUp(f"{title}: {late}", tail=late.tail, printed=late.printed) from late
            except GuestLost as lost:
                raise GuestLost(f"{title}: {lost}", tail=lost.tail) from lost
            log.write(f"\n[{title}: status {answer.status} after {answer.seconds:.0f} s]\n")
        self.tell.did(f"{where} took {answer.seconds:.0f} s")
        return answer


def examine(session: Session, selection: Selection, found: Findings) -> None:
    """Doctor, the probes, the tests: each runs even if the one before it failed."""
    if session.cell.prepare:
        session.as_agent("preparation", session.cell.prepare)
    about = session.step("session", _SESSION, DOCTOR_S)
    found.python = about.printed.strip().partition("\n")[0]
    answer = session.step("doctor", f"{BIN}/belljar doctor --json", DOCTOR_S)
    found.doctor = outcomes.doctor(
        answer.printed, expectations.expected(session.guest, session.cell.name)
    )
    if found.doctor.refused:
        examine_refusal(session, selection, found)
        return
    if selection.prove_s:
        try:
            proved = session.step("probes", prove_command(f"{BIN}/python"), selection.prove_s)
            found.probes = outcomes.probes(proved.printed)
            if late := outcomes.late_probes(proved.printed):
                command = prove_command(f"{BIN}/python", late)
                proved = session.step("late probes", command, selection.prove_s)
                found.probes = outcomes.second(found.probes, outcomes.probes(proved.printed))
        except TimeUp as late:
            found.probes = outcomes.probes_so_far(late.printed)
            raise
    if selection.tests:
        run_tests(session, selection, (), found)


def examine_refusal(session: Session, selection: Selection, found: Findings) -> None:
    """Nothing may run, not even with fewer walls; and what doctor says to type is typed."""
    ran = session.step("refusal", f"{BIN}/belljar run -c 'print(6 * 7)'", DOCTOR_S)
    if ran.status != REFUSED_STATUS or "42" in ran.printed:
        found.broken = True
        found.ending = (f"not refused: status {ran.status}: {outcomes.last(ran.printed)}",)
    if ADVICE in selection.tests and session.cell.name == "user":
        session.as_agent("sudo", SUDO_GIVEN)
        run_tests(session, selection, (ADVICE,), found)
        session.as_agent("no sudo", SUDO_TAKEN)


def run_tests(
    session: Session, selection: Selection, only: tuple[str, ...], found: Findings
) -> None:
    try:
        command = pytest_command(selection, f"{BIN}/python", only)
        ran = session.step("tests", command, selection.tests_s)
        found.tests = outcomes.pytest(ran.printed, ran.status)
        if late := outcomes.late_tests(ran.printed):
            command = pytest_command(selection, f"{BIN}/python", late)
            ran = session.step("failed tests, by themselves", command, selection.tests_s)
            again = outcomes.pytest(ran.printed, ran.status)
            found.tests = outcomes.second(found.tests, again)
    except TimeUp as late_answer:
        found.tests = outcomes.pytest_so_far(late_answer.printed)
        raise
