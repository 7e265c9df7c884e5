"""The catalogue of probes is whole, and verdicts are read as they must be (I8)."""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from belljar.engines import registry
from belljar.engines.linux import syscalls
from belljar.model import Result, Status
from belljar.probes import Probe, judges, load
from belljar.probes.fixtures import ALLOWED, BY_JUDGE, CAPS, KNOWN, PLACES, PLANTED, Fixtures
from belljar.probes.probe import INSIDE, KEPT
from belljar.probes.prove import Proven, Report, choose
from belljar.probes.prover import RUNTIMES
from belljar.probes.verdict import read

# The probes that Belljar was given to hold; one that disappears would be a wall nobody watches.
GIVEN = """
AP-01 AP-02 AP-04 AP-06 AP-07 AP-08 AP-09 AP-11 AP-15
CC-03 CC-05 CC-06 CC-08 CC-09 CC-10 CC-11 CC-12 CC-14 CC-15 CC-17 CC-18 CC-21
FS-01 FS-02 FS-04 FS-05 FS-06 FS-07 FS-10 FS-11 FS-13 FS-15 FS-16 FS-17 FS-19 FS-21 FS-24 FS-28
FS-29
NW-03 NW-04 NW-06 NW-07 NW-08 NW-09 NW-11 NW-12 NW-14 NW-16 NW-17 NW-19 NW-22
PR-01 PR-04 PR-05 PR-06 PR-10 PR-11 PR-14 PR-15 PR-16 PR-17 PR-19 PR-20
PV-01 PV-02 PV-04 PV-05 PV-08 PV-09 PV-10 PV-11 PV-17 PV-18 PV-19 PV-21 PV-22 PV-24 PV-25
RS-01 RS-02 RS-03 RS-04 RS-05 RS-07 RS-10 RS-12 RS-13 RS-16 RS-18
"""
NOT_YET = {"AP-01", "AP-02", "AP-04", "AP-09", "AP-11", "AP-15", "NW-22"}
PREFIX = {
    "api": "AP",
    "control-channel": "CC",
    "filesystem": "FS",
    "network": "NW",
    "privilege": "PV",
    "process": "PR",
    "resources": "RS",
}


def _probe(probe_id: str) -> Probe:
    return next(probe for probe in load() if probe.id == probe_id)


def _result(stdout: str = "", status: Status = "ok", signal: int | None = None) -> Result:
    return Result(status=status, exit_code=0 if status == "ok" else 1, stdout=stdout, signal=signal)


def test_every_given_probe_is_there() -> None:
    ids = [probe.id for probe in load()]
    assert len(ids) == len(set(ids))
    assert set(GIVEN.split()) <= set(ids)
    assert len(ids) - len(GIVEN.split()) >= 20, "extended with our own"


def test_only_what_has_no_subject_yet_is_put_off() -> None:
    assert {probe.id for probe in load() if probe.needs} == NOT_YET


@pytest.mark.parametrize("probe", load(), ids=lambda probe: probe.id)
def test_row_is_whole(probe: Probe) -> None:
    assert probe.id.startswith(PREFIX[probe.boundary] + "-")
    assert probe.title and probe.expected and probe.source and probe.broken_when
    walls = {*registry.BUILT_IN, *(f"docker+{name}" for name in RUNTIMES), KEPT} - {"jail"}
    walls |= {f"{name}+{KEPT}" for name in registry.BUILT_IN}
    assert set(probe.not_behind) <= walls, "the jail holds them all"
    assert all(probe.not_behind.values()), "a reason for each"
    assert set(probe.fixtures) <= KNOWN
    assert probe.runs >= 1
    if probe.judge != INSIDE:
        assert judges.by_name(probe.judge)
        assert not probe.unwalled, "what is judged from outside says nothing by itself"
    elif not probe.needs:
        assert probe.code and probe.id in probe.render(dict.fromkeys(probe.fixtures, "1"))
        assert not set(probe.fixtures) & set(BY_JUDGE), "nobody would fill these in"


@pytest.mark.parametrize("probe", load(), ids=lambda probe: probe.id)
def test_rendered_code_is_complete(probe: Probe) -> None:
    code = probe.render(dict.fromkeys(probe.fixtures, "1"))
    assert "{{" not in code
    if probe.language == "python":
        ast.parse(code)
    elif probe.language == "bash" and (bash := shutil.which("bash")):
        assert subprocess.run([bash, "-n"], input=code.encode()).returncode == 0


