"""The conformance suite behind the engine `gvisor` (I5)."""

from __future__ import annotations

from belljar import Belljar
from belljar.model import MIB
from belljar.testing import EngineConformance


class TestGvisor(EngineConformance):
    engine = "gvisor"

    def test_l4_the_number_of_files_is_bounded(self, jar: Belljar) -> None:
        """gVisor's tmpfs has no limit of files: what they take is the run's memory."""
        code = "n = 0\nwhile True:\n    open('/tmp/%d' % n, 'w').close()\n    n += 1"
        result = jar.run(code, memory_bytes=64 * MIB, timeout_s=100, engine=self.engine)
        assert result.status == "out_of_memory", result
        self.still_works(jar)
