"""R1, R3, R4: one call, one truthful result, and nothing left behind."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from belljar import Belljar, Result, Settings

# -- R1: the result --------------------------------------------------------------------------------


def test_every_field_of_a_good_run(jar: Belljar, isolation: Mapping[str, str]) -> None:
    """R1"""
    result = jar.run("import sys; print('out'); print('err', file=sys.stderr)")
    assert result.status == "ok"
    assert result.success is True
    assert result.timed_out is False
    assert result.truncated is False
    assert (result.exit_code, result.signal) == (0, None)
    assert (result.stdout, result.stderr) == ("out\n", "err\n")
    assert (result.dropped.stdout, result.dropped.stderr) == (0, 0)
    assert result.error is None
    assert result.files == ()
    assert 0 < result.duration_ms < 10_000
    assert 0 < result.usage.cpu_ms < 10_000
    assert result.usage.peak_memory_bytes > 100_000
    assert result.usage.peak_processes == 1
    assert (result.language, result.environment, result.engine) == ("python", "base", "jail")
    assert result.isolation == isolation
    assert result.warnings == ()
    assert result.findings == ()


def test_a_result_is_json(jar: Belljar) -> None:
    """R1: what a front door sends is what the result holds."""
    result = jar.run("open('f.bin', 'wb').write(bytes([0, 255])); 1 / 0")
    data = json.loads(result.to_json())
    assert data == result.to_dict()
    assert data["error"]["name"] == "ZeroDivisionError"
    assert data["files"] == [
        {
            "path": "/workspace/f.bin",
            "name": "f.bin",
            "size": 2,
            "skipped": "",
            "content_base64": "AP8=",
        }
    ]
    assert data["usage"] == dataclasses.asdict(result.usage)


def test_execution_ids_are_unique_and_cannot_be_guessed(jar: Belljar) -> None:
    """R1: at least 96 random bits."""
    ids = [jar.run("").execution_id for _ in range(20)]
    assert len(set(ids)) == 20
    assert all(len(bytes.fromhex(name)) * 8 >= 96 for name in ids)


def test_streams_are_never_merged(jar: Belljar) -> None:
    """R1: also when they are written in turns, by children and below Python."""
    result = jar.run(
        "import os, subprocess, sys\n"
        "for n in range(50):\n"
        "    print('o', n); print('e', n, file=sys.stderr)\n"
        "sys.stdout.flush()\n"
        "os.write(1, b'raw out\\n'); os.write(2, b'raw err\\n')\n"
        "subprocess.run(['sh', '-c', 'echo child out; echo child err >&2'])\n"
    )
    numbers = range(50)
    assert result.stdout == "".join(f"o {n}\n" for n in numbers) + "raw out\nchild out\n"
    assert result.stderr == "".join(f"e {n}\n" for n in numbers) + "raw err\nchild err\n"


def test_the_exception_is_in_the_result(jar: Belljar) -> None:
    """R1"""
    result = jar.run("def f():\n    raise LookupError('not ✓ there')\nf()")
    assert result.error
    assert result.error.name == "LookupError"
    assert result.error.message == "not ✓ there"
    assert result.error.traceback == result.stderr
    assert 'File "/workspace/main.py", line 2, in f' in result.error.traceback


@pytest.mark.parametrize("code", ["pass", "import sys; sys.exit(3)", "import os; os._exit(1)"])
def test_without_an_exception_there_is_no_error(jar: Belljar, code: str) -> None:
    """R1"""
    assert jar.run(code).error is None


def test_a_huge_exception_is_cut(jar: Belljar) -> None:
    """L5: a message of megabytes does not make the result one."""
    result = jar.run("raise ValueError('é' * 5_000_000)")
    assert result.status == "error"
    assert result.error
    assert result.error.name == "ValueError"
    assert 100 < len(result.error.message) < 65_536
    assert len(result.to_json()) < 4_000_000


# -- R1, S2: files come back -----------------------------------------------------------------------


def files_of(result: Result) -> dict[str, bytes | None]:
    return {file.path: file.content for file in result.files}


def test_files_come_back(jar: Belljar) -> None:
    """R1, S2: from /workspace and /data/output, not from /tmp."""
    result = jar.run(
        "import os\n"
        "open('a.txt', 'w').write('A')\n"
        "os.makedirs('sub/deeper'); open('sub/deeper/b', 'wb').write(bytes(range(256)))\n"
        "open('/data/output/c.csv', 'w').write('1,2')\n"
        "open('empty', 'w')\n"
        "open('/tmp/not', 'w').write('x')\n"
    )
    assert result.success, result.stderr
    assert files_of(result) == {
        "/workspace/a.txt": b"A",
        "/workspace/sub/deeper/b": bytes(range(256)),
        "/workspace/empty": b"",
        "/data/output/c.csv": b"1,2",
    }
    assert {file.name for file in result.files} == {"a.txt", "sub/deeper/b", "empty", "c.csv"}


def test_unchanged_files_do_not_come_back(jar: Belljar) -> None:
    """R1: given files count as produced only when they were changed."""
    result = jar.run(
        "import os\n"
        "open('grown', 'a').write('!')\n"
        "open('rewritten', 'w').write('new')\n"
        "os.rename('moved', 'renamed'); os.remove('removed')\n",
        files=dict.fromkeys(("same", "grown", "rewritten", "moved", "removed"), "old"),
        inputs={"given.csv": "1"},
    )
    assert files_of(result) == {
        "/workspace/grown": b"old!",
        "/workspace/rewritten": b"new",
        "/workspace/renamed": b"old",
    }


def test_what_is_no_file_is_named_and_not_followed(jar: Belljar) -> None:
    """S2: a link is never followed, a FIFO never opened, a closed file does not stop the rest."""
    result = jar.run(
        "import os, socket\n"
        "os.symlink('/etc/passwd', 'link'); os.symlink('/etc', 'folder'); os.mkfifo('fifo')\n"
        "socket.socket(socket.AF_UNIX).bind('socket')\n"
        "open('closed', 'w').write('x'); os.chmod('closed', 0)\n"
        "os.mkdir('dark'); open('dark/x', 'w'); os.chmod('dark', 0)\n"
        "open(b'\\xff\\n', 'w').write('odd name'); open('zz', 'w').write('last')\n"
    )
    assert result.success, result.stderr
    contents = files_of(result)
    reasons = {file.name: file.skipped for file in result.files if file.skipped}
    assert reasons["link"] == reasons["folder"] == "a symbolic link"
    assert reasons["fifo"] == "a FIFO"
    assert reasons["socket"] == "a socket"
    assert "cannot be read" in reasons["closed"]
    assert contents["/workspace/zz"] == b"last"
    (odd,) = [path for path in contents if "\ufffd" in path]
    assert contents[odd] == b"odd name"
    assert b"root:" not in b"".join(content or b"" for content in contents.values())
    result.to_json()


def test_too_many_files_and_bytes_are_named_only(jar: Belljar) -> None:
    """L5: a result carries what was agreed, and says what it left behind."""
    code = "for n in range(300): open(f'{n:03}', 'wb').write(bytes(1000))"
    result = jar.run(code, result_files=10)
    assert sum(file.content is not None for file in result.files) == 10
    assert all("10 files" in file.skipped for file in result.files if file.content is None)
    assert len(result.files) < 100
    result = jar.run(code, result_bytes=5500)
    assert sum(len(file.content or b"") for file in result.files) == 5000
    assert any("5500 bytes" in file.skipped for file in result.files)
    result = jar.run(code, result_files=0)
    assert not any(file.content for file in result.files)


def test_files_of_a_failed_run_come_back_too(jar: Belljar) -> None:
    """R1: the half-done work of a run that failed or ran out of time is not lost."""
    failed = jar.run("open('x', 'w').write('half'); 1 / 0")
    late = jar.run("import time; open('x', 'w').write('half'); time.sleep(60)", timeout_s=0.5)
    assert (failed.status, late.status) == ("error", "timeout")
    assert files_of(failed) == files_of(late) == {"/workspace/x": b"half"}


# -- R4: what goes in ------------------------------------------------------------------------------


def test_stdin_environment_and_files_go_in(jar: Belljar) -> None:
    """R4"""
    result = jar.run(
        "import os, sys\n"
        "print(sys.stdin.read(), os.environ['NAME'], open('a/b.txt').read(),\n"
        "      open('/data/input/x/in.bin', 'rb').read())\n",
        stdin="héllo",
        env={"NAME": "välue"},
        files={"a/b.txt": "text ✓"},
        inputs={"x/in.bin": b"\x00\xff"},
    )
    assert result.stdout == "héllo välue text ✓ b'\\x00\\xff'\n", result.stderr


def test_large_stdin_and_files_go_in_whole(jar: Belljar) -> None:
    """R4: more than any pipe or frame holds."""
    data = os.urandom(3_000_000)
    result = jar.run(
        "import hashlib, sys\n"
        "for d in (sys.stdin.buffer.read(), open('f', 'rb').read(),\n"
        "          open('/data/input/i', 'rb').read()):\n"
        "    print(hashlib.sha256(d).hexdigest())\n",
        stdin=data,
        files={"f": data},
        inputs={"i": data},
    )
    assert result.stdout.split() == [hashlib.sha256(data).hexdigest()] * 3


def test_stdin_that_nobody_reads_does_not_matter(jar: Belljar) -> None:
    """R4"""
    result = jar.run("print('done')", stdin=bytes(3_000_000))
    assert (result.status, result.stdout) == ("ok", "done\n")
    assert jar.run("import sys; print(repr(sys.stdin.read()))").stdout == "''\n"


def test_stdin_that_is_closed_early_does_not_matter(jar: Belljar) -> None:
    """R4"""
    code = "import os, time; os.close(0); time.sleep(0.2); print('on')"
    assert jar.run(code, stdin=bytes(3_000_000)).stdout == "on\n"


def test_standard_input_is_passed_on_while_the_code_runs(jar: Belljar) -> None:
    """R4: a descriptor, read as fast as the code takes it: no sooner, and not to its end."""
    readable, writable = os.pipe()
    asked = threading.Event()
    code = (
        "import sys\nprint('ready', flush=True)\n"
        "for line in sys.stdin: print(line.upper(), end='', flush=True)\nprint('end')"
    )
    future = jar.submit(code, stdin_descriptor=readable, on_output=lambda *_: asked.set())
    for word in ("one", "two"):
        assert asked.wait(10)
        asked.clear()
        os.write(writable, f"{word}\n".encode())
    assert asked.wait(10)
    os.close(writable)
    assert future.result(timeout=10).stdout == "ready\nONE\nTWO\nend\n"
    os.close(readable)


def test_endless_standard_input_costs_nothing(jar: Belljar) -> None:
    """R4, L5: what the code does not read is not read from the host's file either."""
    with open("/dev/zero", "rb") as endless:
        for code in ("print(len(open(0, 'rb').read(1000)))", "print(1000)"):
            result = jar.run(code, stdin_descriptor=endless.fileno(), timeout_s=10)
            assert (result.status, result.stdout) == ("ok", "1000\n")