def test_a_probe_makes_the_same_call_on_every_machine() -> None:
    """A wrong number for ARM64 would be refused for the wrong reason, and nobody would see it."""
    x86, arm = (
        {number: name for name, number in syscalls.numbers(machine).items()}
        for machine in ("x86_64", "aarch64")
    )
    seen = 0
    for probe in load():
        direct = re.findall(r"(?<![\w.])(?:try_)?syscall\((\d+), (\d+|None)\b", probe.code)
        listed = re.findall(r'\("(\w+)", (\d+), (\d+|None), \(', probe.code)
        for name, first, second in [("", *pair) for pair in direct] + listed:
            call = x86[int(first)]
            assert name in ("", call), f"{probe.id}: {first} is {call}"
            if second == "None":
                assert call not in arm.values(), f"{probe.id}: ARM64 has {call}"
            else:
                assert arm.get(int(second)) == call, f"{probe.id}: {second} is not {call}"
            seen += 1
    assert seen > 60


def test_a_missing_fixture_is_an_error() -> None:
    with pytest.raises(KeyError):
        _probe("FS-01").render({})


def test_unknown_names_are_not_an_empty_proof() -> None:
    with pytest.raises(ValueError, match="XX-01"):
        choose(["PV-01", "XX-01"])
    assert {probe.boundary for probe in choose(["network"])} == {"network"}
    assert [probe.id for probe in choose(["PV-01"])] == ["PV-01"]
    assert choose(None) == load()


def test_fixtures_fill_every_placeholder_and_are_removed() -> None:
    with Fixtures() as fixtures:
        values = dict(fixtures.values)
        assert set(values) == {*CAPS, *PLACES, *ALLOWED, *PLANTED}
        assert {*values, *BY_JUDGE} == KNOWN
        process = int(values["HOST_PID"])
        assert process > 1
    assert not Path(values["HOST_CANARY_PATH"]).parent.exists()
    assert values["HOST_ENV_NAME"] not in os.environ
    assert not Path(f"/proc/{process}").exists()


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (_result("PROBE PV-01 HELD\n"), "held"),
        (_result("INFO PV-01 x\nPROBE PV-01 HELD\n", status="error"), "held"),
        (_result("PROBE PV-01 BROKEN: a hole\n"), "broken"),
        (_result("PROBE PV-01 HELD\nPROBE PV-01 BROKEN: a hole\n"), "broken"),
        (_result("PROBE PV-02 HELD\n"), "broken"),
        (_result("PROBE PV-01 HELD?\n"), "broken"),
        (_result(""), "broken"),
        (_result(status="timeout"), "broken"),
        (_result(status="out_of_memory"), "broken"),
        (_result(status="killed", signal=signal.SIGKILL), "broken"),
        (_result(status="killed", signal=signal.SIGSYS), "held"),
    ],
)
def test_no_verdict_is_not_held(result: Result, outcome: str) -> None:
    assert read(_probe("PV-01"), result).outcome == outcome


def test_a_kill_counts_only_where_it_was_the_aim() -> None:
    bomb = _probe("RS-02")
    assert bomb.accepts_kill
    assert read(bomb, _result(status="out_of_memory")).outcome == "held"
    assert read(bomb, _result(status="timeout")).outcome == "broken"
    assert read(bomb, _result("PROBE RS-02 BROKEN: x\n", status="killed")).outcome == "broken"


def test_io_uring_must_fail_and_not_kill() -> None:
    killed = _result(status="killed", signal=signal.SIGSYS)
    assert read(_probe("PV-17"), killed).outcome == "broken"


def test_report_counts_what_was_tried() -> None:
    outcomes = {"PV-01": "held", "PV-02": "broken", "NW-19": "inapplicable", "NW-04": "held"}
    report = Report(
        engine="jail",
        isolation={},
        proven=tuple(
            Proven(probe=_probe(name), outcome=outcome, detail="", duration_ms=1.0)  # type: ignore[arg-type]
            for name, outcome in outcomes.items()
        ),
        duration_s=1.0,
    )
    assert not report.ok
    privilege, network = report.boundaries()
    assert (privilege.held, privilege.total, privilege.broken) == (1, 2, ("PV-02",))
    assert (network.held, network.total, network.inapplicable) == (1, 1, ("NW-19",))
    data = report.to_dict()
    assert data["broken"] == ["PV-02"] and data["inapplicable"] == ["NW-19"] and data["held"] == 2
    nothing = dataclasses.replace(report, proven=report.proven[2:3])
    assert not nothing.ok, "a proof of nothing is none"


def test_probes_that_act_on_their_agent_ask_first() -> None:
    """Run by mistake on a host, they must do nothing."""
    for probe_id in ("PR-17", "PR-50", "PR-56"):
        assert "INSIDE_SANDBOX_ACK" in _probe(probe_id).fixtures
