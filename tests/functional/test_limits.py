"""L1-L5, L7: every limit reached by real code, and what the result then says.

On a machine with control groups the kernel enforces; without them rlimits and the agent's watchdog
do. `has_groups` tells from the result's `isolation` which of the two was in force.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from belljar import Belljar, Result, Sandbox, Usage
from belljar.engines.linux import cgroups

MIB = 1 << 20

# -- L1: a share of the processor ------------------------------------------------------------------


def test_l1_running_sandboxes_weigh_by_their_number() -> None:
    """As many processes as sandboxes that run code, read where the kernel was told."""
    found = cgroups.detect()
    if isinstance(found, cgroups.Absent) or not found.limits_cpu:
        pytest.skip("no cgroup of ours limits the processor here")
    name = "cpu.shares" if found.version == 1 else "cpu.weight"
    of_this_process = f"belljar-{os.getpid()}-*/{name}"
    others = set(Path(found.folders["cpu"]).glob(of_this_process))
    with Belljar() as jar:
        jar.run("print(1)")
        (file,) = set(Path(found.folders["cpu"]).glob(of_this_process)) - others

        def weight() -> int:
            return int(file.read_text())

        alone = weight()
        futures = [jar.submit("import time; time.sleep(3)") for _ in range(2)]
        deadline = time.monotonic() + 20
        # Three while the first one's group is still being removed: what falls is told later.
        while (together := weight()) < 2 * alone and time.monotonic() < deadline:
            time.sleep(0.02)
        assert together in (2 * alone, 3 * alone)
        assert [future.result().status for future in futures] == ["ok", "ok"]
        while weight() != alone and time.monotonic() < deadline:
            time.sleep(0.02)
        assert weight() == alone


# -- L1: time --------------------------------------------------------------------------------------

STUBBORN = {
    "sleep": "import time; time.sleep(60)",
    "busy": "while True: pass",
    "deaf": "import signal, time\n"
    "for s in set(signal.valid_signals()) - {9, 19}: signal.signal(s, signal.SIG_IGN)\n"
    "while True: time.sleep(60)",
    "stopped": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "inside C": "9**9**9",
    "catches all": "import time\nwhile True:\n    try: time.sleep(60)\n"
    "    except BaseException: pass",
    "atexit": "import atexit\n@atexit.register\ndef f():\n    while True: pass",
    "del": "class C:\n    def __del__(self):\n        while True: pass\nc = C()",
    "waiting thread": "import threading as t, time; t.Thread(target=time.sleep, args=[60]).start()",
    "waits for stdin of a child": "import subprocess; subprocess.run(['sleep', '60'])",
    "stopped child": "import os, signal\np = os.fork()\nif p == 0: os.kill(os.getpid(), 19)\n"
    "os.waitpid(p, 0)",
}


def test_time_is_up_for_everyone(jar: Belljar) -> None:
    """L1: whatever the code does about it; all at once, which must not make it slower."""
    started = time.monotonic()
    futures = {
        name: jar.submit(f"print('before', flush=True)\n{code}", timeout_s=1)
        for name, code in STUBBORN.items()
    }
    results = {name: future.result(timeout=60) for name, future in futures.items()}
    took_s = time.monotonic() - started
    assert {name: result.status for name, result in results.items()} == dict.fromkeys(
        STUBBORN, "timeout"
    )
    for name, result in results.items():
        assert result.timed_out, name
        assert not result.success
        assert result.stdout == "before\n", name
        assert result.duration_ms >= 1000
    assert took_s < 10


def test_what_was_said_and_used_before_the_time_out_is_told(jar: Belljar) -> None:
    """L1, L7: the agent still reports: output, files, usage."""
    result = jar.run(
        "import sys\nopen('f', 'w').write('x')\nprint('out'); print('err', file=sys.stderr)\n"
        "sys.stdout.flush()\nwhile True: pass",
        timeout_s=1,
    )
    assert (result.status, result.stdout, result.stderr) == ("timeout", "out\n", "err\n")
    assert [file.name for file in result.files] == ["f"]
    assert result.usage.cpu_ms > 20  # of a second, on a machine that may be busy
    assert result.signal in (9, None)
    assert result.exit_code is None


@pytest.mark.parametrize("how", ["start_new_session=True", "stdout=subprocess.DEVNULL"])
def test_a_background_child_does_not_stall_the_result(jar: Belljar, how: str) -> None:
    """L1, R3: a child that keeps stdout open is killed when the code has ended."""
    started = time.monotonic()
    result = jar.run(f"import subprocess; subprocess.Popen(['sleep', '60'], {how}); print(1)")
    assert (result.status, result.stdout) == ("ok", "1\n")
    assert time.monotonic() - started < 10


def test_a_run_just_below_its_time_out_is_fine(jar: Belljar) -> None:
    """L1"""
    assert jar.run("import time; time.sleep(0.5); print(1)", timeout_s=5).status == "ok"


# -- L2: memory ------------------------------------------------------------------------------------

BOMBS = {
    "one piece": "x = bytearray(4 << 30)",
    "many pieces": "x = []\nwhile True: x.append(bytearray(1 << 20))",
    "small objects": "x = []\nwhile True: x.append([len(x)])",
    "one line": "'x' * (1 << 40)",
    "shared map": "import mmap\nm = mmap.mmap(-1, 1 << 30)\n"
    "for n in range(0, 1 << 30, 4096): m[n] = 1",
    "in a child": "import subprocess, sys\n"
    "p = subprocess.run([sys.executable, '-c', 'x=[]\\nwhile 1: x.append(bytearray(1<<20))'])\n"
    "raise MemoryError if p.returncode else 0",
    "in a thread": "import threading\nx = []\ndef f():\n"
    "    while True: x.append(bytearray(1 << 20))\n"
    "t = threading.Thread(target=f); t.start(); t.join()\nraise MemoryError",
    "many children": "import os, time\n"
    "for _ in range(8):\n    if os.fork() == 0: x = bytearray(32 << 20); time.sleep(30)\n"
    "os.wait()",
}


@pytest.mark.parametrize("code", BOMBS.values(), ids=BOMBS.keys())
def test_a_memory_bomb_gets_its_verdict(jar: Belljar, code: str, has_groups: bool) -> None:
    """L2: an out-of-memory verdict, soon, whichever mechanism is in force."""
    result = jar.run(code, memory_bytes=96 * MIB, timeout_s=20)
    assert result.status == "out_of_memory", (result, has_groups)
    assert not result.success
    assert result.duration_ms < 15_000
    # A watchdog samples; what was allocated between two looks is above the limit by then, and
    # shared memory counts at its full size from the start.
    assert result.usage.peak_memory_bytes < (128 if has_groups else 1100) * MIB


def test_files_in_memory_count_as_memory(jar: Belljar) -> None:
    """L2, L4: a tmpfs is memory too; 512 MB of disk do not make 96 MB of memory more."""
    result = jar.run(
        "import os\nf = open('/tmp/big', 'wb')\nwhile True: f.write(bytes(1 << 20))",
        memory_bytes=96 * MIB,
        disk_bytes=512 * MIB,
        timeout_s=20,
    )
    assert result.status == "out_of_memory"


def test_a_neighbour_does_not_notice(jar: Belljar) -> None:
    """L2: the host and the other runs go on as if nothing had happened."""
    neighbour = jar.submit(
        "import time\nx = bytearray(50 << 20)\n"
        "for n in range(20): time.sleep(0.05); x[n << 20] = n\nprint(sum(x[::1 << 20]))"
    )
    bombs = [jar.submit(BOMBS["many pieces"], memory_bytes=64 * MIB) for _ in range(4)]
    assert [bomb.result(timeout=60).status for bomb in bombs] == ["out_of_memory"] * 4
    result = neighbour.result(timeout=60)
    assert (result.status, result.stdout) == ("ok", f"{sum(range(20))}\n")


CHILD_BOMB = """
import subprocess, sys
open('/workspace/left.txt', 'w').write('still here')
bomb = 'x = bytearray(400 << 20)'
print(subprocess.run([sys.executable, '-c', bomb]).returncode, flush=True)
"""


def test_l2_a_child_that_runs_out_of_memory_takes_nothing_else_along(
    jar: Belljar, isolation: Mapping[str, str]
) -> None:
    """On cgroup v2, too: what else the code did is told, its files come back, and a kept sandbox
    keeps its state."""
    if not isolation["memory"].startswith("cgroup"):
        pytest.skip("the watchdog ends the whole run")
    result = jar.run(CHILD_BOMB, memory_bytes=128 * MIB)
    assert (result.status, result.stdout) == ("out_of_memory", "-9\n")
    assert [(file.path, file.content) for file in result.files] == [
        ("/workspace/left.txt", b"still here")
    ]
    with Sandbox(memory_bytes=128 * MIB) as box:
        box.run("held = 5")
        assert box.run(CHILD_BOMB).stdout == "-9\n"
        assert box.run("held").value == "5"


def test_memory_within_the_limit_is_fine(jar: Belljar) -> None:
    """L2: the default is 512 MB, and most of that can really be used."""
    result = jar.run("x = bytearray(400 << 20); print(len(x) >> 20)")
    assert (result.status, result.stdout) == ("ok", "400\n")


def test_a_caught_memory_error_is_the_codes_own_affair(jar: Belljar) -> None:
    """L2: an impossible request that the code survives is no verdict."""
    result = jar.run("try: x = 'x' * (1 << 60)\nexcept MemoryError: print('caught')")
    assert (result.status, result.stdout) == ("ok", "caught\n")


@pytest.mark.parametrize("fresh_exec", [False, True])
def test_a_class_that_is_named_memory_error_is_no_verdict(jar: Belljar, fresh_exec: bool) -> None:
    """L2: a verdict never rests on a name that code chose."""
    code = "class MemoryError(Exception): pass\nraise MemoryError('mine')"
    assert jar.run(code, fresh_exec=fresh_exec).status == "error"
    if not fresh_exec:
        with Sandbox() as box:
            assert box.run(code).status == "error"


# -- L3: processes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [64, 10])
def test_forks_stop_at_the_limit(jar: Belljar, limit: int) -> None:
    """L3"""
    result = jar.run(
        "import os, time\nn = 0\ntry:\n    while n < 5000:\n"
        "        if os.fork() == 0: time.sleep(30); os._exit(0)\n        n += 1\n"
        "except BlockingIOError: pass\nprint(n)",
        processes=limit,
    )
    assert result.status == "ok", result.stderr
    assert limit - 4 <= int(result.stdout) < limit
    assert limit - 4 <= result.usage.peak_processes <= limit


def test_threads_stop_at_the_limit(jar: Belljar) -> None:
    """L3: threads count as processes."""
    result = jar.run(
        "import threading, time\nn = 0\ntry:\n    while n < 5000:\n"
        "        threading.Thread(target=time.sleep, args=(30,), daemon=True).start(); n += 1\n"
        "except RuntimeError: pass\nprint(n)"
    )
    assert result.status == "ok", result.stderr
    assert 50 <= int(result.stdout) < 64


FORK_BOMBS = {
    "python": ("python", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"),
    "bash": ("bash", ":(){ :|:& };:\nwait\nsleep 60"),
    "threads": (
        "python",
        "import threading\ndef f():\n    while True:\n"
        "        try: threading.Thread(target=f).start()\n        except RuntimeError: pass\nf()",
    ),
}


@pytest.mark.parametrize(("language", "code"), FORK_BOMBS.values(), ids=FORK_BOMBS.keys())
def test_a_fork_bomb_is_bounded(
    jar: Belljar, traces: Any, language: str, code: str, eventually: Callable[..., None]
) -> None:
    """L3, R3: it never has more than its share, and ends with the run."""
    with Belljar() as jar:
        future = jar.submit(code, language=language, timeout_s=2)
        most = 0
        while not future.done():
            most = max(most, len(traces.processes()))
            time.sleep(0.05)
        result = future.result()
        assert result.status in ("timeout", "error")
        assert result.usage.peak_processes <= 64
        assert most <= 64 + 1 + 2 * 8  # the agent, and what waits in the pool
        eventually(lambda: len(traces.processes()) <= 2 * 8, True)


# -- L4: disk --------------------------------------------------------------------------------------

FILL = """
import errno, os, sys
total = 0
for place in ('/workspace', '/tmp', '/data/output', '/dev/shm'):
    try:
        with open(place + '/big', 'wb', buffering=0) as f:
            while True: total += f.write(bytes(65536))
    except OSError as e:
        assert e.errno == errno.ENOSPC, e
