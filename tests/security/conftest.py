"""One Belljar with the host's fixtures planted, for all containment probes of a session (I8)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from belljar import Belljar
from belljar.probes.fixtures import Fixtures
from belljar.probes.prover import Prover


@pytest.fixture(scope="session")
def planted() -> Iterator[Fixtures]:
    with Fixtures() as fixtures:
        yield fixtures


@pytest.fixture(scope="session")
def prover(planted: Fixtures) -> Iterator[Prover]:
    with Belljar() as jar, Prover(jar, planted, engine="jail") as prover:
        yield prover
