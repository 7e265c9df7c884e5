"""What doctor, the probes and pytest said, read from what they printed.

Each reads a whole output, or as much of one as there was when the time was up: what failed until
then has failed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from .expectations import Expected
from .proving import VERDICT

REASONS = 4
"""At most so many of a kind go into the table; the log has them all."""
_COUNTED = re.compile(r"(\d+) (passed|failed|skipped|errors?|xfailed|xpassed|deselected)")
_VERDICT = re.compile(rf"^{VERDICT} (\d+)/(\d+) (\S+) (\S+) ?(.*)$", re.MULTILINE)
_TESTED = re.compile(r"^(tests/\S+::.*?) (PASSED|FAILED|ERROR|SKIPPED)\b", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """Of one step: a few words for the table, and why if it is not green."""

    said: str
    ok: bool
    reasons: tuple[str, ...] = ()
    refused: bool = False
    """The machine refuses sandboxes, as it should, and doctor says what to type."""


def json_in(printed: str) -> dict[str, Any] | None:
    """The object in an output that has progress and warnings around it."""
    for match in re.finditer(r"^\{", printed, re.MULTILINE):
        try:
            found, _ = json.JSONDecoder().raw_decode(printed, match.start())
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return None


def doctor(printed: str, expected: Expected) -> Outcome:
    found = json_in(printed)
    if found is None or not {"ok", "controls"} <= found.keys():
        return Outcome("no answer", False, (f"doctor: {complaint(found, printed)}",))
    wrong = [control for control in found["controls"] if not control["works"]]
    reasons = _by_hint(wrong)
    if not found["ok"]:
        essential = dict.fromkeys(control["name"] for control in wrong if control["essential"])
        advised = any(control["essential"] and control["hint"] for control in wrong)
        refused = expected.may_refuse and advised
        said = f"✗ {', '.join(essential)}"
        return Outcome(said, refused, reasons[:REASONS], refused=refused)
    reduced = dict.fromkeys(control["name"] for control in wrong)
    said = f"✓, reduced: {', '.join(reduced)}" if reduced else "✓"
    weaker = expected.weaker_than(found["controls"])
    if weaker:  # these first: the table has room for few
        return Outcome(said, False, (*weaker, *reasons)[:REASONS])
    return Outcome(said, True, reasons[:REASONS])


def _by_hint(controls: list[dict[str, Any]]) -> tuple[str, ...]:
    """One reason may be behind many controls: it is told once, with all their names."""
    alike: dict[str, list[dict[str, Any]]] = {}
    for control in controls:
        alike.setdefault(control["hint"], []).append(control)
    told = []
    for hint, found in alike.items():
        names = ", ".join(dict.fromkeys(control["name"] for control in found))
        mechanism = f" ({found[0]['mechanism']})" if len(found) == 1 else ""
        told.append(f"doctor: {names}{mechanism}: {hint}")
    return tuple(told)


def probes(printed: str) -> Outcome:
    """Held of those that apply. A probe that does not apply is no evidence either way."""
    found = json_in(printed)
    if found is None or not {"ok", "held", "probes"} <= found.keys():
        return Outcome("none ran", False, (f"prove: {complaint(found, printed)}",))
    broken = [probe for probe in found["probes"] if probe["outcome"] == "broken"]
    applicable = found["held"] + len(broken)
    inapplicable = len(found["probes"]) - applicable
    reasons = tuple(f"{probe['id']}: {probe['detail']}" for probe in broken)
    said = f"{found['held']}/{applicable}" + (f", {inapplicable} n/a" if inapplicable else "")
    return Outcome(said, bool(found["ok"]) and not broken, reasons[:REASONS])


AGAIN = 5
"""At most so many are tried once more by themselves. More are no accident."""
_ABOUT_TIME = re.compile(r"timeout|no result after|\b\d+(\.\d+)? s\b")


def late_probes(printed: str) -> tuple[str, ...]:
    """Those that did not hold, if all that is said against each is that it took too long: a busy
    host can do that to an emulated guest. What got through is never tried again."""
    found = json_in(printed) or {}
    broken = [probe for probe in found.get("probes", ()) if probe["outcome"] == "broken"]
    about_time = all(_ABOUT_TIME.search(probe["detail"]) for probe in broken)
    return tuple(probe["id"] for probe in broken) if about_time and len(broken) <= AGAIN else ()


def late_tests(printed: str) -> tuple[str, ...]:
    """Tests that failed, to be tried once more by themselves, as on the host. Attacks are not."""
    failed = tuple(failure.partition(" - ")[0] for failure in tests(printed).failures)
    secure = any(test.startswith("tests/security/") for test in failed)
    return () if secure or len(failed) > AGAIN else failed


def second(first: Outcome, again: Outcome) -> Outcome:
    """What counts is the second try; the first one stays in the table."""
    reasons = tuple(f"at the first try: {reason}" for reason in first.reasons)
    return Outcome(
        f"{first.said}, then {again.said}", again.ok, (*again.reasons, *reasons)[:REASONS]
    )


def probes_so_far(printed: str) -> Outcome:
    """Until the time was up; ok if nothing was broken by then."""
    fallen = _VERDICT.findall(printed)
    if not fallen:
        return Outcome("none finished", True)
    broken = [f"{probe}: {why}" for _, _, probe, outcome, why in fallen if outcome == "broken"]
    held = sum(outcome == "held" for _, _, _, outcome, _ in fallen)
    done, total = fallen[-1][:2]
    said = f"{held}/{held + len(broken)}, {int(total) - int(done)} not reached"
    return Outcome(said, not broken, tuple(broken[:REASONS]))


@dataclass(frozen=True)
class Tests:
    passed: int
    failed: int
    """Errors of fixtures, too."""
    skipped: int
    deselected: int
    failures: tuple[str, ...]
    finished: bool
    """Whether there is a last line: pytest itself may have been killed."""


def tests(printed: str) -> Tests:
    """From the last line of pytest, and its short summary."""
    last = ""
    for line in printed.splitlines():
        if re.search(r"\bin \d+(\.\d+)?s\b", line) and _COUNTED.search(line):
            last = line
    counts = {name: int(number) for number, name in _COUNTED.findall(last)}
    failures = re.findall(r"^(?:FAILED|ERROR) (\S+::.*)$", printed, re.MULTILINE)
    return Tests(
        passed=counts.get("passed", 0),
        failed=counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0),
        skipped=counts.get("skipped", 0),
        deselected=counts.get("deselected", 0),
        failures=tuple(failures),
        finished=bool(last),
    )


def pytest(printed: str, status: int) -> Outcome:
    found = tests(printed)
    if not found.finished:
        return Outcome("did not finish", False, (f"pytest: {last(printed)}",))
    said = f"{found.passed}/{found.failed}/{found.skipped}/{found.deselected}"
    reasons = [_short(failure) for failure in found.failures[:REASONS]]
    if len(found.failures) > REASONS:
        reasons.append(f"and {len(found.failures) - REASONS} more tests")
    seen = found.passed > found.skipped
    if not seen:
        reasons.append(f"{found.skipped} tests skipped, {found.passed} passed: too little was seen")
    return Outcome(said, status == 0 and not found.failed and seen, tuple(reasons))


def pytest_so_far(printed: str) -> Outcome:
    """Until the time was up; ok if nothing had failed by then."""
    fallen = _TESTED.findall(printed)
    count = [outcome for _, outcome in fallen]
    failures = [_short(test) for test, outcome in fallen if outcome in ("FAILED", "ERROR")]
    said = f"{count.count('PASSED')}/{len(failures)}/{count.count('SKIPPED')}, not all reached"
    return Outcome(said if fallen else "none finished", not failures, tuple(failures[:REASONS]))


def complaint(found: dict[str, Any] | None, printed: str) -> str:
    """Of a command that answered with an error, or with nothing that can be read."""
    error = (found or {}).get("error")
    if isinstance(error, dict) and "message" in error:
        return " ".join(str(error[part]) for part in ("message", "hint") if error.get(part))[:300]
    return str(error)[:300] if error else last(printed)


def _short(failure: str) -> str:
    """Without the folders, and not longer than a line of the table can be."""
    return failure.removeprefix("tests/")[:200]


def last(printed: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"
