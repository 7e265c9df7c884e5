"""`make soak`, short: a real server, real faults; it holds, it can be interrupted, it reports."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.alone  # it judges what is left on the machine

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def soaking(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Told to end if the test did not wait for it, so that its server ends, too."""
    argv = [sys.executable, "-m", "soak", "--workers", "3", "--rate", "6", "--seed", "11"]
    started = subprocess.Popen(
        [*argv, "--output", str(folder), *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield started
    finally:
        if started.poll() is None:
            started.terminate()
            started.communicate()


def figures(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "soak.json").read_text())
    return found


def test_a_short_soak_holds(tmp_path: Path) -> None:
    kinds = "kill-server,freeze-gateway,full-disk"
    with soaking(tmp_path, "--hours", "0.005", "--faults", kinds) as started:
        said, _ = started.communicate(timeout=150)
    assert started.returncode == 0, said
    found = figures(tmp_path)
    assert found["held"] and found["record"]["faults"][0]["kind"] == "kill-server"
    assert found["requests"]["print"]["right"] > 0
    assert (tmp_path / "report.md").read_text().startswith("# Soak")


def test_an_interrupt_ends_it_with_a_report(tmp_path: Path) -> None:
    with soaking(tmp_path, "--hours", "1", "--faults", "none") as started:
        assert started.stdout is not None
        assert any("ready:" in line for line in started.stdout)
        started.send_signal(signal.SIGINT)
        said, _ = started.communicate(timeout=150)
    found = figures(tmp_path)
    assert found["record"]["interrupted"], said
    assert "It was interrupted" in (tmp_path / "report.md").read_text()
    assert not [one for one in found["checks"] if one["name"] == "leftovers" and not one["held"]]