def test_standard_input_from_a_file(jar: Belljar, tmp_path: Path) -> None:
    """R4: more than fits into memory limits on the way, in order and whole."""
    path = tmp_path / "in"
    path.write_bytes(os.urandom(1 << 20) * 3)
    code = "import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
    with path.open("rb") as file:
        result = jar.run(code, stdin_descriptor=file.fileno())
    assert result.stdout.strip() == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_pipe_that_stays_open_does_not_keep_the_run(jar: Belljar) -> None:
    """R4: read or not, the run ends when the code does; what it did not want stays in the pipe."""
    readable, writable = os.pipe()
    os.write(writable, b"line\n")
    try:
        result = jar.run("print(input())", stdin_descriptor=readable)
        assert (result.status, result.stdout) == ("ok", "line\n")
        os.write(writable, b"for somebody else\n")
        result = jar.run("print('no')", stdin_descriptor=readable)
        assert (result.status, result.stdout) == ("ok", "no\n")
        result = jar.run("import time; time.sleep(60)", stdin_descriptor=readable, timeout_s=0.5)
        assert result.status == "timeout"
        assert result.duration_ms < 1900  # stopped by the agent, which was not kept busy
        result = jar.run("input(); input()", stdin_descriptor=readable, timeout_s=0.5)
        assert result.status == "timeout"
    finally:
        os.close(readable)
        os.close(writable)


