"""`belljar doctor` and the controls behind it: what it says is true of this machine (I8)."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from belljar.engines.jail import checks
from belljar.engines.linux import cgroups, kernel
from tests import same_ids

COMMAND = [sys.executable, "-m", "belljar.cli.main", "doctor"]
# A program behind a filter that answers some system calls with an error: NUMBER=ERRNO … -- COMMAND
REFUSING = """
import ctypes, os, struct, sys
mark = sys.argv.index("--")
code = [(0x20, 0, 0, 0)]
for rule in sys.argv[1:mark]:
    number, error = map(int, rule.split("="))
    code += [(0x15, 0, 1, number), (0x06, 0, 0, 0x0005_0000 | error)]
code.append((0x06, 0, 0, 0x7FFF_0000))
filter = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in code))
program = ctypes.create_string_buffer(struct.pack("HP", len(code), ctypes.addressof(filter)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
os.execv(sys.argv[mark + 1], sys.argv[mark + 1:])
"""


def refusing(**answers: int) -> tuple[str, ...]:
    """A prefix: the command after it is refused these system calls."""
    rules = [f"{kernel.NUMBERS[name]}={code}" for name, code in answers.items()]
    return (sys.executable, "-c", REFUSING, *rules, "--")


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


@pytest.mark.parametrize(
    ("call", "code"),
    [("open_tree", errno.ENOSYS), ("move_mount", errno.EPERM), ("close_range", errno.ENOSYS)],
)
def test_what_plain_sandboxes_do_without_is_not_essential(call: str, code: int) -> None:
    status, findings = doctor(prefix=refusing(**{call: code}))
    assert status == 0 and findings["controls"][-1]["works"]
    assert findings["network"]["ready"] == (call == "close_range")


@pytest.mark.parametrize("call", ["pidfd_open", "memfd_create"])
def test_a_call_that_is_refused_is_not_taken_for_a_lack_of_room(call: str) -> None:
    status, findings = doctor(prefix=refusing(**{call: errno.ENOSYS}))
    first, *_, last = findings["controls"]
    assert status == 1 and not first["works"] and not last["works"]
    assert "ENOSYS" in first["hint"] and "SystemCallFilter=" in last["hint"]
    assert "used up" not in last["hint"]


def test_namespaces_used_up_are_noticed() -> None:
    """In a user namespace that may make no further ones, the walls cannot be built."""
    if not shutil.which("unshare"):
        pytest.skip("needs unshare (util-linux)")
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    prefix = (*same_ids.prefix(), "sh", "-c", script, "sh")
    status, findings = doctor(prefix=prefix)
    by_name = {item["name"]: item for item in findings["controls"]}
    assert status == 1 and not findings["ok"]
    assert not by_name["user_namespaces"]["works"]
    assert "sysctl -w user.max_user_namespaces=" in by_name["user_namespaces"]["hint"]
    assert not by_name["sandbox"]["works"] and by_name["sandbox"]["hint"]


# A root without /tmp, in a mount namespace.
WITHOUT_TMP = """
mount -t tmpfs none /mnt && cd /mnt
for each in /*; do case $each in
  /tmp | /mnt) ;;
  *) if [ -L $each ]; then cp -P $each .; elif [ -d $each ]
     then mkdir .$each && mount --rbind $each .$each; fi ;;
esac; done
pivot_root . . && umount -l . && cd / && exec "$@"
"""


def test_without_tmp_it_says_so() -> None:
    if not shutil.which("pivot_root", path="/usr/sbin:/sbin:/usr/bin:/bin"):
        pytest.skip("needs pivot_root (util-linux)")
    if sys.executable.startswith("/tmp/") or not os.path.isdir("/mnt"):
        pytest.skip("the interpreter is below /tmp, or there is no /mnt")
    prefix = (*same_ids.prefix(), "sh", "-c", WITHOUT_TMP, "sh")
    _, findings = doctor(prefix=prefix)
    hints = {item["mechanism"]: item["hint"] for item in findings["controls"]}
    assert "mkdir -m 1777 /tmp" in hints["pivot_root"]
    assert "walled in" in hints["all of it together"]
    assert "belljar doctor" not in hints["all of it together"]  # that is what was asked


@pytest.mark.parametrize(
    ("prefix", "words"),
    [
        (("unshare", "--user", "--map-user=4242", "env", "-u", "HOME"), "set BELLJAR_HOME"),
        (refusing(clone3=errno.EPERM), "is clone3 refused?"),
    ],
)
def test_what_stops_doctor_itself_is_said_in_one_line(prefix: tuple[str, ...], words: str) -> None:
    bare = {name: text for name, text in os.environ.items() if not name.endswith("_HOME")}
    done = subprocess.run([*prefix, *COMMAND], capture_output=True, text=True, env=bare)
    assert done.returncode == 125 and words in done.stderr and "Traceback" not in done.stderr


def test_a_terminal_need_not_know_our_marks() -> None:
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(COMMAND, capture_output=True, text=True, env=ascii_only)
    assert done.returncode == 0 and "Sandboxes work here" in done.stdout, done.stderr


def test_the_table_is_for_people() -> None:
    done = subprocess.run(COMMAND, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    text = done.stdout.decode()
    assert done.returncode == 0 and "Sandboxes work here" in text
    for word in ("seccomp", "pivot_root", "Environments", "data", "typescript", "Data directory"):
        assert word in text
