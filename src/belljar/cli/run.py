"""`belljar run`: one piece of code, one fresh sandbox, the code's own exit status."""

from __future__ import annotations

import os
import stat
import sys
from typing import Any

from belljar import linux_only
from belljar.cli import network, numbers, there
from belljar.cli.say import say
from belljar.cli.table import Option
from belljar.errors import CodeTooLarge, InvalidRequest, InvalidVariable, UnknownLanguage

OPTIONS = (
    Option("file", "", "FILE|-", "The code; - reads it from standard input.", "argument"),
    Option("code", "--code -c", "CODE", "The code itself."),
    Option(
        "language",
        "--language -l",
        "NAME",
        "python, javascript, typescript, go or bash. Default: by the file's suffix.",
    ),
    Option(
        "environment",
        "--environment -e",
        "NAME",
        "Its packages: auto, base, data …",
        default="auto",
    ),
    Option(
        "engine",
        "--engine",
        "NAME",
        "The wall: auto, jail, docker, gvisor, microvm, wasm …",
        default="auto",
    ),
    Option(
        "need",
        "--need",
        "NEED",
        "What to choose it by: fastest, strongest, files, network, any_language, no_io."
        " Repeatable.",
        "many",
    ),
    Option("timeout", "--timeout -t", "SECONDS", "Wall time. Default: 30."),
    Option("memory", "--memory -m", "SIZE", "Memory of all its processes. Default: 512M."),
    Option("cpus", "--cpus", "CORES", "Share of cores. Default: 1."),
    Option("processes", "--processes", "COUNT", "Processes and threads. Default: 64."),
    Option("disk", "--disk", "SIZE", "What it may write. Default: 100M."),
    Option("disk_files", "--disk-files", "COUNT", "Files it may create. Default: 10000."),
    Option("open_files", "--open-files", "COUNT", "Files open at once. Default: 1024."),
    Option(
        "output_bytes", "--output-bytes", "SIZE", "Kept of stdout and of stderr. Default: 1M each."
    ),
    Option("result_files", "--result-files", "COUNT", "Files brought back. Default: 100."),
    Option("result_bytes", "--result-bytes", "SIZE", "Bytes of files brought back. Default: 50M."),
    Option("env", "--env", "NAME=VALUE", "A variable for the code. Repeatable.", "many"),
    Option(
        "stdin",
        "--stdin",
        "FILE",
        "The code's standard input. Default: ours.",
    ),
    Option(
        "files", "--file", "PATH", "A file or folder to copy into /workspace. Repeatable.", "many"
    ),
    Option(
        "inputs",
        "--input -i",
        "PATH",
        "The same, read-only in /data/input. Repeatable.",
        "many",
    ),
    Option(
        "output",
        "--output -o",
        "DIR",
        "Where to put what the code leaves in /data/output and /workspace.",
    ),
    Option(
        "packages",
        "--package",
        "REQUIREMENT",
        "A Python package that the code needs, such as humanize or rich>=13. Repeatable.",
        "many",
    ),
    *network.OPTIONS,
    Option("filter", "--filter", "MODE", "The static filter: off, warn or deny.", default="off"),
    Option(
        "language_level",
        "--language-level",
        "LEVEL",
        "full, or restricted: Python compiled by RestrictedPython.",
        default="full",
    ),
    Option("fresh_exec", "--fresh-exec", "", "A newly executed interpreter, no warm fork.", "flag"),
    Option("json", "--json", "", "Print the result as JSON, and nothing else.", "flag"),
    *there.OPTIONS,
)

EPILOG = """\
Exit status: the code's own; 124 out of time; 137 out of memory; 125 refused or not runnable;
128+n killed by signal n; 130 interrupted.

\b
Examples:
  belljar run -c "print(6 * 7)"
  belljar run script.ts --timeout 5 --memory 256M
  belljar run plot.py --input table.csv --output results/
  belljar run unknown.py --need strongest
  belljar run client.py --allow-host api.example.com --secret API_KEY=env:API_KEY@api.example.com
  echo hello | belljar run -c "print(input().upper())"
  belljar run - --language bash < script.sh
  belljar run script.py --url https://belljar.example
"""

OTHER_SUFFIXES = {"mjs": "javascript", "cjs": "javascript", "mts": "typescript", "bash": "bash"}
"""Beside those that are names of their language, such as py and ts."""
MOST_CODE = 1 << 24
"""Read of what is given as code; policy's own limit is far below."""