def test_a_terminal_can_be_standard_input(jar: Belljar) -> None:
    """R4: the host's terminal is read for the code, which never gets to see it itself."""
    host, terminal = os.openpty()
    os.write(host, b"typed\n")
    try:
        code = "import os; print(input(), os.isatty(0))"
        assert jar.run(code, stdin_descriptor=terminal).stdout == "typed False\n"
    finally:
        os.close(host)
        os.close(terminal)


def test_inputs_are_read_only(jar: Belljar) -> None:
    """R4, S2: write, chmod, unlink, rename, new files, links and truncation all fail."""
    result = jar.run(
        "import os\n"
        "p = '/data/input/in.txt'\n"
        "for what in (\n"
        "    lambda: open(p, 'w'), lambda: open(p, 'a'), lambda: os.chmod(p, 0o777),\n"
        "    lambda: os.unlink(p), lambda: os.rename(p, p + '2'), lambda: os.truncate(p, 0),\n"
        "    lambda: open('/data/input/new', 'w'), lambda: os.mkdir('/data/input/d'),\n"
        "    lambda: os.link(p, '/data/input/l'), lambda: os.utime(p),\n"
        "    lambda: os.rmdir('/data/input'),\n"
        "    lambda: os.link(p, '/workspace/l'), lambda: os.rename(p, '/workspace/l'),\n"
        "    lambda: os.replace('/workspace/main.py', p), lambda: os.setxattr(p, 'user.a', b'1'),\n"
        "):\n"
        "    try:\n"
        "        what(); print('WORKED', what.__code__.co_firstlineno)\n"
        "    except OSError as e:\n"
        "        pass\n"
        "print(open(p).read(), os.listdir('/data/input'))\n",
        inputs={"in.txt": "given"},
    )
    assert result.stdout == "given ['in.txt']\n"


