"""The conformance suite behind Docker with gVisor's runtime (I5)."""

from __future__ import annotations

import pytest

from belljar import Settings
from belljar.testing import EngineConformance


@pytest.mark.slow
class TestDockerRunsc(EngineConformance):
    engine = "docker"
    label = "docker_runsc"
    time_scale = 3.0

    @classmethod
    def settings(cls) -> Settings:
        return Settings(pool_size=2, docker_runtime="runsc")
