"""The conformance suite behind the engine `microvm` (I5)."""

from __future__ import annotations

from belljar.testing import EngineConformance


class TestMicrovm(EngineConformance):
    engine = "microvm"
    time_scale = 8.0  # emulated, where KVM starts no machine
