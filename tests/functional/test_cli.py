"""`belljar run` as people use it: a real process, real sandboxes (A2, R1-R5)."""

from __future__ import annotations

import base64
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "belljar.cli.main"]


def belljar(
    *arguments: str, stdin: bytes = b"", **options: Any
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *arguments], input=stdin, capture_output=True, timeout=120, **options
    )


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return belljar("run", *arguments, **options)


# -- code in ---------------------------------------------------------------------------------------


def test_code_as_text(tmp_path: Path) -> None:
    """R4"""
    done = run("-c", "print(6 * 7)")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"42\n", b"")


def test_code_as_file_in_the_language_of_its_suffix(tmp_path: Path) -> None:
    """R2, R4"""
    (tmp_path / "x.sh").write_text("echo $((6 * 7)) $BASH_VERSION")
    done = run(str(tmp_path / "x.sh"))
    assert done.returncode == 0 and done.stdout.startswith(b"42 5")


def test_code_on_standard_input() -> None:
    """R4"""
    assert run("-", stdin=b"print('from stdin')").stdout == b"from stdin\n"
    assert run("-", "--language", "bash", stdin=b"echo hi").stdout == b"hi\n"


def test_standard_input_is_passed_on(tmp_path: Path) -> None:
    """R4"""
    upper = "import sys; print(sys.stdin.read().upper(), end='')"
    assert run("-c", upper, stdin=b"ours\n").stdout == b"OURS\n"
    (tmp_path / "given").write_bytes(b"a file\n")
    given = str(tmp_path / "given")
    assert run("-c", upper, "--stdin", given, stdin=b"ours\n").stdout == b"A FILE\n"
    assert run("-c", upper, "--stdin", "/dev/null", stdin=b"ours\n").stdout == b""
    assert run("-", stdin=upper.encode()).stdout == b""


