"""Code that attacks the line between a kept sandbox and its branches (S6, R3, L2, L3).

Judged from outside: in which groups its processes are, and which of them are left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import belljar
from belljar.engines.linux.cgroups.find import parse_membership
from belljar.engines.linux.cgroups.hierarchy import CONTROLLERS
from belljar.probes import host

Make = Callable[..., belljar.Sandbox]

NAMED = """
import ctypes, os, time
if os.fork() == 0:
    os.setsid()
    ctypes.CDLL(None).prctl(15, b"MARK", 0, 0, 0)
    time.sleep(300)
    os._exit(0)
"""
OURS = """
import ctypes, os, sys, time
frame = sys._getframe()
while type(frame.f_locals.get("self")).__name__ != "_Interpreter":
    frame = frame.f_back
theirs = type(frame.f_locals["self"])
honest = theirs._fork
"""
THIEF = (
    OURS
    + """
stolen = []

def entrances():
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink("/proc/self/fd/" + name).endswith(("/tasks", "/cgroup.procs")):
                yield int(name)
        except OSError:
            pass

def fork(self, order):
    stolen.extend(sorted(entrances()))
    if os.fork() == 0:
        os.setsid()
        for entrance in stolen[1:] or stolen:  # not where processes are counted, if that is apart
            os.write(entrance, b"0")
        ctypes.CDLL(None).prctl(15, b"MARK", 0, 0, 0)
        time.sleep(300)
        os._exit(0)
    honest(self, order)

theirs._fork = fork
"""
)
JOINER = (
    OURS
    + """
def fork(self, order):
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[os.readlink("/proc/self/fd/" + name).partition(":")[0]] = int(name)
        except OSError:
            pass
    if os.fork() == 0:
        libc = ctypes.CDLL(None)
        joined = [libc.setns(found[kind], 0) for kind in ("user", "pid")]
        if joined == [0, 0] and os.fork() == 0:
            os.setsid()
            libc.prctl(15, b"MARK", 0, 0, 0)
            time.sleep(300)
        os._exit(0)
    honest(self, order)

theirs._fork = fork
"""
)
CHAINS = """
import os, subprocess
os.symlink("/bin/sh", "MARK")
for _ in range(16):
    subprocess.Popen(["./MARK", "-c", "f() { f & exit 0; }; f"], start_new_session=True)
"""


@pytest.fixture(scope="module")
def jar() -> Iterator[belljar.Belljar]:
    with belljar.Belljar() as jar:
        yield jar


@pytest.fixture
def make(jar: belljar.Belljar) -> Iterator[Make]:
    made: list[belljar.Sandbox] = []

    def make(**options: Any) -> belljar.Sandbox:
        box = belljar.Sandbox(jar, environment="base", **options)
        made.append(box)
        box.run("x = 41")
        return box

    yield make
    for box in made:
        box.close()


def groups(pid: int) -> dict[str, str]:
    """Controller → group, of those that limit sandboxes."""
    found = parse_membership(Path(f"/proc/{pid}/cgroup").read_text())
    return {name: found.get(name, found.get("", "")) for name in CONTROLLERS}


def marked(box: belljar.Sandbox, code: str = NAMED) -> int:
    """The pid, as the host sees it, of a process that the code in there leaves running."""
    mark = host.new_mark()
    box.run(code.replace("MARK", mark))
    (pid,) = host.eventually_named(mark)
    return pid


def needs_groups(box: belljar.Sandbox) -> None:
    if not box.run("1").isolation["memory"].startswith("cgroup"):
        pytest.skip("no groups on this machine")


def test_l3_a_branch_is_in_groups_of_its_own_in_every_hierarchy(make: Make) -> None:
    parent = make()
    needs_groups(parent)
    (branch,) = parent.fork()
    ours, theirs = groups(marked(parent)), groups(marked(branch))
    assert [name for name in CONTROLLERS if ours[name] == theirs[name]] == []
    assert len({Path(group).name for group in theirs.values()}) == 1
    branch.close()


def test_l2_code_that_is_forked_gets_no_way_into_the_branchs_groups(make: Make) -> None:
    parent = make()
    needs_groups(parent)
    ours = groups(marked(parent))
    mark = host.new_mark()
    parent.run(THIEF.replace("MARK", mark))
    (branch,) = parent.fork()
    (thief,) = host.eventually_named(mark)
    assert groups(thief) == ours, "it is limited as before"
    assert parent.run("len(stolen)").value == "0"
    assert branch.run("x + 1").value == "42"
    branch.close()
    assert groups(thief) == ours
    parent.close()
    assert host.left_over(mark) == []


def test_r3_code_that_forks_faster_than_it_is_killed_ends_with_its_sandbox(make: Make) -> None:
    """Its walls stand on for the branch."""
    parent = make(processes=500, cpus=2)
    (branch,) = parent.fork()
    mark = host.new_mark()
    parent.run(CHAINS.replace("MARK", mark))
    assert host.eventually_named(mark)
    parent.close()
    assert host.left_over(mark) == []
    assert branch.run("x + 1").value == "42"
    branch.close()


def test_r3_code_that_went_into_a_branchs_namespaces_ends_with_its_own_sandbox(make: Make) -> None:
    """The owner of a namespace may join it (ADR 11)."""
    parent = make()
    needs_groups(parent)
    mark = host.new_mark()
    parent.run(JOINER.replace("MARK", mark))
    (branch,) = parent.fork()
    assert host.eventually_named(mark)
    parent.close()
    assert host.left_over(mark) == []
    assert branch.run("x + 1").value == "42"
    branch.close()
