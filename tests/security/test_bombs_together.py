"""L1-L5: five kinds of bomb at once, among ten runs that behave.

The host is a program of its own here, so that its memory is that of Belljar and of nothing else.
The flood would be ten gigabytes; at the speed of a pipe that takes longer than a test may, so it
and the two that never end are stopped by a time-out of eight seconds.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from typing import Any

import pytest

MIB = 1 << 20
TIMEOUT_S = 8

HOST = """
import json, sys, threading
import belljar

jobs = json.load(sys.stdin)
answers = {}
with belljar.Belljar() as jar:
    start = threading.Barrier(len(jobs))

    def run(name, code, options):
        start.wait()
        answers[name] = jar.run(code, **options).to_dict()

    threads = [threading.Thread(target=run, args=job) for job in jobs]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
json.dump({"answers": answers, "peak_kib": int(status["VmHWM"].split()[0])}, sys.stdout)
"""

BOMBS: dict[str, str] = {
    "memory": "x = []\nwhile True: x.append(bytearray(1 << 20))",
    "forks": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "disk": "with open('/workspace/big', 'wb') as f:\n    while True: f.write(bytes(1 << 20))",
    "flood": "import os\nx = b'y' * (1 << 20)\nfor _ in range(10 << 10):\n"
    "    left = memoryview(x)\n    while left: left = left[os.write(1, left):]",
    "processor": "import os\nfor _ in range(3): os.fork()\nwhile True: pass",
}

GOOD: list[tuple[str, str]] = [
    ("print(sum(n * n for n in range(300_000)))", f"{sum(n * n for n in range(300_000))}\n"),
    ("import time; time.sleep(2); print('slept')", "slept\n"),
    ("x = bytearray(100 << 20); x[-1] = 7; print(len(x) >> 20, x[-1])", "100 7\n"),
    ("import subprocess; print(subprocess.check_output(['echo', 'child']))", "b'child\\n'\n"),
    ("import os; open('f', 'wb').write(bytes(20 << 20)); print(os.stat('f').st_size)",
     "20971520\n"),
    ("for n in range(1000): print(n)", "".join(f"{n}\n" for n in range(1000))),
    ("import threading\nx = []\n"
     "ts = [threading.Thread(target=x.append, args=[n]) for n in range(20)]\n"
     "for t in ts: t.start()\nfor t in ts: t.join()\nprint(sorted(x) == [*range(20)])", "True\n"),
    ("import sqlite3; c = sqlite3.connect('d'); print(c.execute('select 6 * 7').fetchone()[0])",
     "42\n"),
    ("import multiprocessing as m\nwith m.Pool(2) as p: print(p.map(abs, [-1, -2]))", "[1, 2]\n"),
    ("import hashlib; print(hashlib.sha256(b'x' * 1000000).hexdigest()[:8])",
     hashlib.sha256(b"x" * 1000000).hexdigest()[:8] + "\n"),
]  # fmt: skip


@pytest.fixture(scope="module")
def outcome() -> dict[str, Any]:
    jobs: list[tuple[str, str, dict[str, Any]]] = [
        (name, code, {"timeout_s": TIMEOUT_S, "memory_bytes": 256 * MIB})
        for name, code in BOMBS.items()
    ]
    jobs += [(f"good {n}", code, {"timeout_s": 30}) for n, (code, _) in enumerate(GOOD)]
    done = subprocess.run(
        [sys.executable, "-c", HOST],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("number", range(len(GOOD)))
def test_who_behaves_is_served(outcome: dict[str, Any], number: int) -> None:
    """L1-L5: the right answer, whatever goes on beside it."""
    answer = outcome["answers"][f"good {number}"]
    assert (answer["status"], answer["stdout"]) == ("ok", GOOD[number][1]), answer


def test_the_memory_bomb(outcome: dict[str, Any]) -> None:
    """L2"""
    answer = outcome["answers"]["memory"]
    assert answer["status"] == "out_of_memory"
    has_groups = answer["isolation"]["memory"].startswith("cgroup")
    assert answer["usage"]["peak_memory_bytes"] < (272 if has_groups else 700) * MIB


def test_the_fork_bomb(outcome: dict[str, Any]) -> None:
    """L3"""
    answer = outcome["answers"]["forks"]
    assert answer["status"] == "timeout"
    assert 50 <= answer["usage"]["peak_processes"] <= 64


def test_the_disk_fill(outcome: dict[str, Any]) -> None:
    """L4: an ordinary error of the code's own."""
    answer = outcome["answers"]["disk"]
    assert (answer["status"], answer["error"]["name"]) == ("error", "OSError")
    assert "No space left on device" in answer["error"]["message"]
    (file,) = answer["files"]
    assert file["skipped"]
    assert 90 * MIB < file["size"] <= 100 * MIB


def test_the_flood(outcome: dict[str, Any]) -> None:
    """L5: ten gigabytes, or as much as eight seconds let through; all but a megabyte dropped."""
    answer = outcome["answers"]["flood"]
    said = answer["dropped"]["stdout"] + MIB
    if answer["status"] == "ok":
        assert said == 10 << 30
    else:
        assert answer["status"] == "timeout"
        assert said > 100 * MIB
    assert answer["truncated"]
    assert MIB <= len(answer["stdout"]) < 1.01 * MIB


def test_the_processor_hog(outcome: dict[str, Any]) -> None:
    """L1: time-out, with the time of one core used and not of all."""
    answer = outcome["answers"]["processor"]
    assert answer["status"] == "timeout"
    assert TIMEOUT_S * 1000 <= answer["duration_ms"] < (TIMEOUT_S + 6) * 1000
    assert 1000 < answer["usage"]["cpu_ms"] < 1.35 * answer["duration_ms"]


def test_the_host_stays_small(outcome: dict[str, Any]) -> None:
    """L5: under 300 MB at its highest."""
    print(f"host: {outcome['peak_kib'] / 1024:.0f} MiB at its highest")
    assert outcome["peak_kib"] * 1024 < 300_000_000
