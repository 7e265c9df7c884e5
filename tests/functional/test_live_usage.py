"""L7: what a run uses can be watched while it runs."""

from __future__ import annotations

import pytest

from belljar import Belljar, Usage

GROWS = """
import time
kept = bytearray(64 << 20)
end = time.monotonic() + 1.5
while time.monotonic() < end:
    pass
"""


def test_usage_is_reported_while_the_code_runs(jar: Belljar) -> None:
    """L7"""
    seen: list[Usage] = []
    result = jar.run(GROWS, on_usage=seen.append)
    assert result.success
    assert len(seen) >= 3
    cpu = [usage.cpu_ms for usage in seen]
    assert cpu == sorted(cpu) and cpu[-1] > cpu[0]
    assert cpu[-1] <= result.usage.cpu_ms + 50
    assert seen[-1].peak_memory_bytes > 64 << 20
    assert seen[-1].peak_processes == 1


def test_a_callback_that_fails_ends_the_run_and_is_told(jar: Belljar) -> None:
    """L7"""

    def fails(usage: Usage) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        jar.run(GROWS, on_usage=fails)
