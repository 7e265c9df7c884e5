"""R3: the host program is killed at random moments under load; nothing of Belljar stays.

Each round starts a program that uses Belljar from several threads, kills it with SIGKILL after
0.2 to 2 seconds, and looks from outside: for descendants, for a token in command lines, for control
groups, for files and sockets. `BELLJAR_CRASH_ROUNDS=200` makes it the long run.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

import belljar

ROUNDS = int(os.environ.get("BELLJAR_CRASH_ROUNDS", "20"))
SEED = int(os.environ.get("BELLJAR_CRASH_SEED", "0")) or secrets.randbits(32)
GONE_WITHIN_S = 3.0

PROGRAM = """
import random, sys, threading
import belljar

token = sys.argv[1]
codes = [
    ("python", "print(1)"),
    ("python", "import time; time.sleep(60)"),
    ("python", "while True: pass"),
    ("python", "import subprocess; subprocess.run(['sh', '-c', 'sleep 60; : " + token + "'])"),
    ("python", "import os, signal, time\\n"
               "for s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\\n"
               "for _ in range(5):\\n    if os.fork() == 0: os.setsid(); time.sleep(60)\\n"
               "os.kill(os.getpid(), signal.SIGSTOP)"),
    ("python", "open('/tmp/f', 'wb').write(bytes(10 << 20)); x = bytearray(50 << 20); 1 / 0"),
    ("python", "import os\\nwhile True: os.write(1, b'y' * 65536)"),
    ("bash", "(exec -a " + token + " sleep 60) & exec -a " + token + " sleep 60"),
    ("bash", "while :; do echo x > /tmp/$RANDOM; done"),
]
jar = belljar.Belljar(belljar.Settings(pool_size=3, concurrency=16))

def caller(number):
    chance = random.Random(f"{token}{number}")
    while True:
        language, code = chance.choice(codes)
        try:
            jar.run(code, language=language, timeout_s=chance.choice([0.05, 0.2, 1, 30]))
        except belljar.BelljarError as error:
            print(error, flush=True)

