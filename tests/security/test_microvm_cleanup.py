"""R3: the host program is killed under load; no machine of it stays, nor anything else."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from belljar import Belljar, Settings
from belljar.testing import EngineConformance

ROUNDS = int(os.environ.get("BELLJAR_CRASH_ROUNDS", "4"))
GONE_WITHIN_S = 5.0
PROGRAM = """
import threading
import belljar

jar = belljar.Belljar(belljar.Settings(engine="microvm", pool_size=2, concurrency=4))
print("begun", flush=True)

def caller():
    while True:
        jar.run("import os, time\\nos.fork()\\ntime.sleep(0.2)", timeout_s=60)
        print("done", flush=True)

threads = [threading.Thread(target=caller, daemon=True) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


class Suite(EngineConformance):
    __test__ = False
    engine = "microvm"


def started(pid: int) -> str:
    """Empty for the dead. With the pid it names a process for good."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def family(root: int) -> dict[int, str]:
    """Everybody below `root`, as pid → start time."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(name)] = int(stat[1])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: begun for pid in found - {root} if (begun := started(pid))}


def groups(pid: int) -> list[Path]:
    return [path for path in Path("/sys/fs/cgroup").glob(f"**/belljar-{pid}-*") if path.is_dir()]


@pytest.mark.slow
def test_no_machine_outlives_its_host() -> None:
    Suite.check_available()
    home = Settings().home / "microvm"
    chance = random.Random()
    for _ in range(ROUNDS):
        before = set(home.rglob("*-*"))
        host = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
        assert host.stdout is not None
        for wanted in ("begun", "done"):
            assert host.stdout.readline().strip() == wanted
        time.sleep(chance.uniform(0, 2))
        left = family(host.pid)
        machines = [p for p in left if b"qemu" in Path(f"/proc/{p}/cmdline").read_bytes()]
        assert machines, "no machine was running: nothing is tested"
        os.kill(host.pid, signal.SIGKILL)
        host.wait()
        deadline = time.monotonic() + GONE_WITHIN_S
        while any(started(pid) == begun for pid, begun in left.items()):
            assert time.monotonic() < deadline, "a machine outlived its host"
            time.sleep(0.05)
        with Belljar(Settings(engine="microvm", pool_size=0)) as next_one:
            assert next_one.run("print(1)").stdout == "1\n"
        assert not groups(host.pid)
        assert set(home.rglob("*-*")) <= before | set(home.glob("snapshots/*"))


def test_a_launcher_that_dies_takes_its_machines_along_and_is_replaced() -> None:
    Suite.check_available()
    with Belljar(Settings(engine="microvm", pool_size=1)) as jar:
        assert jar.run("print(1)").stdout == "1\n"
        jar.warm("base", 1)
        left = family(os.getpid())
        machines = {p for p in left if b"qemu" in Path(f"/proc/{p}/cmdline").read_bytes()}
        launchers = {
            p for p in left if b"microvm import launcher" in Path(f"/proc/{p}/cmdline").read_bytes()
        }
        assert machines and len(launchers) == 1
        os.kill(launchers.pop(), signal.SIGKILL)
        deadline = time.monotonic() + GONE_WITHIN_S
        while any(started(pid) == left[pid] for pid in machines):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert jar.run("print(2)").stdout == "2\n"


def test_a_closed_belljar_leaves_nothing_behind() -> None:
    Suite.check_available()
    others = family(os.getpid())
    with Belljar(Settings(engine="microvm", pool_size=2)) as jar:
        assert jar.run("print(1)").stdout == "1\n"
        mine = dict(family(os.getpid()).items() - others.items())
        assert mine
        descriptors = len(os.listdir("/proc/self/fd"))
    assert not any(started(pid) == begun for pid, begun in mine.items())
    assert len(os.listdir("/proc/self/fd")) < descriptors