print(total)
for place in ('/workspace', '/tmp', '/data/output', '/dev/shm'): os.remove(place + '/big')
open('small', 'w').write('there is room again')
"""


@pytest.mark.parametrize("size_mib", [100, 2])
def test_disk_bytes_are_one_quota_for_all_places(jar: Belljar, size_mib: int) -> None:
    """L4: "no space left", as on any full disk; and what is deleted can be used again."""
    result = jar.run(FILL, disk_bytes=size_mib * MIB)
    assert result.success, result.stderr
    assert 0.9 * size_mib * MIB <= int(result.stdout) <= size_mib * MIB
    assert [file.name for file in result.files] == ["small"]


@pytest.mark.parametrize("limit", [10_000, 100])
def test_files_stop_at_the_limit(jar: Belljar, limit: int) -> None:
    """L4: inodes, in all places together; folders and links are files too."""
    result = jar.run(
        "import errno, os\nn = 0\ntry:\n    while n < 50_000:\n"
        "        os.mkdir(f'/tmp/{n}') if n % 2 else open(f'/dev/shm/{n}', 'w').close(); n += 1\n"
        "except OSError as e: assert e.errno == errno.ENOSPC\nprint(n)",
        disk_files=limit,
    )
    assert result.success, result.stderr
    assert limit - 20 <= int(result.stdout) < limit


# -- L5: output and open files ---------------------------------------------------------------------


def check_flood(result: Result, stream: str, lines: int, kept: int) -> None:
    """Head, tail and the count between them, against the numbered lines that were printed."""
    text, dropped = getattr(result, stream), getattr(result.dropped, stream)
    whole = "".join(f"{stream} {n}\n" for n in range(lines))
    marker = f"\n[belljar: {dropped} bytes dropped here]\n"
    head, found, tail = text.partition(marker)
    assert found
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert len(head) + dropped + len(tail) == len(whole)
    assert len(head) + len(tail) == kept
    assert abs(len(head) - len(tail)) <= 1


@pytest.mark.parametrize("kept", [MIB, 10_000, 7])
def test_a_flood_keeps_head_and_tail_and_counts_the_rest(jar: Belljar, kept: int) -> None:
    """L5: on both streams at once, exactly."""
    result = jar.run(
        "import sys\nfor n in range(150_000):\n"
        "    sys.stdout.write(f'stdout {n}\\n'); sys.stderr.write(f'stderr {n}\\n')",
        output_bytes=kept,
    )
    assert result.success
    assert result.truncated
    check_flood(result, "stdout", 150_000, kept)
    check_flood(result, "stderr", 150_000, kept)


def test_output_of_exactly_the_limit_is_whole(jar: Belljar) -> None:
    """L5"""
    result = jar.run("print('x' * 999)", output_bytes=1000)
    assert (result.stdout, result.truncated) == ("x" * 999 + "\n", False)
    result = jar.run("print('x' * 1000)", output_bytes=1000)
    assert result.dropped.stdout == 1


def test_a_flood_of_gigabytes_costs_the_host_little(jar: Belljar) -> None:
    """L5: this process is the host; its memory is looked at from outside the code."""
    before = peak_bytes()
    result = jar.run("import os\nx = b'y' * (1 << 20)\nwhile True: os.write(1, x)", timeout_s=2)
    assert result.status == "timeout"
    assert result.dropped.stdout > 50 * MIB
    assert len(result.stdout) < 1.1 * MIB
    assert peak_bytes() - before < 30 * MIB


def peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def test_live_output_of_a_flood_is_bounded_too(jar: Belljar) -> None:
    """L5: `on_output` sees what the result keeps."""
    seen = bytearray()
    result = jar.run(
        "for n in range(100_000): print(n)",
        output_bytes=10_000,
        on_output=lambda _, data: seen.extend(data),
    )
    assert len(seen) == 10_000
    assert result.stdout.encode().startswith(bytes(seen[:5000]))


@pytest.mark.parametrize("limit", [1024, 50])
def test_open_files_stop_at_the_limit(jar: Belljar, limit: int, has_groups: bool) -> None:
    """L5: and the code starts with nothing open but its three streams.

    Where nothing counts what waits in socket buffers, the number of sockets is held lower."""
    limit = limit if has_groups else min(limit, 256)
    result = jar.run(
        "import os, resource\nprint(sorted(map(int, os.listdir('/proc/self/fd')))[:3],"
        " len(os.listdir('/proc/self/fd')))\nfiles = []\ntry:\n"
        "    while True: files.append(os.open('/dev/null', os.O_RDONLY))\n"
        "except OSError as e: print(e.errno, len(files))\n"
        "try: resource.setrlimit(resource.RLIMIT_NOFILE, (9999, 9999)); print('RAISED')\n"
        "except ValueError: pass",
        open_files=limit,
    )
    # listdir itself has one open while it looks
    assert result.stdout == f"[0, 1, 2] 4\n24 {limit - 3}\n"


# -- L7: usage -------------------------------------------------------------------------------------


def test_processor_time_is_told(jar: Belljar) -> None:
    """L7"""
    busy = jar.run(
        "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    )
    idle = jar.run("import time; time.sleep(0.5)")
    assert 450 <= busy.usage.cpu_ms <= 1500
    assert idle.usage.cpu_ms <= 250


def test_processor_time_of_children_is_told(jar: Belljar) -> None:
    """L7"""
    result = jar.run(
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', "
        "'import time\\nwhile time.process_time() < 0.5: pass'])"
    )
    assert 450 <= result.usage.cpu_ms <= 1500


def test_peak_memory_is_told(jar: Belljar, has_groups: bool) -> None:
    """L7: also when it was given back before the end."""
    result = jar.run("import time\nx = bytearray(100 << 20); time.sleep(0.2)\ndel x")
    assert 100 * MIB <= result.usage.peak_memory_bytes <= 160 * MIB
    assert jar.run("pass").usage.peak_memory_bytes <= 40 * MIB


def test_peak_processes_is_told(jar: Belljar) -> None:
    """L7"""
    result = jar.run(
        "import subprocess\nps = [subprocess.Popen(['sleep', '0.3']) for _ in range(5)]\n"
        "for p in ps: p.wait()"
    )
    assert 6 <= result.usage.peak_processes <= 8


def test_usage_is_seen_while_the_code_runs(jar: Belljar) -> None:
    """L7: several times a second, and it grows as the run does."""
    seen: list[Usage] = []
    result = jar.run(
        "import time\ntime.sleep(0.5)\nx = bytearray(80 << 20)\n"
        "while time.process_time() < 1: pass",
        on_usage=seen.append,
    )
    assert result.success
    assert len(seen) >= 3
    assert seen[0].peak_memory_bytes < 60 * MIB < seen[-1].peak_memory_bytes
    assert seen[0].cpu_ms < 200 < seen[-1].cpu_ms <= result.usage.cpu_ms
    assert result.usage.peak_memory_bytes >= seen[-1].peak_memory_bytes


def test_a_usage_callback_that_fails_ends_the_run(jar: Belljar) -> None:
    """L7, A1: the caller's mistake comes back to the caller."""

    def fails(usage: Usage) -> None:
        raise LookupError("the caller's own mistake")

    with pytest.raises(LookupError, match="own mistake"):
        jar.run("import time; time.sleep(30)", on_usage=fails)


def test_a_run_has_one_core(jar: Belljar, has_groups: bool) -> None:
    """L1: eight busy processes use the time of one, or (affinity) are held on one core."""
    code = (
        "import os, time\npids = []\nfor _ in range(8):\n    pid = os.fork()\n    if pid == 0:\n"
        "        end = time.monotonic() + 1\n        while time.monotonic() < end: pass\n"
        "        os._exit(0)\n    pids.append(pid)\nfor pid in pids: os.waitpid(pid, 0)\n"
        "print(len(os.sched_getaffinity(0)))"
    )
    result = jar.run(code)
    assert result.success, result.stderr
    assert result.usage.cpu_ms < 1.35 * result.duration_ms
    if has_groups:
        quarter = jar.run(code, cpus=0.25)
        assert quarter.success
        assert quarter.usage.cpu_ms < 0.25 * 1.6 * quarter.duration_ms
    else:
        assert result.stdout == "1\n"
