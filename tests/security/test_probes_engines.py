"""The containment probes behind every other wall (I5, I8): what applies there must hold there.

The jail's are in test_probes.py. What does not apply is in `probes/behind.toml`, with the reason.
"""

from __future__ import annotations

import os
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
WALLS = {"docker_runsc": ("docker", "gvisor")}
APPLICABLE = [
    pytest.param(label, probe, id=f"{label}-{probe.id}")
    for label in ENGINES
    for probe in load()
    if not probe.needs and not probe.not_behind.keys() & set(WALLS.get(label, (label,)))
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
