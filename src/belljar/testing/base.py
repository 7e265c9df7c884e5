"""What the tests of every topic work with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import ClassVar

import pytest

from belljar.engines import registry
from belljar.engines.base import Capabilities
from belljar.errors import SandboxLost
from belljar.jar import Belljar
from belljar.kept.sync import Sandbox
from belljar.model import MIB
from belljar.settings import Settings

REQUIRED = "BELLJAR_REQUIRE_ENGINES"
"""Names of suites, separated by commas, or "all": one that cannot run here is then a failure."""


class Suite:
    """Class attributes describe the engine; a subclass sets those that differ."""

    engine: ClassVar[str] = ""
    """Its name in the registry."""
    label: ClassVar[str] = ""
    """The name of this suite, for BELLJAR_REQUIRE_ENGINES; by default the engine's."""
    time_scale: ClassVar[float] = 1.0
    """How much slower than a native process things may be; patience is multiplied by it."""
    at_once: ClassVar[int] = 8
    repeats: ClassVar[int] = 5
    """How often a thing that could go wrong by chance is tried."""
    small_memory_bytes: ClassVar[int] = 128 * MIB
    """A limit that a bare Python lives well within and a memory bomb passes quickly."""

    @classmethod
    def settings(cls) -> Settings:
        """Of every Belljar that the suite makes."""
        return Settings(pool_size=2)

    @property
    def can(self) -> Capabilities:
        return registry.capabilities(self.engine)

    def seconds(self, native: float) -> float:
        return native * self.time_scale

    @classmethod
    def check_available(cls) -> None:
        """Skips with the reason, or fails where somebody counts on this engine."""
        missing = registry.why_not(cls.engine, cls.settings())
        if missing is None:
            return
        why = f"{cls.engine}: {missing.why} ({missing.hint})"
        required = os.environ.get(REQUIRED, "").replace(" ", "").split(",")
        if "all" in required or (cls.label or cls.engine) in required:
            pytest.fail(f"required by {REQUIRED}, but not available: {why}")
        pytest.skip(why)

    def needs(self, capability: str) -> None:
        """For tests of what an engine may lack; that lacking it is refused is tested elsewhere."""
        if not getattr(self.can, capability):
            pytest.skip(f"{self.engine} declares that it has no {capability}")

    @classmethod
    def new_jar(cls) -> Belljar:
        cls.check_available()
        return Belljar(cls.settings())

    @pytest.fixture(scope="class")
    @classmethod
    def jar(cls) -> Iterator[Belljar]:
        """One for all tests of the class: a pool that is used again and again is the usual case."""
        with cls.new_jar() as jar:
            yield jar

    @pytest.fixture(scope="class")
    @classmethod
    def kept_box(cls, jar: Belljar) -> Iterator[Sandbox]:
        """One that is kept, for all tests of the class: each has names of its own in it."""
        if not registry.capabilities(cls.engine).kept:
            pytest.skip(f"{cls.engine} declares that it cannot keep sandboxes")
        with Sandbox(
            jar,
            engine=cls.engine,
            environment="base",
            env={"GIVEN": "yes"},
            files={"given/file.txt": b"a file"},
            inputs={"given/input.txt": b"an input"},
            max_runs=1000,
            timeout_s=min(120, cls.time_scale * 20),
        ) as box:
            yield box

    @pytest.fixture
    def box(self, kept_box: Sandbox) -> Iterator[Sandbox]:
        yield kept_box
        try:
            kept_box.run("None")
        except SandboxLost:  # by a test that failed half-way
            kept_box.rollback(kept_box.checkpoints()[-1])
