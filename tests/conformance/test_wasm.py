"""The conformance suite behind the engine `wasm` (I5)."""

from __future__ import annotations

from belljar.testing import EngineConformance


class TestWasm(EngineConformance):
    engine = "wasm"
