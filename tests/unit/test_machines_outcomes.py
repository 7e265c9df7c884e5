"""What the test machines' steps printed, as outcomes (K1)."""

from __future__ import annotations

import json

import pytest

from tests.machines import outcomes
from tests.machines.expectations import Expected, expected
from tests.machines.guests import GUESTS
from tests.machines.outcomes import Outcome

ANY = Expected(frozenset())

SUMMARY = """\
....F.s                                                              [100%]
=========================== short test summary info ============================
SKIPPED [1] tests/functional/test_limits.py:12: no cgroups here
FAILED tests/functional/test_run.py::test_r1_result - AssertionError: assert 1 in (2, 3)
ERROR tests/functional/test_kept.py::test_s1_state[a b] - belljar.errors.EngineError
"""


def control(
    name: str, *, works: bool, essential: bool, mechanism: str = "cgroup"
) -> dict[str, object]:
    return {
        "name": name,
        "mechanism": mechanism,
        "works": works,
        "essential": essential,
        "hint": f"mend {name}",
    }


def test_counts_of_pytest_and_its_failures() -> None:
    printed = (
        SUMMARY + "========= 1 failed, 5 passed, 1 skipped, 1 error in 73.20s (0:01:13) ========"
    )
    found = outcomes.tests(printed)
    assert (found.passed, found.failed, found.skipped, found.finished) == (5, 2, 1, True)
    assert found.failures == (
        "tests/functional/test_run.py::test_r1_result - AssertionError: assert 1 in (2, 3)",
        "tests/functional/test_kept.py::test_s1_state[a b] - belljar.errors.EngineError",
    )


def test_quiet_summary_without_rulers() -> None:
    found = outcomes.tests("..\n2 passed, 3 deselected in 0.41s\n")
    assert (found.passed, found.failed, found.skipped) == (2, 0, 0)


@pytest.mark.parametrize("printed", ["", "....", SUMMARY, "Killed"])
def test_pytest_without_a_last_line_is_red(printed: str) -> None:
    """A guest's kernel may kill pytest; whatever passed until then is no green cell."""
    outcome = outcomes.pytest(printed, 0)
    assert not outcome.ok
    assert outcome.said == "did not finish"


def test_a_failing_status_is_red_whatever_the_counts_say() -> None:
    assert not outcomes.pytest("5 passed in 1.00s", 3).ok
    assert outcomes.pytest("5 passed in 1.00s", 0).ok


def test_a_run_in_which_nothing_passed_is_red() -> None:
    """All skipped: nothing was seen."""
    assert not outcomes.pytest("7 skipped in 1.00s", 0).ok


def test_many_failures_are_counted_in_the_reasons() -> None:
    lines = "".join(f"FAILED tests/functional/test_run.py::test_{n} - no\n" for n in range(9))
    outcome = outcomes.pytest(f"{lines}9 failed in 1.00s", 1)
    assert outcome.said == "0/9/0/0"
    assert "and 5 more tests" in outcome.reasons


def test_json_is_found_between_other_lines() -> None:
    printed = 'warning: {not json}\nbelljar: proving: api\n{\n  "a": {"b": 1}\n}\nbye\n'
    assert outcomes.json_in(printed) == {"a": {"b": 1}}
    assert outcomes.json_in("{oops\nTraceback") is None


def test_doctor_tells_what_is_reduced_and_why() -> None:
    controls = [
        control("memory", works=False, essential=False),
        control("pids", works=True, essential=True),
    ]
    outcome = outcomes.doctor(json.dumps({"ok": True, "controls": controls}), ANY)
    assert outcome.ok
    assert outcome.said == "✓, reduced: memory"
    assert outcome.reasons == ("doctor: memory (cgroup): mend memory",)


def test_doctor_that_finds_no_sandbox_is_red() -> None:
    controls = [control("sandbox", works=False, essential=True)]
    outcome = outcomes.doctor(json.dumps({"ok": False, "controls": controls}), ANY)
    assert not outcome.ok
    assert outcome.said == "✗ sandbox"


