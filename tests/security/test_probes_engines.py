"""The containment probes behind every other wall (I5, I8): what applies there must hold there.

The jail's are in test_probes.py. What does not apply is in `probes/behind.toml`, with the reason.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from belljar import Belljar, Settings
from belljar.engines import registry
from belljar.probes import Probe, load
from belljar.probes.fixtures import Fixtures
from belljar.probes.prove import judge
from belljar.probes.prover import Prover
from belljar.testing.base import REQUIRED

ENGINES = {
    "docker": ("docker", Settings()),
    "docker_runsc": ("docker", Settings(docker_runtime="runsc")),
    "gvisor": ("gvisor", Settings()),
    "microvm": ("microvm", Settings()),
    "wasm": ("wasm", Settings()),
}
WALLS = {"docker_runsc": ("docker", "docker+runsc")}
EVERY = {"docker": 4, "docker_runsc": 16, "gvisor": 8, "microvm": 20, "wasm": 2}
"""Of each boundary every n-th probe, for slow walls: behind an emulated machine all of them take a
quarter of an hour. `belljar prove --engine all` leaves none out, nor does BELLJAR_ALL_PROBES=1."""


def applicable(label: str) -> Iterator[Probe]:
    every = 1 if os.environ.get("BELLJAR_ALL_PROBES") else EVERY[label]
    seen: Counter[str] = Counter()
    for probe in load():
        if probe.needs or probe.not_behind.keys() & set(WALLS.get(label, (label,))):
            continue
        seen[probe.boundary] += 1
        if seen[probe.boundary] % every == 1 % every:
            yield probe


APPLICABLE = [
    pytest.param(label, probe, id=f"{label}-{probe.id}")
    for label in ENGINES
    for probe in applicable(label)
]


@pytest.fixture(scope="module")
def provers(planted: Fixtures) -> Iterator[dict[str, Prover]]:
    """One per engine, made at its first probe."""
    made: dict[str, Prover] = {}
    yield made
    for prover in made.values():
        prover.__exit__(None, None, None)
        prover.jar.close()


def behind(label: str, provers: dict[str, Prover], planted: Fixtures) -> Prover:
    if label not in provers:
        engine, settings = ENGINES[label]
        if missing := registry.why_not(engine, settings):
            required = os.environ.get(REQUIRED, "").replace(" ", "").split(",")
            if "all" in required or label in required:
                pytest.fail(f"required by {REQUIRED}, but not available: {missing.why}")
            pytest.skip(f"{engine}: {missing.why}")
        provers[label] = Prover(Belljar(settings), planted, engine=engine).__enter__()
    return provers[label]


@pytest.mark.parametrize(("label", "probe"), APPLICABLE)
def test_holds(label: str, probe: Probe, provers: dict[str, Prover], planted: Fixtures) -> None:
    """I8: what the probe attacks holds behind this wall."""
    found = judge(behind(label, provers, planted), probe)
    if found.outcome == "inapplicable":
        pytest.skip(found.detail)
    assert found.outcome == "held", f"{probe.title}: {found.detail} (expected {probe.expected})"
