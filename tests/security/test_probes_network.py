"""The probes of the network with a network (N1, I4): what holds without one holds with one.

Every sandbox here may reach one name through the gateway, and that name leads to the host's own
loopback, where nobody may come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from belljar import Belljar, Settings
from belljar.jar import Belljar as Jar
from belljar.probes import Probe, load
from belljar.probes.fixtures import ALLOWED, Fixtures
from belljar.probes.kept import KeptProver
from belljar.probes.prove import judge
from belljar.probes.prover import Live, Prover

NAME = ALLOWED["ALLOWED_HOST"]
NETWORK = [probe for probe in load() if probe.boundary == "network" and not probe.needs]
SLOW = {"NW-16", "NW-17", "NW-50", "NW-51"}
"""They wait, or use many sandboxes."""


class WithNetwork(Prover):
    """Whatever is run may reach a name."""

    def _options(self, probe: Probe, options: Mapping[str, Any]) -> dict[str, Any]:
        return super()._options(probe, {"network": [NAME], **options})

    def _submit(self, live: Live, jar: Jar, code: str, options: Mapping[str, Any]) -> None:
        super()._submit(live, jar, code, {"network": [NAME], **options})


class KeptWithNetwork(WithNetwork, KeptProver):
    pass


@pytest.fixture(scope="module")
def jar() -> Iterator[Belljar]:
    with Belljar(Settings(network_names={NAME: "127.0.0.1"})) as jar:
        yield jar


@pytest.fixture(scope="module")
def networked(jar: Belljar, planted: Fixtures) -> Iterator[Prover]:
    with WithNetwork(jar, planted, engine="jail") as prover:
        yield prover


@pytest.fixture(scope="module")
def kept(jar: Belljar, planted: Fixtures) -> Iterator[Prover]:
    with KeptWithNetwork(jar, planted, engine="jail") as prover:
        yield prover


def _chosen() -> list[object]:
    slow = [pytest.mark.slow]
    return [
        pytest.param(probe, id=probe.id, marks=slow if probe.id in SLOW else [])
        for probe in NETWORK
    ]


@pytest.mark.parametrize("probe", _chosen())
def test_holds_with_a_network(networked: Prover, probe: Probe) -> None:
    found = judge(networked, probe)
    assert found.outcome == "held", f"{probe.title}: {found.detail} (expected {probe.expected})"


@pytest.mark.parametrize("probe", _chosen())
def test_holds_with_a_network_in_a_kept_sandbox(kept: Prover, probe: Probe) -> None:
    found = judge(kept, probe)
    if found.outcome == "inapplicable":
        pytest.skip(found.detail)
    assert found.outcome == "held", f"{probe.title}: {found.detail} (expected {probe.expected})"


def test_there_was_a_network(networked: Prover) -> None:
    """Probes that ran without one would have proved nothing here."""
    result = networked.run_code("import os; print(os.environ['https_proxy'])")
    assert result.stdout.strip() == "http://127.0.0.1:3128"
    assert result.isolation["network"].startswith("named hosts")


def test_nw56_says_broken_where_the_ports_are_free(networked: Prover) -> None:
    probe = next(probe for probe in NETWORK if probe.id == "NW-56")
    found = networked.run(probe, network=()).stdout
    assert "BROKEN" in found and "127.0.0.1:3128 is answered by the code" in found