def test_output_is_seen_while_the_code_runs(jar: Belljar) -> None:
    """A1: `on_output` gets every byte, in order, before the end."""
    seen: list[tuple[str, bytes, float]] = []
    result = jar.run(
        "import sys, time\n"
        "print('first', flush=True); time.sleep(0.5); print('second'); print('e', file=sys.stderr)",
        on_output=lambda stream, data: seen.append((stream, data, time.monotonic())),
    )
    ended = time.monotonic()
    assert (
        b"".join(data for stream, data, _ in seen if stream == "stdout").decode() == result.stdout
    )
    assert (
        b"".join(data for stream, data, _ in seen if stream == "stderr").decode() == result.stderr
    )
    assert ended - seen[0][2] > 0.3


def test_an_output_callback_that_fails_does_not_stall_the_run(jar: Belljar) -> None:
    """A1: the caller's mistake comes back to the caller, at once."""

    def fails(stream: str, data: bytes) -> None:
        raise LookupError("the caller's own mistake")

    started = time.monotonic()
    with pytest.raises(LookupError, match="own mistake"):
        jar.run("print(1)", on_output=fails, timeout_s=10)
    assert time.monotonic() - started < 5
    assert jar.run("print(2)").stdout == "2\n"


# -- R3: nothing is left ---------------------------------------------------------------------------

ENDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "ok": ("print(1)", {}, "ok"),
    "error": ("1 / 0", {}, "error"),
    "timeout": ("import time; time.sleep(60)", {"timeout_s": 0.3}, "timeout"),
    "out of memory": ("x = b'x' * (1 << 30)", {"memory_bytes": 64 << 20}, "out_of_memory"),
    "killed": ("import os; os.kill(os.getpid(), 9)", {}, "killed"),
    "children": (
        "import subprocess, os\n"
        "for _ in range(5): subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "if os.fork() == 0:\n    os.setsid()\n    import time; time.sleep(60)\n",
        {},
        "ok",
    ),
    "stopped child": (
        "import subprocess, signal\np = subprocess.Popen(['sleep', '60'])\n"
        "p.send_signal(signal.SIGSTOP)\n",
        {},
        "ok",
    ),
    "agent attacked": ("import os\ntry: os.kill(1, 9)\nexcept OSError: pass", {}, "ok"),
}


