"""What must hold after a soak, judged from the record and what was found afterwards. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import fmean, linear_regression
from typing import Any

from .record import Life, Op, Record, Sample

MIB = 1 << 20
FINAL = {"sandbox_ended", "sandbox_lost", "not_found", "trail_error", "closed", "shutting_down"}
"""Errors that need not be retryable: what a fault ended for good, and runs that would run twice,
because their end could not be written or the server ended before they did."""
LEAST_LIFE_S, LEAST_SAMPLES = 120.0, 30
WARM_UP = 0.3
"""Of a life: pools and caches fill."""
FLAT = {"memory_bytes": (24 * MIB, 0.10), "descriptors": (16, 0.15)}
"""How much each may grow in a life: at most the larger of this much and this part of it."""
FORGOTTEN_S = 1.0
"""CPU time that each kill of the server may forget, as docs/server.md says."""
ROUNDING = 0.001
ENOUGH = 0.5
"""The part of all requests that must get a right answer: a soak in which nothing works shows
nothing."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was found when it was over."""

    record: Record
    lines: Sequence[Mapping[str, Any]]
    """Of the trail, as exported."""
    verified: Mapping[str, Any]
    """As `belljar trail verify --json` says."""
    charged_s: Mapping[str, float] | None
    """CPU seconds by tenant; None if nobody could say, or if the day has changed and with it the
    account."""
    metered: str
    """The tenant that had one-shot runs only: its CPU time is bounded from above, too."""
    left: Sequence[str]
    leaks: Sequence[str]
    """Files in which a secret was found."""
    complaints: Sequence[str]
    """Tracebacks in the server's log, each once."""


@dataclass(kw_only=True)
class Check:
    name: str
    promise: str
    violations: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    """Why it could not be judged."""

    @property
    def held(self) -> bool:
        return not self.violations


def judge(found: Evidence) -> list[Check]:
    return [check(found) for check in CHECKS]


# -- answers ---------------------------------------------------------------------------------------


def answers(found: Evidence) -> Check:
    check = Check(name="answers", promise="no answer is wrong, and only faults go unanswered")
    record = found.record
    for op in record.ops:
        fault = record.disturbed(op)
        if why := _objection(op, disturbed=fault is not None):
            during = f", during {fault.kind}" if fault else ""
            who = f"{op.began:.1f} s: {op.tenant}'s {op.kind} {op.token}{during}"
            check.violations.append(f"{who}: {why}")
    outcomes = Counter[str](op.outcome for op in record.ops)
    check.figures = {"requests": len(record.ops), **dict(outcomes)}
    if outcomes["right"] < ENOUGH * len(record.ops) or not record.ops:
        check.violations.append(f"too little went right to show anything: {dict(outcomes)}")
    return check


def _objection(op: Op, *, disturbed: bool) -> str:
    if op.outcome == "wrong":
        if not (disturbed and op.failed):
            return f"wrong: {op.why}"
        return "" if op.explained else f"it failed, and nothing says why: {op.why}"
    if op.outcome == "broken":
        return "" if disturbed else f"no answer: {op.why}"
    if op.outcome != "refused" or (op.http == 429 and op.retryable):
        return ""
    said = f"{op.http} {op.code}: {op.why}"
    if op.code == "internal" or not disturbed:
        return f"refused: {said}"
    if not op.retryable and op.code not in FINAL:
        return f"refused for good, though it would work later: {said}"
    return ""


def seen(found: Evidence) -> Check:
    """What the soak itself ran into."""
    check = Check(name="on the way", promise="the server recovers from every fault, and says so")
    check.violations = list(found.record.seen)
    took: dict[str, list[float]] = defaultdict(list)
    for fault in found.record.faults:
        if fault.recovered is not None and fault.lifted is not None:
            took[fault.kind].append(fault.recovered - fault.lifted)
        elif not found.record.interrupted:
            check.violations.append(f"{fault.began:.1f} s: never recovered from {fault.kind}")
    check.violations += [
        f"the server died by itself at {life.ended or 0:.1f} s, status {life.exit_status}"
        for life in found.record.lives
        if life.how == "died"
    ]
    check.figures = {
        kind: {"times": len(seconds), "longest_recovery_s": round(max(seconds), 2)}
        for kind, seconds in sorted(took.items())
    }
    return check


# -- the trail -------------------------------------------------------------------------------------


