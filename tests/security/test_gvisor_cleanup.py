"""R3: Belljar is killed under load behind gVisor; the next one finds and removes what it left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import belljar
from belljar.engines.gvisor import available
from belljar.engines.linux import cgroups

ROUNDS = int(os.environ.get("BELLJAR_CRASH_ROUNDS", "3"))
PROGRAM = """
import sys, threading
import belljar
jar = belljar.Belljar(belljar.Settings(engine="gvisor", pool_size=2))
codes = [
    "print(1)",
    "import time; time.sleep(60)",
    "while True: pass",
    "import os, signal, time\\n"
    "for s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\\n"
    "for _ in range(5):\\n    if os.fork() == 0: os.setsid(); time.sleep(60)\\n"
    "os.kill(os.getpid(), signal.SIGSTOP)",
    "import os\\nwhile True: os.write(1, b'y' * 65536)",
]
def caller(number):
    while True:
        jar.run(codes[number % len(codes)], timeout_s=20)
for number in range(5):
    threading.Thread(target=caller, args=(number,), daemon=True).start()
print("up", flush=True)
threading.Event().wait()
"""


@pytest.fixture(autouse=True)
def needs_gvisor() -> None:
    missing = available.why_not(belljar.Settings())
    if missing and os.environ.get("BELLJAR_REQUIRE_ENGINES"):
        pytest.fail(missing.why)
    if missing:
        pytest.skip(missing.why)


def users(home: Path) -> set[int]:
    """Processes of runsc that were started from below this home."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(b"--root=" + os.fsencode(home)) for word in words):
            found.add(int(entry.parent.name))
    return found


def groups_of(pid: int) -> list[str]:
    found = cgroups.detect()
    places = [] if isinstance(found, cgroups.Absent) else found.places
    return [str(path) for place in places for path in Path(place).glob(f"belljar-{pid}-*/*")]


def owners(home: Path) -> set[str]:
    folder = home / "gvisor"
    return {entry.name for entry in folder.iterdir()} if folder.exists() else set()


@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_a_killed_belljar_leaves_nothing_after_the_next_start(
    tmp_path: Path, round_number: int
) -> None:
    environment = {**os.environ, "BELLJAR_HOME": str(tmp_path)}
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE
    )
    assert program.stdout is not None and program.stdout.readline() == b"up\n"
    deadline = time.monotonic() + 60
    while not users(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert users(tmp_path), "no sandbox came up"
    time.sleep(random.Random(round_number).uniform(0, 4))
    program.send_signal(signal.SIGKILL)
    program.wait()
    dead = owners(tmp_path)
    assert dead and all(name.startswith(f"{program.pid}-") for name in dead)

    with belljar.Belljar(belljar.Settings(home=tmp_path, engine="gvisor", pool_size=0)) as jar:
        assert jar.run("print(1)").stdout == "1\n"
        assert not owners(tmp_path) & dead
        assert groups_of(program.pid) == []
    deadline = time.monotonic() + 10
    while (left := users(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == set() and owners(tmp_path) == set()


def test_what_a_living_belljar_has_is_not_touched(tmp_path: Path) -> None:
    """The sweep at the start is for the dead only."""
    settings = belljar.Settings(home=tmp_path, engine="gvisor", pool_size=0)
    with belljar.Belljar(settings) as first:
        running = first.submit("import time; time.sleep(2); print('whole')", timeout_s=60)
        while not users(tmp_path):
            time.sleep(0.02)
        with belljar.Belljar(settings) as second:
            assert second.run("print(1)").stdout == "1\n"
        assert running.result().stdout == "whole\n"