@pytest.mark.parametrize(("code", "options", "status"), ENDS.values(), ids=ENDS.keys())
@pytest.mark.parametrize("pool_size", [0, 2])
def test_nothing_is_left_after_a_run(
    traces: Any,
    eventually: Callable[..., None],
    code: str,
    options: dict[str, Any],
    status: str,
    pool_size: int,
) -> None:
    """R3: no process, group or mount beyond the unused sandboxes that wait in the pool."""
    with Belljar(Settings(pool_size=pool_size, pool_maximum=max(1, pool_size))) as jar:
        assert jar.run(code, **options).status == status
        # An unused sandbox is an agent and a runner that waits.
        eventually(lambda: len(traces.processes()), 2 * pool_size)
        assert len(traces.zygotes()) == 1
        if traces.folders():
            per_sandbox = len({os.path.dirname(group) for group in traces.groups()})
            eventually(lambda: len(traces.groups()), pool_size * per_sandbox)
        assert traces.mounts() == set()
    assert traces.zygotes() == set()
    eventually(traces.processes, set())
    assert traces.groups() == traces.folders() == set()


PILE = """
import json, os, sys, threading, time
from belljar import Belljar, Settings

def descriptors():
    return len(os.listdir('/proc/self/fd'))

kinds = json.load(sys.stdin)
with Belljar(Settings(pool_size=2, pool_maximum=2)) as jar:
    for _ in range(3): jar.run('pass')
    time.sleep(0.5)
    before, threads = descriptors(), threading.active_count()
    for number in range(100):
        code, options = kinds[number // 5 % len(kinds)] if number % 5 == 0 else ('pass', {})
        jar.run(code, **options)
    deadline = time.monotonic() + 5
    while descriptors() != before and time.monotonic() < deadline: time.sleep(0.02)
    print(descriptors() - before, threading.active_count() - threads)
deadline = time.monotonic() + 5
while threading.active_count() > 1 and time.monotonic() < deadline: time.sleep(0.02)
print(descriptors() < before, threading.active_count())
"""


def test_descriptors_and_threads_do_not_pile_up() -> None:
    """R3: a hundred runs of every kind cost the host nothing that lasts; a program of its own."""
    kinds = [(code, options) for code, options, status in ENDS.values() if status != "timeout"]
    done = subprocess.run(
        [sys.executable, "-c", PILE],
        input=json.dumps(kinds),
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert (done.stdout, done.stderr) == ("0 0\nTrue 1\n", "")


def test_temporary_folders_are_not_used(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """R3: what does not exist on the host's disk cannot be left there."""
    import tempfile

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    home = tmp_path / "home"
    with Belljar(Settings(home=home)) as jar:
        jar.run("open('/tmp/x', 'w').write('x'); open('y', 'w').write('y')", inputs={"z": "z"})
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in tmp_path.rglob("*") if stat.S_ISSOCK(path.stat().st_mode)]


def test_k1_a_python_below_a_linked_folder_has_its_library(tmp_path: Path) -> None:
    """As on systems where /home is a link, and with aliases of versions."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (tmp_path / "linked").symlink_to(sys.base_prefix)
    code = (
        "import sys, belljar\n"
        "print(sys.base_prefix)\n"
        "with belljar.Belljar() as jar:\n"
        "    for fresh in (False, True):\n"
        "        print(jar.run('import ssl, subprocess; print(1)', fresh_exec=fresh).stdout)"
    )
    done = subprocess.run(
        [f"{tmp_path}/linked/bin/{version}", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.split() == [f"{tmp_path}/linked", "1", "1"], done.stderr