threads = [threading.Thread(target=caller, args=(n,), daemon=True) for n in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


@dataclass(frozen=True)
class Process:
    """A pid alone may be somebody else's by the time it is looked at again."""

    pid: int
    started: str

    def alive(self) -> bool:
        return (found := look(self.pid)) is not None and found[0] == self


def look(pid: int) -> tuple[Process, int] | None:
    """The process and its parent, or None when it is dead (zombies are: nothing of them runs)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else (Process(pid, fields[19]), int(fields[1]))


def descendants(roots: set[int]) -> set[Process]:
    names = [name for name in os.listdir("/proc") if name.isdigit()]
    everyone = [found for name in names if (found := look(int(name)))]
    family, found = set(roots), set[Process]()
    while more := {process for process, parent in everyone if parent in family} - found:
        found |= more
        family |= {process.pid for process in more}
    return found | {process for process, _ in everyone if process.pid in roots}


def held_by(pid: int) -> set[int]:
    """Whatever the program has a pidfd of: its zygotes and the first process of each sandbox."""
    found = set()
    for info in Path(f"/proc/{pid}/fdinfo").glob("*"):
        try:
            lines = info.read_text().splitlines()
        except OSError:
            continue
        found |= {int(line.split()[1]) for line in lines if line.startswith("Pid:")}
    return {number for number in found if number > 0 and number != pid}


def with_token(token: str) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and token.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                found.append(int(name))
        except OSError:
            continue
    return found


def groups_of(pid: int) -> list[str]:
    """The folders of a Belljar that this process started: in our groups or in one above."""
    points = {
        line.split()[4]
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if line.partition(" - ")[2].startswith("cgroup")
    }
    groups = [
        PurePosixPath(line.split(":", 2)[2])
        for line in Path("/proc/self/cgroup").read_text().splitlines()
    ]
    above = {str(path) for group in groups for path in (group, *group.parents)}
    return [
        str(path)
        for point in points
        for group in above
        for path in Path(f"{point}{group}", "belljar").glob(f"{pid}-*")
    ]


def mounts() -> set[str]:
    return set(Path("/proc/self/mountinfo").read_text().splitlines())


def sockets(word: str) -> list[str]:
    return [line for line in Path("/proc/net/unix").read_text().splitlines() if word in line]


@dataclass
class Round:
    pid: int
    token: str
    family: set[Process]
    gone_after_s: float | None = None
    groups_at_once: int = 0


def crash(folder: Path, chance: random.Random) -> Round:
    """Starts the program, kills it at a random moment, waits until its processes are gone."""
    token = f"crash-{secrets.token_hex(8)}"
    environment = {**os.environ, "TMPDIR": str(folder), "BELLJAR_HOME": str(folder / "home")}
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, token],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    time.sleep(chance.uniform(0.2, 2.0))
    assert program.poll() is None, program.communicate()[0]
    # Stopped for the moment it takes to write down its family; then it dies where it stood.
    program.send_signal(signal.SIGSTOP)
    family = descendants(held_by(program.pid) | {program.pid})
    program.kill()
    killed = time.monotonic()
    program.wait()
    assert program.stdout
    complaints = program.stdout.read()
    assert not complaints, complaints
    family = {process for process in family if process.pid != program.pid}
    round_ = Round(program.pid, token, family)
    while time.monotonic() < killed + GONE_WITHIN_S:
        if not any(process.alive() for process in family) and not with_token(token):
            round_.gone_after_s = time.monotonic() - killed
            break
        time.sleep(0.01)
    round_.groups_at_once = len(groups_of(program.pid))
    return round_


@pytest.mark.timeout(60 + ROUNDS * 8)
def test_a_killed_host_leaves_nothing(tmp_path: Path) -> None:
    """R3"""
    print(f"\nBELLJAR_CRASH_SEED={SEED}")
    chance = random.Random(SEED)
    before = mounts()
    rounds = [crash(tmp_path, chance) for _ in range(ROUNDS)]

    stayed = [
        (number, sorted(p.pid for p in one.family if p.alive()), with_token(one.token))
        for number, one in enumerate(rounds)
        if one.gone_after_s is None
    ]
    assert not stayed, "processes outlived their host"
    # The test itself must have had something to look for.
    assert sum(len(one.family) for one in rounds) > ROUNDS

    with belljar.Belljar() as jar:
        assert jar.run("print(1)").stdout == "1\n"
        left = {one.pid: groups for one in rounds if (groups := groups_of(one.pid))}
    assert not left, "control groups were not swept"
    assert mounts() == before
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []
    assert not any(sockets(one.token) or sockets(str(tmp_path)) for one in rounds)

    clean = sum(not one.groups_at_once for one in rounds)
    slowest = max(one.gone_after_s or 0 for one in rounds)
    processes = sum(len(one.family) for one in rounds)
    print(
        f"{ROUNDS} rounds, {processes} processes: all gone within {slowest:.2f} s;"
        f" {clean} rounds left nothing at all, the next start swept the groups of the others"
    )


def test_a_host_that_exits_without_closing_leaves_nothing(tmp_path: Path) -> None:
    """R3: os._exit, no clean-up of any kind, with a sandbox under way and others waiting."""
    token = f"crash-{secrets.token_hex(8)}"
    code = (
        "import belljar, os, sys, threading\n"
        "jar = belljar.Belljar()\n"
        "up = threading.Event()\n"
        f"jar.submit('echo; exec -a {token} sleep 60', language='bash',"
        " on_output=lambda *_: up.set())\n"
        "up.wait(20); os._exit(0)\n"
    )
    program = subprocess.run([sys.executable, "-c", code], timeout=30)
    assert program.returncode == 0
    deadline = time.monotonic() + GONE_WITHIN_S
    while with_token(token) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not with_token(token)
