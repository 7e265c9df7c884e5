"""I5: the engine `wasm` through the front door. What every engine must do is in tests/conformance;
here is what is its own: two interpreters, files in memory, limits that are not the kernel's."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from belljar import Belljar, Settings, Unsupported
from belljar.engines import registry

MIB = 1 << 20

missing = registry.why_not("wasm", Settings())
pytestmark = pytest.mark.skipif(missing is not None, reason=f"wasm: {missing}")


@pytest.fixture(scope="module")
def jar() -> Iterator[Belljar]:
    with Belljar(Settings(pool_size=1, engine="wasm")) as jar:
        yield jar


def test_python_is_cpython_for_wasi(jar: Belljar) -> None:
    result = jar.run("import sys, platform\nprint(sys.platform, platform.machine(), 6 * 7)")
    assert result.stdout.split() == ["wasi", "wasm32", "42"]
    assert (result.engine, result.environment) == ("wasm", "base")
    assert result.isolation["filesystem"] == "in memory, none of the host's"


def test_the_standard_library_is_there(jar: Belljar) -> None:
    code = """
import sqlite3, zlib, decimal, csv, io, unittest, asyncio, datetime
with sqlite3.connect("/tmp/a.db") as base:
    base.execute("create table t (n)")
    base.executemany("insert into t values (?)", [(n,) for n in range(1000)])
    print(base.execute("select sum(n) from t").fetchone()[0])
async def later():
    await asyncio.sleep(0.01)
    return zlib.decompress(zlib.compress(b"ok"))
print(asyncio.run(later()))
"""
    result = jar.run(code)
    assert (result.stdout, result.stderr) == ("499500\nb'ok'\n", "")


def test_an_exception_is_reported_with_the_codes_own_lines(jar: Belljar) -> None:
    result = jar.run("def f():\n    return {}['gone']\nf()\n")
    assert (result.status, result.exit_code) == ("error", 1)
    assert result.error is not None
    assert (result.error.name, result.error.message) == ("KeyError", "'gone'")
    assert 'File "/workspace/main.py", line 2, in f' in result.error.traceback
    assert "boot" not in result.error.traceback
    assert result.stderr == result.error.traceback


def test_a_shutdown_looks_like_one(jar: Belljar) -> None:
    code = """
import atexit, sys
class Last:
    def __del__(self):
        print("deleted", sys is not None)
last = Last()
atexit.register(print, "at exit")
open("/data/output/left.txt", "w").write("flushed")
kept = open("/data/output/kept.txt", "w")
kept.write("flushed too")
sys.exit("bye")
"""
    result = jar.run(code)
    assert result.stdout == "at exit\ndeleted True\n"
    assert (result.stderr, result.exit_code) == ("bye\n", 1)
    assert {file.name: file.content for file in result.files} == {
        "left.txt": b"flushed",
        "kept.txt": b"flushed too",
    }


def test_a_callers_module_goes_before_one_that_was_imported_ahead(jar: Belljar) -> None:
    result = jar.run("import json\nprint(json.mine)", files={"json.py": b"mine = 5"})
    assert result.stdout == "5\n"


def test_clocks_start_with_the_run_and_run_right(jar: Belljar) -> None:
    """They tell nothing about how long the host, or the warm interpreter, has been up."""
    code = """
