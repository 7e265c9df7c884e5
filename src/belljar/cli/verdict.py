"""From a result to an exit status, and to the line that says why (pure)."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from belljar.cli.say import REFUSED
from belljar.model import Limits, Result
from belljar.policy.quote import size

TIMED_OUT = 124
OUT_OF_MEMORY = 137
SIGNALLED = 128
MOST_TRIED = 5
"""Of what the code could not reach, told one by one."""


def exit_status(result: Result) -> int:
    if result.status == "timeout":
        return TIMED_OUT
    if result.status == "out_of_memory":
        return OUT_OF_MEMORY
    if result.status == "denied":
        return REFUSED
    if result.signal is not None:
        return SIGNALLED + result.signal
    # Without an exit code and without a signal the sandbox itself was lost.
    return REFUSED if result.exit_code is None else result.exit_code


def explain(result: Result, limits: Limits | None) -> Iterator[str]:
    """The lines for people after a run: nothing when it went well and nothing was lost. `limits`:
    None if only a server knows them."""
    if result.status == "timeout":
        after = f" after {limits.timeout_s:g} s" if limits else ""
        yield f"timed out: the code was killed{after} (see --timeout)"
    elif result.status == "out_of_memory":
        what = f": the limit was {size(limits.memory_bytes)}" if limits else ""
        yield f"out of memory{what} (see --memory)"
    elif result.status == "denied":
        restricted = any(finding.rule == "restricted" for finding in result.findings)
        who = "not in the restricted language" if restricted else "refused by the static filter"
        yield f"{who}, nothing was run"
        for finding in result.findings:
            yield f"  line {finding.line}: {finding.message} [{finding.rule}]"
    elif result.signal is not None:
        yield f"killed by {_signal_name(result.signal)}"
    elif result.exit_code is None:
        yield "the sandbox ended before its code did"
    for name in ("stdout", "stderr"):
        if lost := getattr(result.dropped, name):
            beyond = f", beyond {size(limits.output_bytes)}" if limits else ""
            yield f"{name}: {size(lost)} from the middle were dropped{beyond} (see --output-bytes)"
    yield from kept_out(result)
    for warning in result.warnings:
        yield f"warning: {warning}"


def kept_out(result: Result) -> Iterator[str]:
    """What the code could not reach, and why."""
    stopped = [tried for tried in result.egress if tried.verdict in ("refused", "blocked")]
    for tried in stopped[:MOST_TRIED]:
        yield f"network: {tried.verdict} {tried.host}:{tried.port}: {tried.why}"
    if len(stopped) > MOST_TRIED:
        yield f"network: {len(stopped) - MOST_TRIED} more were refused or blocked (see --json)"


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"
