"""The conformance suite behind the engine `microvm` (I5)."""

from __future__ import annotations

import pytest

from belljar import Belljar
from belljar.testing import EngineConformance


class TestMicrovm(EngineConformance):
    engine = "microvm"
    time_scale = 8.0  # emulated, where KVM starts no machine

    @pytest.mark.slow
    @pytest.mark.parametrize("language", ["javascript", "typescript", "bash"])
    def test_s1_other_languages_have_a_state_too(self, jar: Belljar, language: str) -> None:
        """Each needs a snapshot of its own."""
        super().test_s1_other_languages_have_a_state_too(jar, language)
