"""The containment probes behind the jail, each through the public API (I1-I4, I8, L1-L5, R3)."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from belljar import Belljar
from belljar.probes import Probe, load, prove, verdict
from belljar.probes.fixtures import Fixtures
from belljar.probes.prove import judge
from belljar.probes.prover import Prover

APPLICABLE = [probe for probe in load() if not probe.needs]
# What another way into the sandbox could leave open that the forked interpreter does not.
INSIDE = [p for p in APPLICABLE if p.judge == "inside" and p.language == "python"]
WITHOUT_A_WALL = [probe for probe in load() if probe.unwalled]


def _named(probes: list[Probe]) -> list[object]:
    return [pytest.param(probe, id=probe.id) for probe in probes]


@pytest.mark.parametrize("probe", _named(APPLICABLE))
def test_holds(prover: Prover, probe: Probe) -> None:
    """I8: what the probe attacks holds here."""
    found = judge(prover, probe)
    if found.outcome == "inapplicable":
        pytest.skip(found.detail)
    assert found.outcome == "held", f"{probe.title}: {found.detail} (expected {probe.expected})"


@pytest.mark.parametrize("probe", _named(INSIDE))
def test_holds_with_fresh_exec(prover: Prover, probe: Probe) -> None:
    """I1-I3: an interpreter executed anew is behind the same walls as a forked one."""
    results = [prover.run(probe, fresh_exec=True) for _ in range(min(probe.runs, 2))]
    found = verdict.read(probe, results[-1])
    assert found.outcome == "held", f"{probe.title}: {found.detail}"


@pytest.mark.parametrize("probe", _named(WITHOUT_A_WALL))
def test_says_broken_without_a_wall(probe: Probe, planted: Fixtures, tmp_path: Path) -> None:
    """A probe that holds everywhere is no evidence: on the bare host these must all object."""
    script = tmp_path / "main.py"
    script.write_text(probe.render({**planted.values, "INSIDE_SANDBOX_ACK": "no"}))
    for _ in range(min(probe.runs, 2)):
        bare = subprocess.run(
            [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
    assert f"PROBE {probe.id} BROKEN" in bare.stdout, bare.stdout + bare.stderr


def test_the_fixtures_can_be_reached_by_the_host(planted: Fixtures) -> None:
    """Attacks on things that are not there would prove nothing."""
    values = planted.values
    assert Path(values["HOST_CANARY_PATH"]).read_text().strip() == values["HOST_CANARY_TOKEN"]
    assert values["HOST_PROC_TOKEN"] in Path(f"/proc/{values['HOST_PID']}/cmdline").read_text()
    assert os.environ[values["HOST_ENV_NAME"]] == planted.memory_canary
    for probe_id in ("NW-03", "NW-04", "NW-14"):
        probe = next(probe for probe in load() if probe.id == probe_id)
        bare = subprocess.run(
            [sys.executable, "-c", probe.render(values)], capture_output=True, text=True, timeout=60
        )
        assert "BROKEN" in bare.stdout, f"{probe_id}: {bare.stdout}"


def test_prove_reports_by_boundary() -> None:
    """I8: one call runs them and says, per boundary, what held."""
    seen: list[tuple[int, int]] = []
    with Belljar() as jar:
        report = prove(
            jar,
            only=["PV-01", "PV-02", "NW-04", "NW-22"],
            on_progress=lambda item, done, total: seen.append((done, total)),
        )
    assert report.ok and report.engine == "jail"
    assert {(b.name, b.held, b.total, b.broken) for b in report.boundaries()} == {
        ("network", 1, 1, ()),
        ("privilege", 2, 2, ()),
    }
    assert [item.probe.id for item in report.inapplicable] == ["NW-22"]
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert report.to_dict()["broken"] == []


def test_a_hole_is_reported(prover: Prover) -> None:
    """I8: a probe that finds something makes the proof fail, as does one that says nothing."""
    probe = next(probe for probe in load() if probe.id == "PV-01")
    talks = dataclasses.replace(probe, code='print("PROBE PV-01 BROKEN: a hole")')
    silent = dataclasses.replace(probe, code="pass")
    assert judge(prover, talks) == verdict.Verdict("broken", "a hole")
    assert judge(prover, silent).outcome == "broken"
