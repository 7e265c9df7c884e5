"""The probes of files and of the API through a server (I8, I2): code goes in, and files and errors
come back, over HTTP. What a route itself must withstand is in test_server_hostile.py."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import pytest

from belljar import Belljar
from belljar.model import Result
from belljar.probes import Probe, load
from belljar.probes.fixtures import Fixtures
from belljar.probes.prove import judge
from belljar.probes.prover import Prover
from belljar.testing.served import Served, served

ALL = bool(os.environ.get("BELLJAR_ALL_PROBES"))
SLOW = {"FS-24", "FS-55", "FS-59", "FS-60", "FS-61", "FS-62", "FS-64"}
"""Left out where time is short: the same walls hold them as without a server."""
BOUNDARIES = ("filesystem", "api")


class ProverThere(Prover):
    """Runs at a server; the jar of this process only says what the operator allows."""

    def __init__(self, there: Belljar, jar: Belljar, fixtures: Fixtures) -> None:
        super().__init__(jar, fixtures, engine="jail")
        self._there = there

    def _begin(self, jar: Belljar, code: str, options: Mapping[str, Any]) -> Future[Result]:
        return self._there.submit(code, **options)

    def later_jar(self) -> Belljar:
        return self._there


def chosen() -> list[Any]:
    return [
        pytest.param(probe, id=probe.id)
        for probe in load()
        if probe.boundary in BOUNDARIES and not probe.needs and (ALL or probe.id not in SLOW)
    ]


@pytest.fixture(scope="module")
def server(planted: Fixtures) -> Iterator[Served]:
    """Started among the fixtures, so that its zygotes could have them."""
    with served(environments=True, sandboxes={"pool_size": 2, "build_environments": False}) as one:
        yield one


@pytest.fixture(scope="module")
def there(server: Served, planted: Fixtures) -> Iterator[ProverThere]:
    with (
        Belljar() as jar,
        Belljar(url=server.url, key=server.key) as remote,
        ProverThere(remote, jar, planted) as prover,
    ):
        yield prover


@pytest.mark.parametrize("probe", chosen())
def test_holds_through_a_server(there: ProverThere, server: Served, probe: Probe) -> None:
    found = judge(there, probe)
    if found.outcome == "inapplicable":
        pytest.skip(found.detail)
    assert found.outcome == "held", f"{probe.title}: {found.detail} (expected {probe.expected})"
    assert server.process.poll() is None
