"""What a probe came to, and how its printed line is read."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from belljar.model import Result
from belljar.probes.probe import Probe

Outcome = Literal["held", "broken", "inapplicable"]

MUST_SURVIVE_SECCOMP = "PV-17"
"""io_uring has to fail with an errno: Node asks for it at start and would die of a kill."""


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome
    detail: str = ""


def held(detail: object = "") -> Verdict:
    return Verdict("held", str(detail))


def broken(why: object) -> Verdict:
    return Verdict("broken", str(why))


def inapplicable(why: object) -> Verdict:
    return Verdict("inapplicable", str(why))


def conclude(findings: Sequence[str], note: object = "") -> Verdict:
    """Broken with the findings, held when there are none."""
    return broken("; ".join(findings)[:600]) if findings else held(note)


def read(probe: Probe, result: Result) -> Verdict:
    """The verdict that the probe printed. None at all is not held, unless a kill was the aim."""
    line_start = f"PROBE {probe.id} "
    lines = [
        line[len(line_start) :]
        for line in result.stdout.splitlines()
        if line.startswith(line_start)
    ]
    for line in lines:
        if line.startswith("BROKEN"):
            return broken(line.removeprefix("BROKEN").lstrip(": "))
    if "HELD" in lines:
        return held(_notes(probe, result))
    if probe.accepts_kill and result.status in ("out_of_memory", "killed"):
        return held(f"the run was ended: {result.status}")
    if result.signal == signal.SIGSYS and probe.id != MUST_SURVIVE_SECCOMP:
        return held("the system-call filter killed the run")
    return broken(f"no verdict: {describe(result)}")


def describe(result: Result) -> str:
    """One line on how a run ended, for the detail of a verdict."""
    ending = f"signal {result.signal}" if result.signal else f"exit code {result.exit_code}"
    said = (result.stderr.strip() or result.stdout.strip()).splitlines()
    warned = f", {'; '.join(result.warnings)}" if result.warnings else ""
    return f"{result.status}, {ending}{warned}: {said[-1][:200] if said else 'silent'}"


def _notes(probe: Probe, result: Result) -> str:
    start = f"INFO {probe.id} "
    lines = result.stdout.splitlines()
    return "; ".join(line[len(start) :] for line in lines if line.startswith(start))
