"""`make soak`, short: a real server, real faults; it holds, it can be interrupted, it reports."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.alone  # it judges what is left on the machine

ROOT = Path(__file__).resolve().parents[2]


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "soak", "--workers", "3", "--rate", "6", "--seed", "11"]
    return subprocess.Popen(
        [*argv, "--output", str(folder), *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def figures(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "soak.json").read_text())
    return found


def test_a_short_soak_holds(tmp_path: Path) -> None:
    kinds = "restart-server,freeze-server,freeze-gateway"
    soaking = start(tmp_path, "--hours", "0.007", "--faults", kinds)
    said, _ = soaking.communicate(timeout=170)
    assert soaking.returncode == 0, said
    found = figures(tmp_path)
    assert found["held"] and {one["kind"] for one in found["record"]["faults"]}
    assert found["requests"]["print"]["right"] > 0
    assert (tmp_path / "report.md").read_text().startswith("# Soak")


def test_an_interrupt_ends_it_with_a_report(tmp_path: Path) -> None:
    soaking = start(tmp_path, "--hours", "1", "--faults", "none")
    assert soaking.stdout is not None
    for line in soaking.stdout:
        if "ready:" in line:
            break
    soaking.send_signal(signal.SIGINT)
    said, _ = soaking.communicate(timeout=150)
    found = figures(tmp_path)
    assert found["record"]["interrupted"], said
    assert "It was interrupted" in (tmp_path / "report.md").read_text()
    assert not [one for one in found["checks"] if one["name"] == "leftovers" and not one["held"]]