def test_standard_input_that_stays_open_is_passed_on_as_it_comes() -> None:
    """R4: the code answers the first line before the second is written, and the pipe stays."""
    code = "while True:\n    print(input().upper(), flush=True)\n    if input() == 'stop': break"
    with subprocess.Popen(
        [*COMMAND, "run", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin and process.stdout
        process.stdin.write(b"first\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"FIRST\n"
        process.stdin.write(b"stop\n")
        process.stdin.flush()
        assert process.wait(timeout=60) == 0


def test_standard_input_that_is_closed() -> None:
    shell = " ".join([*COMMAND, "run", "-c", "'import sys; print(len(sys.stdin.read()))'", "<&-"])
    done = subprocess.run(["sh", "-c", shell], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"0\n"), done.stderr


def test_a_pipe_whose_writer_comes_later_is_standard_input(tmp_path: Path) -> None:
    """R4: the code starts before there is a writer, and gets all that is written then."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code = "import sys; print('up', flush=True); print(sys.stdin.read())"
    with subprocess.Popen(
        [*COMMAND, "run", "-c", code, "--stdin", str(pipe)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout and process.stdout.readline() == b"up\n"
        with open(pipe, "wb", buffering=0) as writer:
            writer.write(b"first ")
            time.sleep(0.2)
            writer.write(b"second")
        assert process.stdout.read() == b"first second\n"
        assert process.wait(timeout=60) == 0
    assert run("-c", "print('asks for none')", "--stdin", str(pipe)).returncode == 0


def test_variables() -> None:
    """R4"""
    code = "import os; print(os.environ['A'], os.environ['B'])"
    assert run("-c", code, "--env", "A=1", "--env", "B=x=y").stdout == b"1 x=y\n"


def test_the_callers_own_variables_stay_outside() -> None:
    """I2"""
    done = run("-c", "import os; print(dict(os.environ))", env={**os.environ, "SECRET": "s3cr3t"})
    assert done.returncode == 0 and b"s3cr3t" not in done.stdout


# -- exit status -----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_the_codes_own_exit_status(code: int) -> None:
    done = run("-c", f"raise SystemExit({code})")
    assert (done.returncode, done.stderr) == (code, b"")


def test_an_exception_is_status_1_with_its_traceback() -> None:
    done = run("-c", "1/0")
    assert done.returncode == 1
    assert b"ZeroDivisionError" in done.stderr and b"belljar:" not in done.stderr


def test_out_of_time_is_124() -> None:
    """L1"""
    done = run("-c", "print('before', flush=True)\nwhile True: pass", "--timeout", "1")
    assert (done.returncode, done.stdout) == (124, b"before\n")
    assert b"belljar: timed out" in done.stderr and b"1 s" in done.stderr


def test_a_memory_bomb_is_137() -> None:
    """L2"""
    done = run("-c", "x = []\nwhile True: x.append(bytearray(1 << 20))", "--memory", "64M")
    assert done.returncode == 137
    assert b"belljar: out of memory" in done.stderr and b"64 MiB" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGTERM, signal.SIGKILL])
def test_death_by_signal_is_128_and_its_number(number: signal.Signals) -> None:
    done = run("-c", f"import os; os.kill(os.getpid(), {int(number)})")
    assert done.returncode == 128 + number
    assert number.name.encode() in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["-c", "1", "--language", "cobol"],
        ["-c", "1", "--timeout", "0"],
        ["-c", "1", "--timeout", "nan"],
        ["-c", "1", "--timeout", "121"],
        ["-c", "1", "--memory", "much"],
        ["-c", "1", "--memory", "1k"],
        ["-c", "1", "--engine", "cardboard"],
        ["-c", "1", "--environment", "nope"],
        ["-c", "1", "--env", "LD_PRELOAD=/x.so"],
        ["-c", "1", "--env", "NOEQUALS"],
        ["-c", "1", "--filter", "maybe"],
        ["-c", "1", "--input", "/does/not/exist"],
        ["-c", "1", "--stdin", "/does/not/exist"],
        ["-c", "1", "--stdin", "/"],
        ["-c", "print('ran')", "--output", "/dev/null/x"],
        ["-c", "#" * 100_001],
        ["-c", "1", "also.py"],
        ["/does/not/exist.py"],
        ["/etc/hostname.rb"],
        ["-c"],
        ["--nope"],
        [],
    ],
    ids=lambda arguments: " ".join(arguments)[:40],
)
def test_what_is_refused_is_125_with_a_message_and_no_traceback(arguments: list[str]) -> None:
    """R5"""
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (125, b"")
    assert done.stderr.startswith(b"belljar: ") and b"Traceback" not in done.stderr


def test_code_the_filter_denies_is_125_and_does_not_run() -> None:
    """P1"""
    done = run("-c", "print('ran')\nimport ctypes", "--filter", "deny")
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"line 2" in done.stderr and b"ctypes" in done.stderr


# -- output ----------------------------------------------------------------------------------------


def test_both_streams_are_raw_and_apart() -> None:
    """R1"""
    code = "import sys; sys.stdout.buffer.write(bytes(range(256))); sys.stderr.write('err')"
    done = run("-c", code)
    assert (done.stdout, done.stderr) == (bytes(range(256)), b"err")


def test_output_comes_while_the_code_runs() -> None:
    """The second line is printed only after the first was seen here."""
    code = "import time\nprint('first', flush=True)\ntime.sleep(60)"
    process = subprocess.Popen(
        [*COMMAND, "run", "-c", code, "--timeout", "100"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout and process.stdout.readline() == b"first\n"
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def test_output_beyond_the_limit_is_told() -> None:
    """L5"""
    done = run("-c", "print('x' * 100_000)", "--output-bytes", "1k")
    assert done.returncode == 0 and len(done.stdout) < 3000
    assert b"belljar: stdout" in done.stderr and b"dropped" in done.stderr


def test_a_reader_that_goes_away_ends_the_run() -> None:
    process = subprocess.Popen(
        [*COMMAND, "run", "-c", "while True: print('y' * 1000, flush=True)"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout and process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 128 + signal.SIGPIPE
    assert process.stderr and b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    "arguments",
    [["run", "-c", "1", "--json"], ["env", "list"], ["prove", "--list"], ["version"], ["--help"]],
    ids=" ".join,
)
def test_output_that_nobody_reads_is_141(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.parametrize("arguments", [["run", "-c", "1", "--json"], ["env", "list"]], ids=" ".join)
def test_output_that_finds_no_room_is_125(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert done.returncode == 125
    assert b"No space left" in done.stderr and done.stderr.count(b"\n") == 1


def in_a_terminal(*arguments: str) -> bytes:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(COMMAND[0], [*COMMAND, *arguments])
    seen = b""
    try:
        while piece := os.read(terminal, 65536):
            seen += piece
    except OSError:  # how the end of a terminal reads
        pass
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0, seen
    return seen


def test_a_terminal_gets_no_escape_sequences() -> None:
    code = r"print('\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m')"
    seen = in_a_terminal("run", "-c", code)
    assert b"\x1b]" not in seen and b"\x07" not in seen and b"\x1b[2J" not in seen
    assert b"\\x1b]0;title\\x07" in seen and b"\x1b[31mred\x1b[0m" in seen


# -- JSON ------------------------------------------------------------------------------------------


def test_json_is_the_whole_result_and_nothing_else() -> None:
    """R1"""
    code = "import sys; print('out'); print('err', file=sys.stderr); open('f', 'wb').write(b'\\0')"
    done = run("-c", code, "--json")
    result = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, b"")
    assert result["status"] == "ok" and result["success"] is True and result["exit_code"] == 0
    assert (result["stdout"], result["stderr"]) == ("out\n", "err\n")
    assert result["timed_out"] is False and result["truncated"] is False
    assert result["engine"] == "jail" and result["language"] == "python"
    assert result["duration_ms"] > 0 and len(result["execution_id"]) >= 16
    assert result["usage"].keys() == {"cpu_ms", "peak_memory_bytes", "peak_processes"}
    assert result["isolation"]["network"]
    (file,) = result["files"]
    assert file["name"] == "f" and base64.b64decode(file["content_base64"]) == b"\0"


def test_json_of_a_failure_keeps_the_exit_status() -> None:
    done = run("-c", "raise ValueError('no')", "--json")
    result = json.loads(done.stdout)
    assert done.returncode == 1 and result["status"] == "error"
    assert result["error"]["name"] == "ValueError"


def test_json_of_a_refusal_has_message_and_hint() -> None:
    done = run("-c", "1", "--language", "cobol", "--json")
    error = json.loads(done.stdout)["error"]
    assert done.returncode == 125
    assert error["name"] == "UnknownLanguage" and "cobol" in error["message"] and error["hint"]


# -- files -----------------------------------------------------------------------------------------


def test_files_in_and_out(tmp_path: Path) -> None:
    """R4, S2"""
    (tmp_path / "table.csv").write_text("1,2\n")
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "module.py").write_text("answer = 42")
    code = (
        "from tool import module\n"
        "text = open('/data/input/table.csv').read()\n"
        "open('/data/output/copy.csv', 'w').write(text + str(module.answer))\n"
        "import os; os.makedirs('made/deep'); open('made/deep/x', 'w').write('w')\n"
    )
    out = tmp_path / "out"
    done = run(
        "-c",
        code,
        *("--input", str(tmp_path / "table.csv")),
        *("--file", str(tmp_path / "tool")),
        *("--output", str(out)),
    )
    assert done.returncode == 0, done.stderr
    assert (out / "copy.csv").read_text() == "1,2\n42"
    assert (out / "made/deep/x").read_text() == "w"


def test_input_files_cannot_be_changed(tmp_path: Path) -> None:
    """S2"""
    (tmp_path / "a").write_text("kept")
    done = run("-c", "open('/data/input/a', 'w')", "--input", str(tmp_path / "a"))
    assert done.returncode == 1 and (tmp_path / "a").read_text() == "kept"


def test_links_and_odd_names_of_the_guest_stay_inside(tmp_path: Path) -> None:
    """I2: nothing of the host is read, nothing is written outside the folder."""
    (tmp_path / "canary").write_text("host's own")
    code = f"""
import os
os.symlink({str(tmp_path / "canary")!r}, "/data/output/link")
os.symlink("/etc/passwd", "passwd")
os.symlink("..", "up")
os.symlink({str(tmp_path)!r}, "/data/output/folder")
for name in ("..x", "a\\nb", "a\\\\b", "-rf", "\\x1b[2Jz", "é"):
    open(name, "w").write("odd")
os.mkfifo("pipe")
os.link("é", "hard")
"""
    out = tmp_path / "out"
    done = run("-c", code, "--output", str(out))
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["canary", "out"]
    assert (tmp_path / "canary").read_text() == "host's own"
    for entry in out.rglob("*"):
        assert not entry.is_symlink() and "\x1b" not in entry.name and "\n" not in entry.name
        assert entry.read_text() == "odd"
    assert (out / "..x").exists() and (out / "-rf").exists()


def test_links_a_run_finds_in_the_output_folder_are_not_followed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "canary").write_text("kept")
    (out / "x").symlink_to(tmp_path / "canary")
    (out / "d").symlink_to(tmp_path)
    code = "import os; open('x','w').write('n'); os.mkdir('d'); open('d/canary','w').write('n')"
    done = run("-c", code, "--output", str(out))
    assert done.returncode == 0 and b"d/canary" in done.stderr
    assert (tmp_path / "canary").read_text() == "kept"
    assert (out / "x").read_text() == "n" and not (out / "x").is_symlink()


# -- interrupts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_destroys_the_sandbox(number: signal.Signals) -> None:
    """R3: no process of the run is left."""
    mark = f"belljar-test-{os.getpid()}-{int(number)}-{time.monotonic_ns()}"
    code = (
        "import subprocess, time\n"
        f"subprocess.Popen(['{mark}', '60'], executable='/bin/sleep', start_new_session=True)\n"
        "print('up', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [*COMMAND, "run", "-", "--timeout", "100"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin and process.stdout and process.stderr
    process.stdin.write(code.encode())
    process.stdin.close()
    assert process.stdout.readline() == b"up\n"
    assert processes_with(mark)
    process.send_signal(number)
    assert process.wait(30) == 128 + number
    assert b"Traceback" not in process.stderr.read()
    assert not processes_with(mark)


def processes_with(mark: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "cmdline").read_bytes():
                found.append(folder.name)
        except OSError:
            continue
    return found


# -- the rest --------------------------------------------------------------------------------------


def test_without_arguments_there_is_help() -> None:
    done = belljar()
    assert done.returncode == 0
    for verb in (b"run", b"engines", b"doctor", b"prove", b"env", b"version"):
        assert verb in done.stdout


@pytest.mark.parametrize(
    "verb",
    [["run"], ["engines"], ["doctor"], ["prove"], ["env"], ["env", "list"], ["env", "build"]],
)
def test_every_verb_has_help(verb: list[str]) -> None:
    for flag in ("--help", "-h"):
        done = belljar(*verb, flag)
        assert done.returncode == 0 and b"Usage: belljar " + verb[0].encode() in done.stdout
        assert b"\x1b" not in done.stdout and b"[[" not in done.stdout


@pytest.mark.parametrize("verb", ["run", "engines", "doctor", "prove", "env"])
def test_help_has_examples(verb: str) -> None:
    assert f"\n    belljar {verb}".encode() in belljar(verb, "--help").stdout


def test_version() -> None:
    import belljar as package

    expected = f"belljar {package.__version__}\n".encode()
    assert belljar("--version").stdout == belljar("version").stdout == expected


@pytest.mark.parametrize("arguments", [["frob"], ["doctor", "--nope"], ["env", "frob"]])
def test_wrong_use_of_other_verbs_is_2(arguments: list[str]) -> None:
    done = belljar(*arguments)
    assert done.returncode == 2 and done.stderr.startswith(b"belljar: ")


def test_a_plain_run_loads_neither_typer_nor_rich() -> None:
    """The cold start is most of what a one-line run costs."""
    probe = (
        "import sys; from belljar.cli.main import call; status = call(['run', '-c', 'print(1)']);"
        "print([name for name in ('typer', 'rich', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )
    assert done.stdout == b"1\n[]\n", done.stderr


def test_environments_are_listed() -> None:
    done = belljar("env", "list", "--json")
    found = {item["name"]: item for item in json.loads(done.stdout)}
    assert done.returncode == 0
    assert found["base"]["ready"] and not found["base"]["build"]
    assert found["data"]["build"] == "belljar env build data"


def test_environments_that_cannot_be_built_or_removed(tmp_path: Path) -> None:
    home = {**os.environ, "BELLJAR_HOME": str(tmp_path)}
    done = belljar("env", "build", "nope", env=home)
    assert done.returncode == 125 and b"base, data" in done.stderr and b"auto" not in done.stderr
    assert belljar("env", "build", "base", env=home).returncode == 125
    done = belljar("env", "remove", "data", env=home)
    assert done.returncode == 1 and b"not built" in done.stderr


def test_a_probe_is_proven() -> None:
    """I8"""
    done = belljar("prove", "--only", "PV-01", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert report["ok"] and report["held"] == 1 and report["engine"] == "jail"
    table = belljar("prove", "--only", "PV-01")
    assert table.returncode == 0 and b"1 of 1 held" in table.stdout


def test_probes_are_listed_and_not_run() -> None:
    done = belljar("prove", "--list")
    assert done.returncode == 0 and b"PV-17  privilege " in done.stdout
    listed = json.loads(belljar("prove", "--list", "--only", "network,PV-01", "--json").stdout)
    assert {row["boundary"] for row in listed} == {"network", "privilege"}
    assert [row["id"] for row in listed if row["boundary"] == "privilege"] == ["PV-01"]
    unknown = belljar("prove", "--list", "--only", "XX-99")
    assert unknown.returncode == 2 and b"--list" in unknown.stderr


def test_a_probe_that_does_not_exist_is_no_proof() -> None:
    assert belljar("prove", "--only", "XX-99").returncode == 2
    assert belljar("prove", "--only", "PV-01", "--engine", "cardboard").returncode == 125
