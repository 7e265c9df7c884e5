"""What doctor, the probes and pytest said, read from what they printed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

REASONS = 4
"""At most so many of a kind go into the table; the log has them all."""
_COUNTED = re.compile(r"(\d+) (passed|failed|skipped|errors?|xfailed|xpassed|deselected)")


@dataclass(frozen=True)
class Outcome:
    """Of one step: a few words for the table, and why if it is not green."""

    said: str
    ok: bool
    reasons: tuple[str, ...] = ()


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


def doctor(printed: str) -> Outcome:
    found = json_in(printed)
    if found is None:
        return Outcome("no answer", False, (last(printed),))
    wrong = [control for control in found["controls"] if not control["works"]]
    reasons = [
        f"doctor: {control['name']} ({control['mechanism']}): {control['hint']}"
        for control in wrong
    ]
    essential = dict.fromkeys(control["name"] for control in wrong if control["essential"])
    if not found["ok"]:
        return Outcome(f"✗ {', '.join(essential)}", False, tuple(reasons[:REASONS]))
    reduced = dict.fromkeys(control["name"] for control in wrong)
    said = f"✓, reduced: {', '.join(reduced)}" if reduced else "✓"
    return Outcome(said, True, tuple(reasons[:REASONS]))


def probes(printed: str) -> Outcome:
    """Held of those that apply. A probe that does not apply is no evidence either way."""
    found = json_in(printed)
    if found is None:
        return Outcome("none ran", False, (f"prove: {last(printed)}",))
    broken = [probe for probe in found["probes"] if probe["outcome"] == "broken"]
    applicable = found["held"] + len(broken)
    reasons = tuple(f"{probe['id']}: {probe['detail']}" for probe in broken)
    return Outcome(f"{found['held']}/{applicable}", bool(found["ok"]), reasons[:REASONS])


@dataclass(frozen=True)
class Tests:
    passed: int
    failed: int
    """Errors of fixtures, too."""
    skipped: int
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
        failures=tuple(failures),
        finished=bool(last),
    )


def pytest(printed: str, status: int) -> Outcome:
    found = tests(printed)
    said = f"{found.passed}/{found.failed}/{found.skipped}"
    if not found.finished:
        return Outcome("did not finish", False, (f"pytest: {last(printed)}",))
    reasons = [_short(failure) for failure in found.failures[:REASONS]]
    if len(found.failures) > REASONS:
        reasons.append(f"and {len(found.failures) - REASONS} more tests")
    return Outcome(said, status == 0 and found.passed > 0, tuple(reasons))


def _short(failure: str) -> str:
    """Without the folders, and not longer than a line of the table can be."""
    return failure.removeprefix("tests/")[:200]


def last(printed: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"
