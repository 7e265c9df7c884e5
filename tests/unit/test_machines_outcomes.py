"""What the test machines' steps printed, as outcomes (K1)."""

from __future__ import annotations

import json

import pytest

from tests.machines import outcomes

SUMMARY = """\
....F.s                                                              [100%]
=========================== short test summary info ============================
SKIPPED [1] tests/functional/test_limits.py:12: no cgroups here
FAILED tests/functional/test_run.py::test_r1_result - AssertionError: assert 1 in (2, 3)
ERROR tests/functional/test_kept.py::test_s1_state[a b] - belljar.errors.EngineError
"""


def control(name: str, *, works: bool, essential: bool) -> dict[str, object]:
    return {
        "name": name,
        "mechanism": "cgroup",
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
    assert outcome.said == "0/9/0"
    assert outcome.reasons[-1] == "and 5 more tests"


def test_json_is_found_between_other_lines() -> None:
    printed = 'warning: {not json}\nbelljar: proving: api\n{\n  "a": {"b": 1}\n}\nbye\n'
    assert outcomes.json_in(printed) == {"a": {"b": 1}}
    assert outcomes.json_in("{oops\nTraceback") is None


def test_doctor_tells_what_is_reduced_and_why() -> None:
    controls = [
        control("memory", works=False, essential=False),
        control("pids", works=True, essential=True),
    ]
    outcome = outcomes.doctor(json.dumps({"ok": True, "controls": controls}))
    assert outcome.ok
    assert outcome.said == "✓, reduced: memory"
    assert outcome.reasons == ("doctor: memory (cgroup): mend memory",)


def test_doctor_that_finds_no_sandbox_is_red() -> None:
    controls = [control("sandbox", works=False, essential=True)]
    outcome = outcomes.doctor(json.dumps({"ok": False, "controls": controls}))
    assert not outcome.ok
    assert outcome.said == "✗ sandbox"


def test_a_doctor_that_crashes_is_red_with_its_last_line() -> None:
    outcome = outcomes.doctor("Traceback (most recent call last):\n  …\nKeyError: 'x'\n")
    assert not outcome.ok
    assert outcome.reasons == ("KeyError: 'x'",)


def test_probes_held_of_those_that_apply() -> None:
    probes = [
        {"id": "FS-01", "outcome": "held", "detail": ""},
        {"id": "NW-02", "outcome": "broken", "detail": "reached the host"},
        {"id": "AP-01", "outcome": "inapplicable", "detail": "needs the HTTP service"},
    ]
    outcome = outcomes.probes(json.dumps({"ok": False, "held": 1, "probes": probes}))
    assert (outcome.said, outcome.ok) == ("1/2", False)
    assert outcome.reasons == ("NW-02: reached the host",)


def test_no_probe_is_no_proof() -> None:
    assert not outcomes.probes("belljar: no sandbox could be started\n").ok
