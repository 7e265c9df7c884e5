"""P1: the static filter in front of real runs: a filter, never the wall."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from belljar import Belljar, errors
from belljar.policy.filter import Rule, Rules


def test_deny_says_line_and_reason_and_runs_nothing(jar: Belljar) -> None:
    """P1"""
    result = jar.run("print('ran')\n\nimport subprocess\nsubprocess.run(['ls'])", filter="deny")
    assert result.status == "denied"
    assert not result.success
    assert (result.exit_code, result.signal, result.stdout) == (None, None, "")
    assert result.findings[0].line == 3
    assert "subprocess" in result.findings[0].message
    assert "line 3" in result.stderr
    assert "starts other programs" in result.stderr
    assert result.execution_id
    assert result.to_dict()["findings"][0]["line"] == 3


def test_warn_runs_and_tells(jar: Belljar) -> None:
    """P1"""
    result = jar.run("import subprocess\nprint('ran')", filter="warn")
    assert (result.status, result.stdout) == ("ok", "ran\n")
    assert any("line 1" in warning and "subprocess" in warning for warning in result.warnings)
    assert result.findings[0].line == 1


def test_off_says_nothing(jar: Belljar) -> None:
    """P1: the default."""
    result = jar.run("import subprocess; print('ran')")
    assert (result.stdout, result.warnings, result.findings) == ("ran\n", (), ())


@pytest.mark.parametrize("mode", ["warn", "deny"])
def test_harmless_code_passes(jar: Belljar, mode: Any) -> None:
    """P1"""
    code = "import json, math\nprint(json.dumps([math.pi]))\nopen('/workspace/x', 'w').write('y')"
    result = jar.run(code, filter=mode)
    assert result.success, result
    assert (result.findings, result.warnings) == ((), ())
    assert [file.name for file in result.files] == ["x"]


def test_a_syntax_error_is_the_codes_own(jar: Belljar) -> None:
    """P1: not the filter's business; the run says it better."""
    result = jar.run("def f(:", filter="deny")
    assert result.status == "error"
    assert result.error
    assert result.error.name == "SyntaxError"


def test_modules_that_come_along_are_read_too(jar: Belljar) -> None:
    """P1"""
    result = jar.run("import helper", files={"helper.py": "x = 1\nimport ctypes\n"}, filter="deny")
    assert result.status == "denied"
    assert "helper.py" in result.stderr


def test_rules_of_the_operators_own() -> None:
    """P1"""
    rules = Rules(blocked=(Rule("module", "json", "we dislike it"),))
    with Belljar(rules=rules) as jar:
        assert jar.run("import subprocess", filter="deny").success
        denied = jar.run("import json", filter="deny")
        assert denied.status == "denied"
        assert "we dislike it" in denied.stderr
    with Belljar(rules=Rules(blocked=(), allowed_modules=frozenset({"math"}))) as jar:
        assert jar.run("import math", filter="deny").success
        assert jar.run("import json", filter="deny").status == "denied"


HOSTILE = {
    "nested brackets": "(" * 99_999,
    "balanced brackets": "(" * 49_999 + ")" * 49_999,
    "nested lists": "[" * 49_999 + "]" * 49_999,
    "minus signs": "-" * 99_998 + "1",
    "nots": "not " * 24_000 + "1",
    "NUL bytes": "print(1)\0import os\n" + "\0" * 90_000,
    "attributes": "a" + ".a" * 49_000,
    "calls": "f" + "()" * 49_000,
    "subscripts": "x" + "[0]" * 33_000,
    "powers": "2" + "**2" * 33_000,
    "lambdas": "lambda:" * 14_000 + "0",
    "conditionals": "0 if 0 else " * 8_000 + "0",
    "indentation": "".join(" " * n + "if 1:\n" for n in range(400)) + " " * 400 + "pass",
    "f-strings": "f'{" * 5_000 + "1" + "}'" * 5_000,
    "a huge number": "9" * 99_000,
    "a huge power": "x = 9**9**9",
    "decorators": "@f\n" * 33_000 + "def g(): pass",
    "strings": "'a' " * 24_000,
    "a strange encoding": "# -*- coding: utf-7 -*-\n+AGEAYg-",
    "an unknown encoding": "# -*- coding: nonsense -*-\nx = 1",
    "continuation": "\\\n" * 49_000 + "1",
    "form feeds": "\f" * 99_000 + "1",
    "names that look alike": "ｉｍｐｏｒｔ os\nℐ = 1\nimport ｏｓ",
    "right to left": "x = '\u202e' # \u2066",
}  # fmt: skip


@pytest.mark.parametrize("code", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_source_hurts_nobody(jar: Belljar, code: str) -> None:
    """P1: it is parsed behind a wall; the host neither crashes, nor stalls, nor grows."""
    before, started = peak_bytes(), time.monotonic()
    for mode in ("deny", "warn"):
        result = jar.run(code, filter=mode, timeout_s=2)
        assert result.status in ("ok", "error", "timeout", "out_of_memory", "killed", "denied")
        if mode == "warn":
            assert result.status != "denied"
        result.to_json().encode()
    assert time.monotonic() - started < 20
    assert peak_bytes() - before < 40 << 20
    assert jar.run("print(1)", filter="deny").stdout == "1\n"


def test_a_lone_surrogate_is_refused_before(jar: Belljar) -> None:
    """P1, R5"""
    with pytest.raises(errors.InvalidRequest, match="line 2"):
        jar.run("x = 1\ny = '\ud800'", filter="deny")


@pytest.mark.parametrize("name", ["nested brackets", "minus signs", "attributes"])
def test_what_could_not_be_read_is_denied(jar: Belljar, name: str) -> None:
    """P1: fail closed, unless it is a plain syntax error that cannot run anyway."""
    result = jar.run(HOSTILE[name], filter="deny", timeout_s=5)
    if result.status != "denied":
        assert result.status == "error"
        assert result.error
        assert result.error.name in ("SyntaxError", "MemoryError", "RecursionError")


def peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
