"""How a cell ends: green, red, refused or out of time, however far it came (K1)."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, cast

import pytest
from rich.console import Console

from tests.machines.cells import CELLS
from tests.machines.errors import GuestLost, TimeUp
from tests.machines.guest import Answer, Booted
from tests.machines.guests import GUESTS
from tests.machines.matrix import Findings, Session, examine
from tests.machines.progress import Teller
from tests.machines.report import Row
from tests.machines.selections import SELECTIONS

LIMITS = [
    {"name": name, "mechanism": "cgroup-v2", "works": True, "essential": False, "hint": ""}
    for name in ("memory", "processes", "cpu")
]
REFUSAL = {
    "name": "user_namespaces",
    "mechanism": "user namespace",
    "works": False,
    "essential": True,
    "hint": "AppArmor restricts them: belljar doctor --fix",
}
SAID = {
    "platform": (0, "3.13.5\n"),
    "doctor": (0, json.dumps({"ok": True, "controls": LIMITS})),
    "proving": (0, json.dumps({"ok": True, "held": 1, "probes": [{"outcome": "held"}]})),
    "pytest": (0, "5 passed in 1.00s"),
}
HELD = "verdict 1/9 FS-01 held \n"
BROKEN = f"{HELD}verdict 2/9 FS-02 broken it is there\n"


class Played:
    """Answers by a word of the command; what it says last before it is lost can be given."""

    release = "6.12"

    def __init__(self, said: dict[str, tuple[int, str]], late: str = "", before: str = "") -> None:
        self.said, self.late, self.before = said, late, before

    def run(self, command: str, *, limit_s: float, log: IO[str] | None = None) -> Answer:
        if self.late and self.late in command:
            raise TimeUp(f"no end after {limit_s:.0f} s", tail="Login:", printed=self.before)
        for word, (status, printed) in self.said.items():
            if word in command:
                return Answer(status, printed, 1.0)
        raise AssertionError(command)


Play = Callable[..., Row]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    def run(
        guest: str = "trixie",
        *,
        left_s: float = 60,
        late: str = "",
        before: str = "",
        **said: tuple[int, str],
    ) -> Row:
        booted = cast(Booted, Played({**SAID, **said}, late, before))
        tell = Teller(Console(file=io.StringIO()))
        deadline = time.monotonic() + left_s
        session = Session(booted, GUESTS[guest], CELLS["user"], tmp_path / "log", deadline, tell)
        found = Findings(kernel=booted.release)
        try:
            examine(session, SELECTIONS["quick"], found)
        except GuestLost as lost:
            found.lost(lost)
        return found.row(GUESTS[guest], CELLS["user"], SELECTIONS["quick"], "0123456789")

    return run


def test_a_cell_that_came_to_its_end_is_green(play: Play) -> None:
    row = play()
    assert (row.result, row.probes, row.tests) == ("green", "1/1", "5/0/0/0")
    assert row.commit == "0123456789"


@pytest.mark.parametrize(
    ("late", "before", "result"),
    [
        ("doctor", "", "out of time"),
        ("proving", HELD, "out of time"),
        ("proving", BROKEN, "red"),
        ("pytest", "tests/unit/test_a.py::test_a PASSED [ 1%]\n", "out of time"),
        ("pytest", "tests/unit/test_a.py::test_a FAILED [ 1%]\n", "red"),
    ],
)
def test_out_of_time_is_not_red_unless_something_had_failed(
    play: Play, late: str, before: str, result: str
) -> None:
    row = play(late=late, before=before)
    assert row.result == result
    assert row.reasons[0].startswith("out of time during ")


def test_a_step_that_hangs_while_there_is_time_is_red(play: Play) -> None:
    assert play(left_s=1e6, late="proving", before=HELD).result == "red"


def test_what_failed_before_the_time_was_up_stays_red(play: Play) -> None:
    broken = {"ok": False, "held": 0, "probes": [{"id": "A", "outcome": "broken", "detail": "x"}]}
    assert play(late="pytest", proving=(1, json.dumps(broken))).result == "red"


def test_no_step_begins_after_the_time(play: Play) -> None:
    row = play(left_s=-1)
    assert (row.result, row.reasons) == ("out of time", ("out of time before session",))


@pytest.mark.parametrize(
    ("guest", "ran", "result"),
    [
        ("noble", (125, "belljar: no sandbox"), "refused"),
        ("noble", (0, "42\n"), "red"),  # something ran where doctor says that nothing can
        ("trixie", (125, "belljar: no sandbox"), "red"),
    ],
)
def test_a_refusal_is_tried(play: Play, guest: str, ran: tuple[int, str], result: str) -> None:
    doctor = (1, json.dumps({"ok": False, "controls": [REFUSAL]}))
    said = {"belljar run": ran, "doctor": doctor}
    assert play(guest, **said).result == result
