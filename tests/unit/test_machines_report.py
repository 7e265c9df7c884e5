"""docs/machines-tested.md keeps what did not run this time (K1)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.machines import report
from tests.machines.__main__ import verdict
from tests.machines.errors import CannotBeHad, SetupFailed
from tests.machines.report import Row

ROW = Row(
    guest="trixie",
    kernel="6.12.107",
    python="3.13.5",
    cell="root",
    selection="quick",
    doctor="✓",
    probes="143/143",
    tests="40/0/2",
    ok=True,
    when="2026-11-16",
)


def test_rows_of_other_cells_stay(tmp_path: Path) -> None:
    file = tmp_path / "table.md"
    user = replace(ROW, cell="user", ok=False, reasons=("NW-02: reached", "and 3 more tests"))
    noble = replace(ROW, guest="noble")
    report.write([noble, user], file)
    report.write([ROW], file)
    assert report.read(file.read_text()) == [ROW, user, noble]


def test_a_row_is_replaced_by_a_later_one_of_the_same_cell(tmp_path: Path) -> None:
    file = tmp_path / "table.md"
    report.write([replace(ROW, ok=False, reasons=("no",))], file)
    report.write([ROW], file)
    assert report.read(file.read_text()) == [ROW]


def test_guests_and_cells_are_in_the_order_of_their_tables() -> None:
    rows = [
        replace(ROW, guest=guest, cell=cell)
        for guest in ("noble", "gone", "bookworm")
        for cell in ("docker-root", "root")
    ]
    places = [(row.guest, row.cell) for row in report.merge([], rows)]
    assert places == [
        ("bookworm", "root"),
        ("bookworm", "docker-root"),
        ("noble", "root"),
        ("noble", "docker-root"),
        ("gone", "root"),
        ("gone", "docker-root"),
    ]


def test_a_table_with_other_columns_holds_no_rows() -> None:
    assert report.read("| guest | kernel |\n| --- | --- |\n| trixie | 6.12 |\n") == []


def test_what_a_guest_printed_is_no_markup() -> None:
    text = report.render([replace(ROW, reasons=("<script>x</script> a|b\nc",))])
    assert "<script>" not in text
    assert len([line for line in text.splitlines() if line.startswith("|")]) == 3


@given(st.lists(st.text(max_size=40), max_size=4))
def test_writing_what_was_read_changes_nothing(reasons: list[str]) -> None:
    once = report.render([replace(ROW, reasons=tuple(reasons))])
    assert report.render(report.read(once)) == once


def test_only_what_cannot_be_had_may_be_passed_over() -> None:
    missing, failed = CannotBeHad("no QEMU"), SetupFailed("pip ended with 1")
    assert verdict([], [missing], if_possible=True) == 0
    assert verdict([], [missing], if_possible=False) != 0
    assert verdict([], [failed], if_possible=True) != 0
    assert verdict([ROW], [], if_possible=True) == 0
    assert verdict([ROW, replace(ROW, ok=False)], [missing], if_possible=True) != 0
