"""The restricted level of Python behind this wall (I5)."""

from __future__ import annotations

import pytest

from belljar.jar import Belljar
from belljar.model import Result
from belljar.testing.base import Suite


class Restricted(Suite):
    def test_i5_restricted_python_computes(self, jar: Belljar) -> None:
        result = self.restricted(jar, "import math\nprint(math.factorial(10), [n for n in 'ab'])")
        assert (result.status, result.stdout) == ("ok", "3628800 ['a', 'b']\n"), result.stderr
        assert result.isolation["language"].startswith("RestrictedPython")

    def test_i5_restricted_python_refuses(self, jar: Belljar) -> None:
        denied = self.restricted(jar, "print('ran')\nprint(().__class__)")
        assert (denied.status, denied.stdout) == ("denied", ""), denied.stderr
        assert [finding.line for finding in denied.findings] == [2]
        stopped = self.restricted(jar, "print('ran')\nimport os")
        assert (stopped.status, stopped.stdout) == ("error", "ran\n"), stopped.stderr
        assert stopped.error and stopped.error.name == "ImportError"

    def restricted(self, jar: Belljar, code: str) -> Result:
        pytest.importorskip("RestrictedPython")
        return jar.run(code, language_level="restricted", engine=self.engine, timeout_s=60)
