"""How much memory this process and the sandboxes took at most."""

from __future__ import annotations

import re
from pathlib import Path

import belljar
from belljar.agents import Step

MIB = 1 << 20


class Peaks:
    def __init__(self) -> None:
        self._sandbox = 0
        self._counted_by = "the kernel"

    def step(self, step: Step) -> None:
        """Each sandbox, a branch too, counts from its own beginning."""
        self._sandbox = max(self._sandbox, step.result.usage.peak_memory_bytes)

    def ask(self, box: belljar.Sandbox) -> None:
        """Where no cgroup counts, the sandbox is asked: its own word for its main process."""
        if not self._sandbox:
            told = box.run("print(open('/proc/self/status').read())").stdout
            self._sandbox = _peak(told)
            self._counted_by = "its main process"

    def megabytes(self) -> dict[str, object]:
        """VmHWM, not ru_maxrss: that one counts the process which started us, too."""
        return {
            "host": _peak(Path("/proc/self/status").read_text()) // MIB,
            "sandbox": self._sandbox // MIB,
            "sandbox_counted_by": self._counted_by,
        }


def _peak(status: str) -> int:
    found = re.search(r"^VmHWM:\s+(\d{1,12}) kB", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
