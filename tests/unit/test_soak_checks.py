"""Each check of a soak is seen failing on a record that was doctored, and holding on one that was
not."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from soak import checks, report
from soak.checks import Check, Evidence
from soak.faults import plan
from soak.harm import ENDING, FAULTS, LONG, usual
from soak.record import Fault, Life, Op, Record, Sample
from soak.soaking import complaints

Doctoring = Callable[[Evidence], Evidence | None]
PRINTED = hashlib.sha256(b"t1\n").hexdigest()


def op(number: int, **more: Any) -> Op:
    given: dict[str, Any] = {
        "token": f"t{number}",
        "tenant": "alice",
        "kind": "print",
        "began": float(number),
        "ended": number + 0.1,
        "outcome": "right",
        "http": 200,
        "one_run": True,
        "execution_id": f"id{number}",
        "status": "ok",
        "exit_code": 0,
        "stdout_sha256": PRINTED,
        "cpu_ms": 100.0,
    }
    return Op(**(given | more))


def lines(number: int) -> list[dict[str, Any]]:
    attempt = {"kind": "attempt", "id": f"id{number}", "action": "run", "request_id": f"t{number}"}
    end = {"kind": "end", "id": f"id{number}", "status": "ok", "exit_code": 0}
    usage = {"usage": {"cpu_ms": 100.0}, "stdout_sha256": PRINTED}
    when = {"tenant": "alice", "seq": number, "time": "2030-01-31T00:00:00.000000Z"}
    return [attempt | when, end | usage]


def good() -> Evidence:
    """Ten runs, one fault between the seventh and the eighth, nothing wrong."""
    record = Record(seed=1, epoch=0.0, duration_s=400.0)
    record.ops = [op(number) for number in range(1, 11)]
    record.faults = [Fault(kind="kill-gateway", began=7.5, lifted=7.6, recovered=7.7)]
    record.lives = [Life(pid=5, began=0.0, ready=1.0, ended=400.0, how="stopped", exit_status=0)]
    record.samples = [
        Sample(
            at=float(at),
            pid=5,
            memory_bytes=(100 << 20) + at % 7 * 1000,
            descriptors=60 + at % 5,
            threads=9,
            processes=8,
            gateway_bytes=40 << 20,
        )
        for at in range(0, 400, 2)
    ]
    return Evidence(
        record=record,
        lines=[line for number in range(1, 11) for line in lines(number)],
        verified={"sound": True, "lines": 20, "head": "20:ab", "problem": "", "at": None},
        charged_s={"alice": 1.0},
        metered="alice",
        left=[],
        leaks=[],
        complaints=[],
    )


def test_a_good_record_holds() -> None:
    found = checks.judge(good())
    assert [check.name for check in found if not check.held or check.note] == []


def changed(number: int, **more: Any) -> Doctoring:
    """One request, changed."""

    def doctor(found: Evidence) -> None:
        ops = found.record.ops
        ops[number - 1] = replace(ops[number - 1], **more)

    return doctor


def rewritten(edit: Callable[[list[dict[str, Any]]], Any]) -> Doctoring:
    """The trail, changed."""

    def doctor(found: Evidence) -> Evidence:
        copied = copy.deepcopy(list(found.lines))
        edit(copied)  # type: ignore[arg-type]
        return replace(found, lines=copied)

    return doctor


def grown(name: str, by: int) -> Doctoring:
    def doctor(found: Evidence) -> None:
        samples = found.record.samples
        for number, sample in enumerate(samples):
            more = getattr(sample, name) + by * number // len(samples)
            samples[number] = replace(sample, **{name: more})

    return doctor


def with_(**more: Any) -> Doctoring:
    return lambda found: replace(found, **more)


def recorded(change: Callable[[Record], Any]) -> Doctoring:
    def doctor(found: Evidence) -> None:
        change(found.record)

    return doctor


REFUSED: dict[str, Any] = {"outcome": "refused", "execution_id": "", "status": "", "cpu_ms": 0.0}


@pytest.mark.parametrize(
    ("name", "doctor"),
    [
        ("answers", changed(3, outcome="wrong", why="not t3")),
        ("answers", changed(3, outcome="broken", execution_id="", why="reset")),
        ("answers", changed(3, **REFUSED, http=503, code="overloaded", retryable=True)),
        # During a fault: told for good, unforeseen, or failed without a word.
        ("answers", changed(8, **REFUSED, http=409, code="unavailable", retryable=False)),
        ("answers", changed(8, **REFUSED, http=500, code="internal", retryable=True)),
        ("answers", changed(8, outcome="wrong", failed=True)),
        ("answers", changed(8, outcome="wrong", failed=False, explained=True)),
        ("answers", recorded(lambda record: record.ops.clear())),
        ("on the way", recorded(lambda record: record.seen.append("it did not recover"))),
        ("on the way", recorded(lambda record: setattr(record.faults[0], "recovered", None))),
        ("on the way", recorded(lambda record: setattr(record.lives[0], "how", "died"))),
        ("trail", rewritten(lambda trail: trail.pop(0))),
        ("trail", rewritten(lambda trail: trail.pop(1))),
        ("trail", rewritten(lambda trail: trail.append(trail[1]))),
        ("trail", rewritten(lambda trail: trail.append(trail[0] | {"id": "another"}))),
        ("trail", rewritten(lambda trail: trail[1].update(status="error"))),
        ("trail", rewritten(lambda trail: trail[1].update(exit_code=1))),
        ("trail", rewritten(lambda trail: trail[1].update(kind="lost"))),
        ("trail", rewritten(lambda trail: trail[1].update(stdout_sha256="00"))),
        ("trail", rewritten(lambda trail: trail[1].update(usage={"cpu_ms": 0.0}))),
        ("trail", changed(3, egress=1)),
        ("trail", changed(3, **REFUSED, http=429, code="queue_full", retryable=True)),
        ("trail", changed(3, **REFUSED, http=503, code="trail_error", retryable=True)),
        (
            "trail",
            changed(3, **REFUSED, token="t0", http=500, code="trail_error", retryable=False),
        ),
        ("verify", with_(verified={"sound": False, "problem": "line 7 is missing", "at": 7})),
        ("verify", with_(verified={})),
        ("leftovers", with_(left=["process 7: python"])),
        ("secrets", with_(leaks=["disk/trail.db"])),
        ("log", with_(complaints=["failed /v1/runs: KeyError"])),
        ("memory", grown("memory_bytes", 100 << 20)),
        ("descriptors", grown("descriptors", 60)),
        ("quotas", with_(charged_s={"alice": 0.5})),
        ("quotas", with_(charged_s={"alice": 1.5})),
        ("quotas", changed(3, outcome="broken", execution_id="", cpu_ms=500.0, began=3.0)),
    ],
)
def test_each_check_fails_on_a_doctored_record(name: str, doctor: Doctoring) -> None:
    found = good()
    found = doctor(found) or found
    check = next(check for check in checks.judge(found) if check.name == name)
    assert check.violations


@pytest.mark.parametrize(
    "doctor",
    [
        changed(8, **REFUSED, http=503, code="starting", retryable=True),
        changed(8, outcome="broken", execution_id="", why="reset"),
        changed(8, outcome="wrong", failed=True, explained=True),
        changed(8, **REFUSED, http=410, code="sandbox_lost", retryable=False),
        changed(8, **REFUSED, http=500, code="trail_error", retryable=False),
        changed(8, outcome="left", execution_id=""),
    ],
)
def test_what_a_fault_explains_is_no_violation(doctor: Doctoring) -> None:
    found = good()
    found = doctor(found) or found
    assert checks.answers(found).held


def test_a_kill_may_forget_a_second_and_no_more() -> None:
    found = good()
    found.record.lives[0].how = "killed"
    found.record.ops[2].cpu_ms = 100.0
    used = [{"kind": "attempt", "id": "big", "action": "x", "tenant": "bob"}]
    used += [{"kind": "end", "id": "big", "status": "ok", "usage": {"cpu_ms": 5000.0}}]
    found = replace(found, lines=[*found.lines, *used])
    assert checks.quotas(replace(found, charged_s={"bob": 4.1})).held
    assert not checks.quotas(replace(found, charged_s={"bob": 3.0})).held


def test_short_lives_and_another_day_are_not_judged() -> None:
    found = good()
    del found.record.samples[20:]
    assert checks.memory(found).note and checks.memory(found).held
    assert checks.quotas(replace(found, charged_s=None)).note


def test_tracebacks_in_the_log_are_told_once_each() -> None:
    trace = json.dumps('Traceback\n File "a"\nKeyError: 1')
    log = (
        '{"event": "request", "status": 200}\n'
        + f'{{"event": "failed", "route": "/x", "exception": {trace}}}\n' * 2
        + 'Traceback (most recent call last):\n  File "b"\nOSError: full\n'
    )
    found = complaints(log)
    assert len(found) == 2 and "KeyError: 1" in found[0] and "(2 times)" in found[0]
    assert "OSError: full" in found[1]


def test_the_same_seed_plans_the_same_faults() -> None:
    kinds = tuple(FAULTS)
    planned = plan(7, 3600.0, kinds)
    assert planned == plan(7, 3600.0, kinds) != plan(8, 3600.0, kinds)
    assert {kind for _, kind in planned} == set(kinds)
    assert not any(kind in ENDING for at, kind in planned if at > 1800.0)
    assert {kind for _, kind in plan(7, 200.0, kinds)} > ENDING
    assert set(usual(300.0)) == set(kinds) - LONG and usual(3600.0) == kinds
    assert plan(7, 60.0, ()) == []


def test_violations_of_one_kind_are_told_once() -> None:
    many = [f"{n}.1 s: bob's print t1x00000{n}: wrong" for n in range(5)]
    found = report.grouped([*many, "another"])
    assert found == ["0.1 s: bob's print t1x000000: wrong (and 4 like it)", "another"]


def test_the_report_says_what_was_violated_and_draws(tmp_path: Path) -> None:
    found = replace(good(), left=["process 7: a <b> | c"])
    judged = checks.judge(found)
    options = {"hours": 0.1, "seed": 1}
    text = report.write(found.record, judged, tmp_path, options).read_text()
    assert "Not everything held" in text and "HOURS=0.1 SEED=1" in text
    assert "process 7: a &lt;b> \\| c" in text and "kill-gateway" in text
    for name in ("latency", "throughput", "memory", "descriptors"):
        ElementTree.fromstring((tmp_path / f"{name}.svg").read_text())
        assert f"({name}.svg)" in text
    held = [check for check in judged if isinstance(check, Check) and check.held]
    assert len(held) == len(judged) - 1
