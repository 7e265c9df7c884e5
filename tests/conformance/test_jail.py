"""The conformance suite behind the engine `jail` (I5)."""

from __future__ import annotations

from belljar.testing import EngineConformance


class TestJail(EngineConformance):
    engine = "jail"
