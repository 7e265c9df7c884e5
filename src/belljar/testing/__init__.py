"""The conformance suite: what every wall must do, those of other packages too (I5).

    from belljar.testing import EngineConformance

    class TestMyEngine(EngineConformance):
        engine = "mine"

It needs pytest, and an engine that is registered (entry point `belljar.engines`).
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(f"{__name__}.suite")

from belljar.testing.conformance import EngineConformance  # noqa: E402

__all__ = ["EngineConformance"]