def trail(found: Evidence) -> Check:
    check = Check(
        name="trail", promise="every answered run is in the trail once, with the same verdict"
    )
    attempts: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    asked: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    ends: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    tried: Counter[str] = Counter()
    for line in found.lines:
        if line["kind"] == "attempt":
            attempts[line["id"]].append(line)
            if line["action"] == "run" and line.get("request_id"):
                asked[line["request_id"]].append(line)
        elif line["kind"] in ("end", "lost"):
            ends[line["id"]].append(line)
        elif line["kind"] == "egress":
            tried[line["id"]] += line.get("count", 1)
    answered = 0
    for op in found.record.ops:
        if op.execution_id:
            answered += 1
            found_ends = ends[op.execution_id]
            if len(attempts[op.execution_id]) != 1 or len(found_ends) != 1:
                count = f"{len(attempts[op.execution_id])} attempts, {len(found_ends)} ends"
                check.violations.append(f"{op.kind} {op.token} ({op.execution_id}): {count}")
            elif why := _differs(op, found_ends[0]):
                check.violations.append(f"{op.kind} {op.token} ({op.execution_id}): {why}")
            if op.one_run and tried[op.execution_id] < op.egress:
                check.violations.append(
                    f"{op.kind} {op.token}: {op.egress} ways out were answered,"
                    f" {tried[op.execution_id]} are in the trail"
                )
        if op.one_run and (why := _counted(op, asked[op.token], ends)):
            check.violations.append(f"{op.kind} {op.token}: {why}")
    open_ = [id_ for id_ in attempts if not ends[id_]]
    if open_:
        check.violations.append(f"{len(open_)} attempts have no end: {', '.join(open_[:5])}")
    check.figures = {
        "lines": len(found.lines),
        "attempts": len(attempts),
        "answered": answered,
        "by_end": dict(
            Counter(end.get("status", "lost") for many in ends.values() for end in many)
        ),
    }
    return check


def _differs(op: Op, end: Mapping[str, Any]) -> str:
    """How an answer and its line are not the same."""
    if end["kind"] == "lost":
        return "answered, but lost in the trail"
    pairs: list[tuple[str, Any, Any]] = [("exit_code", op.exit_code, end.get("exit_code"))]
    if op.status:
        pairs.append(("status", op.status, end["status"]))
    if op.stdout_sha256:
        pairs.append(("stdout", op.stdout_sha256, end.get("stdout_sha256")))
    recorded = (end.get("usage") or {}).get("cpu_ms", 0.0)
    if op.cpu_ms and abs(op.cpu_ms - recorded) > 0.01:  # the trail rounds
        pairs.append(("cpu_ms", op.cpu_ms, recorded))
    return "; ".join(
        f"{name}: answered {one!r}, recorded {other!r}"
        for name, one, other in pairs
        if one != other
    )


def _counted(
    op: Op, lines: Sequence[Mapping[str, Any]], ends: Mapping[str, list[Mapping[str, Any]]]
) -> str:
    """One request is one run: none twice, no refusal unrecorded, none told that nothing ran."""
    if len(lines) > 1:
        return f"{len(lines)} attempts for one request"
    ran = [line for line in lines if not _was_refused(ends.get(line["id"], []))]
    if op.http == 200 and not lines and (op.execution_id or not op.failed):
        return "answered, but not in the trail by its request's id"
    if op.http in (400, 429) and (not lines or ran):
        return "refused, but the trail does not say so"
    if op.code == "trail_error" and op.retryable and ran:
        return "told that nothing ran and to try again, but its attempt is in the trail"
    if op.code == "trail_error" and not op.retryable and not ran:
        return "told that it ran, but no attempt is in the trail"
    return ""


def _was_refused(ends: Sequence[Mapping[str, Any]]) -> bool:
    return any(end.get("status") == "refused" for end in ends)


def verified(found: Evidence) -> Check:
    check = Check(name="verify", promise="`belljar trail verify` finds nothing")
    verdict = found.verified
    check.figures = {name: verdict.get(name) for name in ("sound", "lines", "head")}
    if not verdict.get("sound"):
        at = verdict.get("at")
        line = next((one for one in found.lines if at and one.get("seq") == at), {})
        when = _when(found.record, line["time"]) if line else ""
        check.violations.append(f"{verdict.get('problem') or 'it could not be read'}{when}")
    return check


def _when(record: Record, time: str) -> str:
    """When a line was written, and the fault that may explain it."""
    at = datetime.fromisoformat(time).timestamp() - record.epoch
    during = [fault.kind for fault in record.faults if fault.touches(at, at)]
    return f", written at {at:.1f} s" + (f", during {during[-1]}" if during else "")


# -- what is left, what has grown ------------------------------------------------------------------


def leftovers(found: Evidence) -> Check:
    promise = "no process, control group, mount, namespace, socket or temporary file is left"
    return Check(name="leftovers", promise=promise, violations=list(found.left))


