"""`belljar doctor` and the controls behind it: what it says is true of this machine (I8)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from belljar.engines.jail import checks
from belljar.engines.linux import cgroups

COMMAND = [sys.executable, "-m", "belljar.cli.main", "doctor"]


def doctor(*arguments: str, prefix: tuple[str, ...] = ()) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [*prefix, *COMMAND, *arguments, "--json"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )
    assert b"Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_sandboxes_work_here() -> None:
    status, findings = doctor()
    broken = [item for item in findings["controls"] if item["essential"] and not item["works"]]
    assert status == 0 and findings["ok"] and not broken
    assert findings["controls"][-1]["name"] == "sandbox"
    assert findings["versions"]["kernel"] == os.uname().release
    assert {item["name"] for item in findings["languages"]} == {
        "python",
        "javascript",
        "typescript",
        "bash",
        "go",
    }
    assert findings["home"]


def test_n1_the_network_is_tried_and_not_only_looked_for(tmp_path: Path) -> None:
    """Its libraries are not enough: a sandbox must reach the gateway."""
    assert doctor()[1]["network"]["ready"]
    broken = tmp_path / "home"
    broken.mkdir()
    (broken / "network").write_text("a file where the gateway keeps its authority")
    done = subprocess.run(
        [*COMMAND, "--json"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        env={**os.environ, "BELLJAR_HOME": str(broken)},
    )
    told = json.loads(done.stdout)["network"]
    assert not told["ready"] and told["hint"]


def test_every_control_of_a_result_has_a_line() -> None:
    """Settings.required names what a result's `isolation` names; doctor must know the same."""
    import belljar

    result = belljar.run("print(1)")
    assert set(result.isolation) <= {control.name for control in checks.controls()}


def test_what_does_not_work_says_why() -> None:
    for control in checks.controls():
        assert control.works or control.hint
        assert control.works or control.essential or "instead" in control.mechanism


def test_the_limits_are_those_that_detection_finds() -> None:
    """L2, L3: the line on memory is the mechanism a run really gets, or names its stand-in."""
    (memory,) = [control for control in checks.controls() if control.name == "memory"]
    found = cgroups.find_ours(ask_systemd=True)
    if isinstance(found, cgroups.Absent):
        assert not memory.works and found.hint in memory.hint and "watchdog" in memory.mechanism
    else:
        found.close()
        assert memory.works and memory.mechanism.startswith(f"cgroup-v{found.version}")


def test_trying_leaves_the_host_as_it_was() -> None:
    """No mount, no process, no host name, no loopback of ours remains."""

    def state() -> tuple[str, str, list[str]]:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
        return Path("/proc/self/mountinfo").read_text(), os.uname().nodename, children.split()

    before = state()
    checks.controls()
    assert state() == before


def test_few_open_files_are_enough() -> None:
    """Defect: each trial left two of them open, and a wall that works was refused."""
    status, findings = doctor(prefix=("sh", "-c", 'ulimit -n 40 && exec "$@"', "sh"))
    assert status == 0, [item for item in findings["controls"] if not item["works"]]


def test_namespaces_used_up_are_noticed() -> None:
    """In a user namespace that may make no further ones, the walls cannot be built."""
    if not shutil.which("unshare"):
        pytest.skip("needs unshare (util-linux)")
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    prefix = ("unshare", "--user", "--map-root-user", "sh", "-c", script, "sh")
    status, findings = doctor(prefix=prefix)
    by_name = {item["name"]: item for item in findings["controls"]}
    assert status == 1 and not findings["ok"]
    assert not by_name["user_namespaces"]["works"]
    assert "sysctl -w user.max_user_namespaces=" in by_name["user_namespaces"]["hint"]
    assert not by_name["sandbox"]["works"] and by_name["sandbox"]["hint"]


def test_the_table_is_for_people() -> None:
    done = subprocess.run(COMMAND, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    text = done.stdout.decode()
    assert done.returncode == 0 and "Sandboxes work here" in text
    for word in ("seccomp", "pivot_root", "Environments", "data", "typescript", "Data directory"):
        assert word in text
