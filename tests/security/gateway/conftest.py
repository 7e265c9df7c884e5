"""A world, and one gateway for the tests of a file; after each, nobody was where nobody may be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from belljar.network import Allow
from tests import world as worlds
from tests.world.ways import Gate, Way

HOST = "api.example.com"
"""What `way` is allowed, beside *.wild.example.com; it has the usual server's address."""


@pytest.fixture(scope="session", autouse=True)
def possible() -> None:
    if why := worlds.why_not():
        pytest.skip(why)


@pytest.fixture(scope="module")
def world() -> Iterator[worlds.World]:
    with worlds.World() as made:
        yield made


@pytest.fixture(scope="module")
def gate(world: worlds.World) -> Iterator[Gate]:
    with Gate(world) as made:
        yield made


@pytest.fixture(autouse=True)
def watched(world: worlds.World) -> Iterator[None]:
    """Every test here ends with this question (N1)."""
    world.forget()
    world.answers(HOST)
    yield
    assert world.trespasses == []


@pytest.fixture
def way(gate: Gate) -> Iterator[Way]:
    with gate.open(Allow(HOST, "*.wild.example.com")) as opened:
        yield opened
