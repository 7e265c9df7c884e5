"""An ordinary user's limits on cgroup v2: a scope from the user's systemd (ADR 15).

Where there is no such systemd these are skipped; `make test-machines` has guests where there is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from belljar import Belljar
from belljar.engines.linux import cgroups
from belljar.model import MIB

HOST = """
import belljar, sys
jar = belljar.Belljar()
assert jar.run("print(1)").isolation["memory"] == "cgroup-v2"
print("ready", flush=True)
sys.stdin.read()
jar.close()
"""


@pytest.fixture(scope="module", autouse=True)
def scope_can_be_had() -> Iterator[None]:
    found = cgroups.find_ours(ask_systemd=True)
    if isinstance(found, cgroups.Absent):
        pytest.skip(f"no scope here: {found.reason}")
    given = found.scope is not None
    found.close()
    if not given:
        pytest.skip("groups can be made here without asking systemd")
    yield


def scopes(pid: int) -> list[str]:
    """Of this host process; groups come and go while we look."""
    return [
        name
        for _, folders, _ in os.walk("/sys/fs/cgroup")
        for name in folders
        if name.startswith(f"belljar-{pid}-") and name.endswith(".scope")
    ]


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_l2_a_users_limits_are_the_kernels() -> None:
    """L2, L3: exact, not sampled; and our own process is where it was."""
    before = Path("/proc/self/cgroup").read_text()
    with Belljar() as jar:
        bomb = jar.run("x = bytearray(400 << 20)", memory_bytes=128 * MIB)
        fine = jar.run("x = bytearray(60 << 20); print(len(x))", memory_bytes=128 * MIB)
    assert bomb.isolation["memory"] == bomb.isolation["processes"] == "cgroup-v2"
    assert bomb.status == "out_of_memory" and bomb.usage.peak_memory_bytes <= 128 * MIB
    assert fine.status == "ok"
    assert Path("/proc/self/cgroup").read_text() == before


def test_r3_nothing_of_the_scope_stays() -> None:
    """R3: after close, and after a crash of the host."""
    with Belljar() as jar:
        jar.run("print(1)")
        assert scopes(os.getpid())
    assert until(lambda: not scopes(os.getpid()))
    with subprocess.Popen(
        [sys.executable, "-c", HOST], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"ready\n"
        asked = scopes(host.pid)
        host.send_signal(signal.SIGKILL)
    if not asked:  # this process is alone in a delegated group, and a child of it has room there
        pytest.skip("a program that this one starts needs no scope here")
    assert until(lambda: not scopes(host.pid))


def test_r3_a_forked_copy_of_the_host_holds_nothing_up() -> None:
    """Neither the end of a Belljar nor the scope."""
    jar = Belljar()
    jar.run("print(1)")
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        jar.close()
        assert until(lambda: not scopes(os.getpid()))
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_k1_pids_of_another_namespace_are_nobodys_business() -> None:
    """systemd would move whoever has that number outside."""
    code = (
        "from belljar.engines.linux.cgroups.scope import NoScope, Scope\n"
        "try:\n    Scope()\nexcept NoScope as error:\n    print(error)"
    )
    done = subprocess.run(
        ["unshare", "--user", "--map-current-user", "--pid", "--fork", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "pids of its own" in done.stdout, done.stderr