def run(
    *,
    file: str | None,
    code: str | None,
    language: str | None,
    environment: str,
    engine: str,
    need: list[str],
    timeout: str | None,
    memory: str | None,
    cpus: str | None,
    processes: str | None,
    disk: str | None,
    disk_files: str | None,
    open_files: str | None,
    output_bytes: str | None,
    result_files: str | None,
    result_bytes: str | None,
    env: list[str],
    stdin: str | None,
    files: list[str],
    inputs: list[str],
    output: str | None,
    packages: list[str],
    allow_host: list[str],
    allow_method: list[str],
    allow_path: list[str],
    secret: list[str],
    secret_header: list[str],
    filter: str,
    language_level: str,
    fresh_exec: bool,
    json: bool,
    url: str | None,
    key: str | None,
) -> int:
    """Run code in a fresh sandbox that is destroyed afterwards."""
    limits = {
        "timeout_s": numbers.number("--timeout", timeout),
        "memory_bytes": numbers.size("--memory", memory),
        "cpus": numbers.number("--cpus", cpus),
        "processes": numbers.count("--processes", processes),
        "disk_bytes": numbers.size("--disk", disk),
        "disk_files": numbers.count("--disk-files", disk_files),
        "open_files": numbers.count("--open-files", open_files),
        "output_bytes": numbers.size("--output-bytes", output_bytes),
        "result_files": numbers.count("--result-files", result_files),
        "result_bytes": numbers.size("--result-bytes", result_bytes),
    }
    source = read_code(code, file)
    options = {
        "language": language or guess_language(file),
        "environment": environment,
        "engine": engine,
        "need": tuple(name for item in need for name in item.split(",")),
        "env": variables(env),
        "files": read_files("--file", files),
        "inputs": read_files("--input", inputs),
        "stdin_descriptor": standard_input(stdin, taken=code is None and file == "-"),
        "packages": tuple(packages),
        "filter": filter,
        "language_level": language_level,
        "fresh_exec": fresh_exec,
        **network.options(allow_host, allow_method, allow_path, secret, secret_header),
    }
    if output is not None:
        from belljar.cli.files import make_folder

        make_folder("--output", output)
    where = there.place(url, key)
    if where:
        options, limits = there.sendable(options), there.sendable(limits)
    return _run(source, options, limits, where, output=output, json=json)


def _run(
    source: str,
    options: dict[str, Any],
    limits: dict[str, float | None],
    where: dict[str, str],
    *,
    output: str | None,
    json: bool,
) -> int:
    if not where:
        linux_only.check()
        from belljar.cli import ahead

        ahead.begin(source, options)  # while the zygote boots, the rest is loaded

    from belljar.cli import verdict
    from belljar.cli.session import Interrupted, execute
    from belljar.policy.limits import requested_limits
    from belljar.settings import Settings

    settings = Settings(pool_size=0)  # one run: a second sandbox would wait for nobody
    try:
        result = execute(source, {**options, **limits}, settings, live=not json, where=where)
    except Interrupted as interrupt:
        return verdict.SIGNALLED + interrupt.signal
    finally:
        if not where:
            ahead.abandon()
    if json:
        print(result.to_json(), flush=True)
    if options.get("need") and not json:
        say(f"behind {result.engine}: {result.engine_reason}")
    known = None if where else requested_limits(settings, limits)
    for line in verdict.explain(result, known):
        say(line)
    if output is not None:
        from belljar.cli import files

        for remark in files.write(output, result.files):
            say(remark)
    return verdict.exit_status(result)


def read_code(code: str | None, file: str | None) -> str:
    if code is not None and file is None:
        return code
    if file is None or code is not None:
        raise InvalidRequest(
            "give the code once: -c CODE, FILE, or - for standard input",
            hint='for example: belljar run -c "print(1)"',
        )
    if file == "-":
        content = sys.stdin.buffer.read(MOST_CODE + 1)
    else:
        from belljar.cli.files import read_file

        content = read_file("FILE", file, most=MOST_CODE + 1)
    if len(content) > MOST_CODE:
        raise CodeTooLarge(f"the code is longer than {MOST_CODE} bytes", hint="is it data?")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the code is not UTF-8 text: {error}") from error


def guess_language(file: str | None) -> str:
    """By the suffix; code without one is Python."""
    from belljar.runtimes import languages

    suffix = os.path.splitext(file or "")[1].lower().removeprefix(".")
    if not suffix:
        return "python"
    try:
        return OTHER_SUFFIXES.get(suffix) or languages.get(suffix).name
    except UnknownLanguage as error:
        raise UnknownLanguage(
            f"the suffix .{suffix} is no language's", hint=f"say --language; {error.hint}"
        ) from error


def read_files(option: str, paths: list[str]) -> dict[str, bytes]:
    if not paths:
        return {}
    from belljar.cli import files

    return files.read(option, paths)


def variables(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals:
            raise InvalidVariable(f"--env {item!r}: it has no =", hint="write --env NAME=VALUE")
        found[name] = value
    return found


def standard_input(file: str | None, *, taken: bool) -> int | None:
    """The descriptor to pass on while the code runs; None when there is nothing to pass."""
    if file is not None:
        try:
            # Not to wait for the writer of a pipe: the code starts, and its input comes later.
            flags = linux_only.open_flags("O_RDONLY", "O_CLOEXEC", "O_NONBLOCK")
            descriptor = os.open(file, flags)
        except OSError as error:
            raise InvalidRequest(f"--stdin: {file!r}: {error.strerror}") from error
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise InvalidRequest(f"--stdin: {file!r} is a folder", hint="name a file or a pipe")
        return descriptor
    if taken or sys.stdin is None:
        return None
    return sys.stdin.fileno()
