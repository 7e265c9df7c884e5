"""docs/machines-tested.md keeps what did not run this time (K1)."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.machines import layers, report
from tests.machines.__main__ import private, verdict
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
    result="green",
    commit="0123456789",
    when="2026-11-16",
)


def test_rows_of_other_cells_stay(tmp_path: Path) -> None:
    file = tmp_path / "table.md"
    user = replace(ROW, cell="user", result="red", reasons=("NW-02: reached", "and 3 more tests"))
    noble = replace(ROW, guest="noble")
    report.write([noble, user], file)
    report.write([ROW], file)
    assert report.read(file.read_text()) == [ROW, user, noble]


def test_a_row_is_replaced_by_a_later_one_of_the_same_cell(tmp_path: Path) -> None:
    file = tmp_path / "table.md"
    report.write([replace(ROW, result="red", reasons=("no",))], file)
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
    assert verdict([ROW], [missing, failed], if_possible=True) != 0
    assert verdict([ROW, replace(ROW, result="red")], [missing], if_possible=True) != 0


def test_a_machine_that_was_too_slow_is_passed_over_only_where_that_is_asked_for() -> None:
    late, refused = replace(ROW, result="out of time"), replace(ROW, result="refused")
    assert verdict([ROW, late], [], if_possible=True) == 0
    assert verdict([ROW, late], [], if_possible=False) != 0
    assert verdict([late, replace(ROW, result="red")], [], if_possible=True) != 0
    assert verdict([ROW, refused], [], if_possible=False) == 0


def test_the_cache_is_closed_to_others_even_if_it_was_not(tmp_path: Path) -> None:
    (tmp_path / "machines").mkdir(mode=0o755)
    for _ in range(2):
        assert private(tmp_path / "machines").stat().st_mode & 0o777 == 0o700


def test_a_result_that_nobody_knows_is_red() -> None:
    assert replace(ROW, result="perhaps").is_red


def test_a_row_names_the_commit_and_what_is_beside_it(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.test")
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "one")
    clean = layers.commit(tmp_path)
    assert len(clean) == 10
    report.write([replace(ROW, commit=clean)], tmp_path / "table.md")
    (tmp_path / "docs").mkdir()
    (tmp_path / "table.md").rename(tmp_path / report.FILE)
    assert layers.commit(tmp_path) == clean  # the table is not what was tested
    assert layers.files(tmp_path) == [Path("a")]
    (tmp_path / "a").write_text("2")
    assert layers.commit(tmp_path) == f"{clean}+"