def test_one_reason_for_many_controls_is_told_once() -> None:
    controls = [control(name, works=False, essential=True) for name in ("ipc", "disk", "ipc")]
    for one in controls:
        one["hint"] = "allow namespaces"
    outcome = outcomes.doctor(json.dumps({"ok": False, "controls": controls}), ANY)
    assert outcome.reasons == ("doctor: ipc, disk: allow namespaces",)


def test_a_doctor_that_crashes_is_red_with_its_last_line() -> None:
    outcome = outcomes.doctor("Traceback (most recent call last):\n  …\nKeyError: 'x'\n", ANY)
    assert not outcome.ok
    assert outcome.reasons == ("doctor: KeyError: 'x'",)


def test_probes_held_of_those_that_apply() -> None:
    probes = [
        {"id": "FS-01", "outcome": "held", "detail": ""},
        {"id": "NW-02", "outcome": "broken", "detail": "reached the host"},
        {"id": "AP-01", "outcome": "inapplicable", "detail": "needs the HTTP service"},
    ]
    outcome = outcomes.probes(json.dumps({"ok": False, "held": 1, "probes": probes}))
    assert (outcome.said, outcome.ok) == ("1/2, 1 n/a", False)
    assert outcome.reasons == ("NW-02: reached the host",)


def test_no_probe_is_no_proof() -> None:
    assert not outcomes.probes("belljar: no sandbox could be started\n").ok


@pytest.mark.parametrize("said", [{"error": {"message": "no", "hint": "type"}}, {"error": "no"}])
def test_an_error_in_place_of_an_answer_is_red_and_told(said: dict[str, object]) -> None:
    for outcome in (outcomes.doctor(json.dumps(said), ANY), outcomes.probes(json.dumps(said))):
        assert not outcome.ok
        assert ": no" in outcome.reasons[0]


def limits(mechanism: str, *, works: bool = True) -> str:
    names = ("memory", "processes", "cpu")
    controls = [control(name, works=works, essential=False, mechanism=mechanism) for name in names]
    return json.dumps({"ok": True, "controls": controls})


@pytest.mark.parametrize(
    ("guest", "cell", "watchdog_is_ok"),
    [
        ("trixie", "root", False),
        ("trixie", "user", False),
        ("bookworm", "user-service", False),
        ("forky", "user-scope", False),
        ("jammy", "user", False),
        ("noble", "user-advised", False),
        ("trixie", "docker-user", True),
        ("trixie", "docker-root", True),
    ],
)
def test_a_watchdog_where_a_cgroup_can_be_had_is_red(
    guest: str, cell: str, watchdog_is_ok: bool
) -> None:
    wanted = expected(GUESTS[guest], cell)
    weak = outcomes.doctor(limits("cgroup; instead: a watchdog", works=False), wanted)
    assert weak.ok is watchdog_is_ok
    assert outcomes.doctor(limits("cgroup-v2 (a scope of the user's systemd)"), wanted).ok
    assert outcomes.doctor(limits("cgroup-v1"), wanted).ok is watchdog_is_ok
    assert outcomes.doctor('{"ok": true, "controls": []}', wanted).ok is watchdog_is_ok


def test_jammys_users_have_no_cpu_controller_and_its_root_has() -> None:
    assert expected(GUESTS["jammy"], "user").limits == {"memory", "processes"}
    assert "cpu" in expected(GUESTS["jammy"], "root").limits


@pytest.mark.parametrize(
    ("guest", "cell", "refused"),
    [
        ("noble", "user", True),
        ("noble", "root", False),
        ("noble", "user-advised", False),
        ("trixie", "user", False),
    ],
)
def test_a_refusal_with_advice_is_right_only_where_the_machine_restricts(
    guest: str, cell: str, refused: bool
) -> None:
    controls = [control("user_namespaces", works=False, essential=True)]
    outcome = outcomes.doctor(
        json.dumps({"ok": False, "controls": controls}), expected(GUESTS[guest], cell)
    )
    assert (outcome.ok, outcome.refused) == (refused, refused)
    silent = [{**controls[0], "hint": ""}]
    answer = json.dumps({"ok": False, "controls": silent})
    assert not outcomes.doctor(answer, expected(GUESTS[guest], cell)).ok


