"""The conformance suite behind the engine `docker` (I5)."""

from __future__ import annotations

from belljar.testing import EngineConformance


class TestDocker(EngineConformance):
    engine = "docker"