def secrets(found: Evidence) -> Check:
    check = Check(name="secrets", promise="no secret is in the trail, a log, a file or an answer")
    check.violations = [f"a secret is in {where}" for where in found.leaks]
    return check


def complaints(found: Evidence) -> Check:
    check = Check(name="log", promise="nothing unforeseen happens: the log has no traceback")
    check.violations = list(found.complaints)
    return check


def memory(found: Evidence) -> Check:
    return _flat(found, "memory_bytes", "memory", "the server's memory is flat over its life")


def descriptors(found: Evidence) -> Check:
    return _flat(found, "descriptors", "descriptors", "so are its open descriptors")


def _flat(found: Evidence, field_: str, name: str, promise: str) -> Check:
    check = Check(name=name, promise=promise)
    most, part = FLAT[field_]
    rows = []
    for life in found.record.lives:
        samples = _settled(life, found.record)
        if samples is None:
            continue
        at = [sample.at for sample in samples]
        values = [float(getattr(sample, field_)) for sample in samples]
        slope = linear_regression(at, values).slope
        third = len(values) // 3
        rise = fmean(values[-third:]) - fmean(values[:third])
        grown = slope * (at[-1] - at[0])
        rows.append(
            {
                "pid": life.pid,
                "seconds": round(at[-1] - at[0]),
                "mean": round(fmean(values)),
                "per_hour": round(slope * 3600),
                "grown": round(grown),
            }
        )
        # Both: a line through a single peak rises, too.
        if min(grown, rise) > max(most, part * fmean(values)):
            check.violations.append(
                f"it grew by {grown:,.0f} in {at[-1] - at[0]:.0f} s, from {values[0]:,.0f}"
            )
    peak = max((getattr(sample, field_) for sample in found.record.samples), default=0)
    check.figures = {"lives": rows, "peak": peak}
    if not rows:
        check.note = f"no life of the server was longer than {LEAST_LIFE_S:.0f} s"
    return check


def _settled(life: Life, record: Record) -> list[Sample] | None:
    """Samples of a life that is long enough, without its warm-up."""
    of_life = [one for one in record.samples if one.pid == life.pid and one.at >= life.began]
    if len(of_life) < LEAST_SAMPLES or of_life[-1].at - of_life[0].at < LEAST_LIFE_S:
        return None
    return of_life[int(len(of_life) * WARM_UP) :]


# -- quotas ----------------------------------------------------------------------------------------


def quotas(found: Evidence) -> Check:
    check = Check(
        name="quotas", promise="what is charged is what the trail says was used, within the bounds"
    )
    if found.charged_s is None:
        check.note = "the day changed, or the server did not say"
        return check
    tenants = {line["id"]: line.get("tenant") for line in found.lines if line["kind"] == "attempt"}
    used: defaultdict[str, float] = defaultdict(float)
    for line in found.lines:
        if line["kind"] == "end" and tenants.get(line["id"]):
            used[str(tenants[line["id"]])] += (line.get("usage") or {}).get("cpu_ms", 0.0) / 1000
    unseen: defaultdict[str, float] = defaultdict(float)
    for op in found.record.ops:
        if op.outcome in ("left", "broken"):
            unseen[op.tenant] += op.ended - op.began
        if op.outcome == "broken" and op.one_run and not op.execution_id:
            used[op.tenant] += op.cpu_ms / 1000  # was told, and never came to an end
    kills = sum(life.how == "killed" for life in found.record.lives)
    for tenant, charged in sorted(found.charged_s.items()):
        least = used[tenant] * (1 - ROUNDING) - FORGOTTEN_S * kills - 0.05
        most = used[tenant] * (1 + ROUNDING) + unseen[tenant] + 0.05
        exact = tenant == found.metered
        check.figures[tenant] = {
            "charged_s": round(charged, 3),
            "used_s": round(used[tenant], 3),
            "without_a_result_s": round(unseen[tenant], 3),
            "kills": kills,
        }
        if charged < least:
            check.violations.append(
                f"{tenant} used {used[tenant]:.2f} s and was charged {charged:.2f} s"
                f" ({kills} kills may forget {FORGOTTEN_S * kills:.0f} s)"
            )
        # What a kept sandbox uses between its runs is charged and in no run's usage.
        if exact and charged > most:
            check.violations.append(
                f"{tenant} used {used[tenant]:.2f} s, {unseen[tenant]:.2f} s at most without a"
                f" result, and was charged {charged:.2f} s"
            )
    return check


CHECKS: tuple[Callable[[Evidence], Check], ...] = (
    answers, seen, trail, verified, leftovers, secrets, complaints, memory, descriptors, quotas,
)  # fmt: skip
