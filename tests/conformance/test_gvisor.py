"""The conformance suite behind the engine `gvisor` (I5)."""

from __future__ import annotations

from belljar.testing import EngineConformance


class TestGvisor(EngineConformance):
    engine = "gvisor"
