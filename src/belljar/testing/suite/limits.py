"""Limits and their verdicts (L1-L5)."""

from __future__ import annotations

import time

from belljar.jar import Belljar
from belljar.model import KIB, MIB
from belljar.testing.base import Suite

LATE_S = 5.0
"""How much after its time-out a result may come, natively."""


class Limited(Suite):
    def test_l1_an_endless_loop_times_out(self, jar: Belljar) -> None:
        timeout_s, started = self.seconds(1), time.monotonic()
        result = jar.run(
            "print('begun', flush=True)\nopen('/data/output/kept', 'w').write('yes')\n"
            "while True: pass",
            timeout_s=timeout_s,
            engine=self.engine,
        )
        elapsed_s = time.monotonic() - started
        assert (result.status, result.timed_out) == ("timeout", True)
        assert result.stdout == "begun\n", "what was printed before is kept"
        assert timeout_s <= elapsed_s < timeout_s + self.seconds(LATE_S)
        self.still_works(jar)

    def test_l1_sleeping_times_out(self, jar: Belljar) -> None:
        result = jar.run(
            "import time\ntime.sleep(100)", timeout_s=self.seconds(0.5), engine=self.engine
        )
        assert result.status == "timeout"

    def test_l1_a_time_out_cannot_be_ignored(self, jar: Belljar) -> None:
        self.needs("processes")
        code = (
            "import os, signal\nfor n in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:\n"
            "    signal.signal(n, signal.SIG_IGN)\nos.fork()\nprint('deaf', flush=True)\n"
            "while True: pass"
        )
        result = jar.run(code, timeout_s=self.seconds(1), engine=self.engine)
        assert result.status == "timeout" and "deaf" in result.stdout, result.stderr
        self.still_works(jar)

    def test_l1_a_time_out_above_the_maximum_of_what_is_left_is_none(self, jar: Belljar) -> None:
        """A run that is quick is not slowed down by a long time-out."""
        started = time.monotonic()
        assert jar.run("print(1)", timeout_s=120, engine=self.engine).status == "ok"
        assert time.monotonic() - started < self.seconds(30)

    def test_l2_one_large_request(self, jar: Belljar) -> None:
        result = jar.run(
            "x = bytearray(1_500_000_000)\nprint(x[0], x[-1])",
            memory_bytes=self.small_memory_bytes,
            engine=self.engine,
            timeout_s=60,
        )
        assert result.status == "out_of_memory", f"{result.status} {result.stderr}"
        self.still_works(jar)

    def test_l2_growing_bit_by_bit(self, jar: Belljar) -> None:
        """Every page is touched, so nothing but a limit ends it. Bounded at 1 GB."""
        code = (
            "kept = []\nfor n in range(1024):\n    kept.append(bytearray(b'x') * (1 << 20))\n"
            "print('held it all')"
        )
        result = jar.run(
            code, memory_bytes=self.small_memory_bytes, engine=self.engine, timeout_s=60
        )
        assert result.status == "out_of_memory", f"{result.status} {result.stdout} {result.stderr}"
        self.still_works(jar)

    def test_l2_what_is_asked_for_is_there(self, jar: Belljar) -> None:
        code = "x = bytearray(b'x') * (200 << 20)\nprint(len(x))"
        result = jar.run(code, memory_bytes=512 * MIB, engine=self.engine, timeout_s=60)
        assert result.stdout == f"{200 << 20}\n", f"{result.status} {result.stderr}"

    def test_l3_a_fork_bomb_stops_at_the_limit(self, jar: Belljar) -> None:
        self.needs("processes")
        code = """
import errno, os, time
children = 0
try:
    for children in range(300):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
except OSError as error:
    print('stopped', errno.errorcode[error.errno], flush=True)
print(children)
"""
        result = jar.run(code, processes=16, engine=self.engine, timeout_s=60)
        lines = result.stdout.split()
        assert lines[:1] == ["stopped"], f"{result.status} {result.stdout} {result.stderr}"
        assert lines[1] == "EAGAIN"
        assert 8 <= int(lines[2]) <= 16
        self.still_works(jar)

    def test_l3_threads_are_counted(self, jar: Belljar) -> None:
        self.needs("processes")
        code = """
import threading, time
started = 0
try:
    for started in range(300):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
except RuntimeError:
    print('stopped', started, flush=True)
import os
os._exit(0)
"""
        result = jar.run(code, processes=16, engine=self.engine, timeout_s=60)
        assert result.stdout.startswith("stopped"), f"{result.status} {result.stderr}"
        assert int(result.stdout.split()[1]) <= 16

    def test_l4_the_disk_is_bounded(self, jar: Belljar) -> None:
        code = """
import errno
written = 0
for place in ('/workspace', '/tmp', '/data/output'):
    try:
        with open(place + '/big', 'wb', buffering=0) as file:
            while written < 200 << 20:
                written += file.write(bytes(1 << 20))
    except OSError as error:
        print(errno.errorcode[error.errno])
    import os
    os.truncate(place + '/big', 0)
print(written >> 20)
"""
        result = jar.run(
            code, disk_bytes=16 * MIB, result_files=0, engine=self.engine, timeout_s=60
        )
        lines = result.stdout.split()
        assert lines[:-1] and set(lines[:-1]) <= {"ENOSPC", "EDQUOT"}, (
            result.stderr or result.stdout
        )
        assert int(lines[-1]) <= 16 * 3
        self.still_works(jar)

    def test_l4_the_number_of_files_is_bounded(self, jar: Belljar) -> None:
        self.needs("disk_files")
        code = """
made = 0
try:
    for made in range(2000):
        open(f'/tmp/{made}', 'w').close()
except OSError:
    print('stopped')
print(made)
"""
        result = jar.run(code, disk_files=200, engine=self.engine, timeout_s=60)
        assert result.stdout.startswith("stopped"), result.stdout + result.stderr
        assert int(result.stdout.split()[1]) <= 200

    def test_l5_a_flood_keeps_head_and_tail(self, jar: Belljar) -> None:
        code = "for n in range(200_000):\n    print(f'{n:09}')"
        result = jar.run(code, output_bytes=64 * KIB, engine=self.engine, timeout_s=60)
        assert result.status == "ok" and result.truncated, result.stderr
        assert result.stdout.startswith("000000000\n") and result.stdout.endswith("000199999\n")
        assert len(result.stdout) < 66 * KIB
        kept = len(result.stdout) - len(
            f"\n[belljar: {result.dropped.stdout} bytes dropped here]\n"
        )
        assert kept + result.dropped.stdout == 200_000 * 10
        assert result.dropped.stderr == 0

    def test_l5_both_streams_at_once(self, jar: Belljar) -> None:
        code = (
            "import sys\nblock = 'x' * 65536\nfor n in range(64):\n"
            "    sys.stdout.write(block)\n    sys.stderr.write(block)"
        )
        result = jar.run(code, output_bytes=32 * KIB, engine=self.engine, timeout_s=60)
        assert result.status == "ok"
        assert result.dropped.stdout == result.dropped.stderr == 64 * 65536 - 32 * KIB

    def test_l5_open_files_are_bounded(self, jar: Belljar) -> None:
        code = """
import errno
kept = []
try:
    for n in range(500):
        kept.append(open('/workspace/main.py'))
except OSError as error:
    print('stopped', errno.errorcode[error.errno])
print(len(kept))
"""
        result = jar.run(code, open_files=64, engine=self.engine)
        assert result.stdout.startswith("stopped EMFILE\n"), result.stdout + result.stderr
        assert int(result.stdout.split()[-1]) < 64

    def still_works(self, jar: Belljar) -> None:
        after = jar.run("print(6 * 7)", engine=self.engine)
        assert (after.status, after.stdout) == ("ok", "42\n"), "the next run suffers"