def test_more_skipped_than_passed_is_red() -> None:
    outcome = outcomes.pytest("1 passed, 250 skipped in 9.00s", 0)
    assert not outcome.ok
    assert "250 tests skipped" in outcome.reasons[0]


def test_what_was_left_out_is_counted() -> None:
    assert outcomes.pytest("9 passed, 3 skipped, 2 deselected in 9.00s", 0).said == "9/0/3/2"


def test_probes_until_the_time_was_up() -> None:
    printed = "verdict 1/9 FS-01 held \nverdict 2/9 NW-02 inapplicable no IPv6\n"
    early = outcomes.probes_so_far(printed)
    assert (early.said, early.ok) == ("1/1, 7 not reached", True)
    broken = outcomes.probes_so_far(f"{printed}verdict 3/9 FS-07 broken it reads /etc\nverd")
    assert (broken.said, broken.ok) == ("1/2, 6 not reached", False)
    assert broken.reasons == ("FS-07: it reads /etc",)
    assert outcomes.probes_so_far("").said == "none finished"


def test_tests_until_the_time_was_up() -> None:
    printed = (
        "collecting ... collected 62 items\n"
        "tests/functional/test_run.py::test_a[x y] PASSED      [  1%]\n"
        "tests/functional/test_run.py::test_b SKIPPED (no)     [  2%]\n"
    )
    early = outcomes.pytest_so_far(f"{printed}tests/functional/test_run.py::test_c ")
    assert (early.said, early.ok) == ("1/0/1, not all reached", True)
    failed = outcomes.pytest_so_far(f"{printed}tests/functional/test_run.py::test_c FAILED [  3%]")
    assert (failed.said, failed.ok) == ("1/1/1, not all reached", False)
    assert failed.reasons == ("functional/test_run.py::test_c",)


def proved(**broken: str) -> str:
    probes = [{"id": name, "outcome": "broken", "detail": why} for name, why in broken.items()]
    probes.append({"id": "PV-01", "outcome": "held", "detail": ""})
    return json.dumps({"ok": not broken, "held": 1, "probes": probes})


def test_only_probes_that_took_too_long_are_tried_again() -> None:
    assert outcomes.late_probes(proved(CC58="huge: timeout, signal 9", RS12="36.2 s, ok")) == (
        "CC58",
        "RS12",
    )
    assert outcomes.late_probes(proved(CC58="timeout", FS01="the token was read")) == ()
    assert outcomes.late_probes(proved(**{f"CC{n}": "timeout" for n in range(6)})) == ()
    assert outcomes.late_probes(proved()) == ()


def test_only_a_few_tests_that_are_no_attacks_are_tried_again() -> None:
    failed = "FAILED tests/functional/test_limits.py::test_a[many children] - AssertionError: (\n"
    tail = "1 failed, 3 passed in 9.00s\n"
    assert outcomes.late_tests(failed + tail) == (
        "tests/functional/test_limits.py::test_a[many children]",
    )
    attack = "FAILED tests/security/test_kernel_objects.py::test_b - AssertionError\n"
    assert outcomes.late_tests(failed + attack + tail) == ()
    assert outcomes.late_tests(failed * 6 + tail) == ()


def test_the_second_try_counts_and_the_first_is_still_told() -> None:
    first = Outcome("140/142", False, ("CC-58: timeout",))
    both = outcomes.second(first, Outcome("2/2", True))
    assert both == Outcome("140/142, then 2/2", True, ("at the first try: CC-58: timeout",))
    assert not outcomes.second(first, Outcome("1/2", False)).ok