import time
print(time.monotonic() < 1, abs(time.time() - float(input())) < 60)
started, used = time.monotonic(), time.process_time()
while time.monotonic() - started < 0.2: pass
print(0 < time.process_time() - used < 5)
started = time.monotonic()
time.sleep(0.2)
print(0.19 < time.monotonic() - started < 5)
"""
    result = jar.run(code, stdin=str(time.time()).encode())
    assert result.stdout == "True True\nTrue\nTrue\n", result.stderr


def test_sandboxes_share_nothing(jar: Belljar) -> None:
    code = (
        "import random, uuid, os, math; print(random.random(), uuid.uuid4(), os.urandom(4).hex())"
    )
    code += "\nprint(getattr(math, 'mark', None), os.listdir('/tmp'))\nmath.mark = 1"
    code += "\nopen('/tmp/mark', 'w').close()"
    runs = [jar.run(code) for _ in range(4)]
    first, second = zip(*(run.stdout.splitlines() for run in runs), strict=True)
    assert len(set(first)) == 4
    assert set(second) == {"None []"}


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import subprocess; subprocess.run(['ls'])", "does not support processes"),
        ("import os; os.fork()", "no attribute 'fork'"),
        ("import threading; threading.Thread(target=print).start()", "can't start new thread"),
        ("import socket; socket.create_connection(('127.0.0.1', 80))", "Error"),
        ("import ctypes", "No module named"),
        ("open('/etc/passwd')", "No such file"),
        ("open('/proc/self/status')", "No such file"),
    ],
)
def test_what_is_not_there_fails_as_an_ordinary_error(jar: Belljar, code: str, said: str) -> None:
    result = jar.run(code)
    assert result.status == "error"
    assert said in result.stderr


def test_what_it_cannot_do_is_refused_before_anything_starts(jar: Belljar) -> None:
    for options in (
        {"language": "bash"},
        {"language": "typescript"},
        {"environment": "data"},
        {"fresh_exec": True},
    ):
        with pytest.raises(Unsupported, match="wasm"):
            jar.run("1", engine="wasm", **options)  # type: ignore[arg-type]


def test_memory_ends_at_the_limit_with_that_verdict(jar: Belljar) -> None:
    result = jar.run("x = bytearray(200 << 20)", memory_bytes=128 * MIB)
    assert result.status == "out_of_memory"
    assert result.error and result.error.name == "MemoryError"
    slowly = jar.run("x = []\nwhile True: x.append(bytes(100_000))", memory_bytes=128 * MIB)
    assert slowly.status == "out_of_memory"
    assert 100 * MIB < slowly.usage.peak_memory_bytes <= 128 * MIB + MIB
    inside = jar.run("x = bytearray(60 << 20); print(len(x))", memory_bytes=128 * MIB)
    assert inside.success, inside.stderr


def test_files_end_at_the_limit(jar: Belljar) -> None:
    fill = "with open('/tmp/a', 'wb') as f:\n    while True: f.write(bytes(1 << 20))"
    result = jar.run(fill, disk_bytes=8 * MIB)
    assert "No space left" in result.stderr
    result = jar.run("for n in range(200): open(f'/tmp/{n}', 'w')", disk_files=50)
    assert "No space left" in result.stderr
    result = jar.run("open('/tmp/a', 'wb').truncate(1 << 40)")
    assert "No space left" in result.stderr or "OverflowError" in result.stderr
    result = jar.run("x = [open('/dev/null') for _ in range(100)]", open_files=40)
    assert "file descriptors" in result.stderr or "Errno 33" in result.stderr


def test_an_endless_loop_is_stopped_and_what_it_left_comes_back(jar: Belljar) -> None:
    code = "print('begun', flush=True)\nopen('/data/output/a', 'w').write('x')\nwhile True: pass"
    result = jar.run(code, timeout_s=1)
    assert (result.status, result.stdout) == ("timeout", "begun\n")
    assert [file.name for file in result.files] == ["a"]
    assert result.duration_ms < 3000
    assert result.usage.cpu_ms > 20


def test_a_trap_is_a_killed_run_that_says_so(jar: Belljar) -> None:
    result = jar.run("const f = () => f() + 1; f()", language="javascript")
    assert result.status == "killed"
    assert "call stack exhausted" in result.stderr


def test_standard_input_can_be_waited_for(jar: Belljar) -> None:
    code = "import sys, select\nfor line in sys.stdin: print('got', line.strip())"
    assert jar.run(code, stdin=b"a\nb\n").stdout == "got a\ngot b\n"


class TestJavaScript:
    def run(self, jar: Belljar, code: str, **options: object) -> tuple[str, str, int | None]:
        result = jar.run(code, language="javascript", **options)  # type: ignore[arg-type]
        return result.stdout, result.stderr, result.exit_code

    def test_scripts_and_modules(self, jar: Belljar) -> None:
        files = {"m.mjs": b"export const x = 5", "c.js": b"module.exports = { y: 6 }"}
        script = "const { y } = require('./c'); console.log(y, __filename)"
        assert self.run(jar, script, files=files)[0] == "6 /workspace/main.js\n"
        module = "import { x } from './m.mjs'\nconsole.log(x, await Promise.resolve(7))"
        assert self.run(jar, module, files=files)[0] == "5 7\n"

    def test_values_are_shown_as_node_shows_them(self, jar: Belljar) -> None:
        shown = self.run(jar, "console.log({ a: [1, 'x'], b: { c: null } }, new Set([1]), -0, 1n)")
        assert shown[0] == "{ a: [ 1, 'x' ], b: { c: null } } Set(1) { 1 } -0 1n\n"

    def test_promises_go_before_timers(self, jar: Belljar) -> None:
        code = """
setTimeout(() => console.log(3), 500); setTimeout(() => console.log(2), 0)
Promise.resolve().then(() => console.log(1)); console.log(0)
"""
        assert self.run(jar, code)[0] == "0\n1\n2\n3\n"

    def test_files_come_and_go(self, jar: Belljar) -> None:
        code = """
const fs = require('fs')
const text = fs.readFileSync('/data/input/a.txt', 'utf8') + fs.readFileSync(0, 'utf8')
fs.mkdirSync('/data/output/deep/er', { recursive: true })
fs.writeFileSync('/data/output/deep/er/o.txt', text.toUpperCase())
try { fs.writeFileSync('/data/input/b', 'x') } catch (error) { console.log(error.code) }
"""
        result = jar.run(
            code, language="javascript", inputs={"a.txt": "é".encode()}, stdin="ü".encode()
        )
        assert result.stdout == "EROFS\n"
        assert [(f.name, f.content) for f in result.files] == [("deep/er/o.txt", "ÉÜ".encode())]

    @pytest.mark.parametrize(
        ("code", "said", "status"),
        [
            ("throw new TypeError('bad')", "Uncaught TypeError: bad", 1),
            ("Promise.reject(new Error('lost'))", "Uncaught Error: lost", 1),
            ("let x = ;", "Uncaught SyntaxError", 1),
            ("process.exit(7)", "", 7),
            ("process.exitCode = 3", "", 3),
            ("await 1; throw 5", "Uncaught 5", 1),
            ("require('net')", "Cannot find module 'net'", 1),
        ],
    )
    def test_endings(self, jar: Belljar, code: str, said: str, status: int) -> None:
        _, stderr, exit_code = self.run(jar, code)
        assert said in stderr
        assert exit_code == status

    def test_memory(self, jar: Belljar) -> None:
        code = "const a = []; while (true) a.push(new Array(10000).fill(1.5))"
        result = jar.run(code, language="javascript", memory_bytes=64 * MIB)
        assert result.status == "out_of_memory"

    def test_chance_is_every_sandboxs_own(self, jar: Belljar) -> None:
        """The engine was seeded before the fork."""
        assert len({self.run(jar, "console.log(Math.random())")[0] for _ in range(4)}) == 4
