"""R5: wrong use gets a clear error that says what to do, before anything is started."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import belljar
from belljar import Belljar, BelljarError, Settings, errors

GIB = 1 << 30

WRONG: dict[str, tuple[dict[str, Any], type[BelljarError], str]] = {
    "code over 100 KB": ({"code": "#" * 100_001}, errors.CodeTooLarge, "100000"),
    "code over 100 KB in bytes": ({"code": "é" * 50_001}, errors.CodeTooLarge, "100002"),
    "code that is bytes": ({"code": b"print(1)"}, errors.InvalidRequest, "text"),
    "code that is nothing": ({"code": None}, errors.InvalidRequest, "text"),
    "code with a lone surrogate": ({"code": "x = '\ud800'"}, errors.InvalidRequest, "line 1"),
    "unknown language": ({"language": "cobol"}, errors.UnknownLanguage, "cobol"),
    "empty language": ({"language": ""}, errors.UnknownLanguage, "known"),
    "language that is no text": ({"language": 7}, errors.UnknownLanguage, "7"),
    "language that is a path": ({"language": "../../bin/sh"}, errors.UnknownLanguage, "known"),
    "unknown engine": ({"engine": "bare-metal"}, errors.UnknownEngine, "bare-metal"),
    "unknown environment": ({"environment": "science"}, errors.UnknownEnvironment, "science"),
    "environment of another language": (
        {"environment": "node"},
        errors.InvalidRequest,
        "has no python",
    ),
    "environment that is a path": ({"environment": "../x"}, errors.UnknownEnvironment, "names"),
    "time-out 0": ({"timeout_s": 0}, errors.LimitExceeded, "timeout_s"),
    "negative time-out": ({"timeout_s": -1}, errors.LimitExceeded, "timeout_s"),
    "time-out NaN": ({"timeout_s": math.nan}, errors.LimitExceeded, "NaN"),
    "infinite time-out": ({"timeout_s": math.inf}, errors.LimitExceeded, "maximum"),
    "time-out above the maximum": ({"timeout_s": 120.1}, errors.LimitExceeded, "120"),
    "time-out that is text": ({"timeout_s": "30"}, errors.LimitExceeded, "number"),
    "time-out that is true": ({"timeout_s": True}, errors.LimitExceeded, "number"),
    "memory below what Python needs": ({"memory_bytes": 1 << 20}, errors.LimitExceeded, "needs"),
    "memory below what Node needs": (
        {"language": "javascript", "memory_bytes": 20 << 20},
        errors.LimitExceeded,
        "javascript needs",
    ),
    "memory below what Go needs": (
        {"language": "go", "memory_bytes": 64 << 20},
        errors.LimitExceeded,
        "go needs",
    ),
    "negative memory": ({"memory_bytes": -1}, errors.LimitExceeded, "memory_bytes"),
    "memory above the maximum": ({"memory_bytes": 1 << 50}, errors.LimitExceeded, "maximum"),
    "half a byte": ({"memory_bytes": 1e8 + 0.5}, errors.LimitExceeded, "whole"),
    "no processes": ({"processes": 0}, errors.LimitExceeded, "processes"),
    "too few processes for Go": (
        {"language": "go", "processes": 3},
        errors.LimitExceeded,
        "go needs",
    ),
    "no processor": ({"cpus": 0}, errors.LimitExceeded, "cpus"),
    "no disk": ({"disk_bytes": 0}, errors.LimitExceeded, "disk_bytes"),
    "no files": ({"disk_files": 0}, errors.LimitExceeded, "disk_files"),
    "no open files": ({"open_files": 0}, errors.LimitExceeded, "open_files"),
    "no output": ({"output_bytes": 0}, errors.LimitExceeded, "output_bytes"),
    "output above the maximum": ({"output_bytes": GIB}, errors.LimitExceeded, "maximum"),
    "files that do not fit": (
        {"files": {"x": bytes(2 << 20)}, "disk_bytes": 1 << 20},
        errors.LimitExceeded,
        "disk",
    ),
    **{
        f"file name {name!r}": ({field: {name: b""}}, errors.InvalidFileName, "")
        for field in ("files", "inputs")
        for name in (
            "../x", "a/../../x", "/etc/passwd", "", ".", "a//b", "a/./b", "a\\..\\b", "a\0b",
            "a\nb", "x" * 300, "d/" * 40 + "x", "\ud800",
        )
    },
    "file name that is no text": ({"files": {7: b""}}, errors.InvalidFileName, "text"),
    "a file named like the code": ({"files": {"main.py": ""}}, errors.InvalidFileName, "code"),
    "a file that is a folder": (
        {"files": {"a": "", "a/b": ""}},
        errors.InvalidFileName,
        "as a folder",
    ),
    "files that are a list": ({"files": ["x"]}, errors.InvalidRequest, "files"),
    "content that is a number": ({"files": {"x": 1}}, errors.InvalidRequest, "bytes or text"),
    **{
        f"variable {name}": ({"env": {name: "1"}}, errors.InvalidVariable, name)
        for name in (
            "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP",
            "NODE_OPTIONS", "BASH_ENV", "GOFLAGS", "PATH", "BELLJAR_HOME", "GLIBC_TUNABLES",
        )
    },
    "variable name with =": ({"env": {"A=B": "1"}}, errors.InvalidVariable, "A=B"),
    "empty variable name": ({"env": {"": "1"}}, errors.InvalidVariable, ""),
    "variable with NUL": ({"env": {"A": "\0"}}, errors.InvalidVariable, "NUL"),
    "variable that is a number": ({"env": {"A": 1}}, errors.InvalidVariable, "text"),
    "a hash seed without fresh_exec": (
        {"env": {"PYTHONHASHSEED": "1"}},
        errors.InvalidVariable,
        "fresh_exec",
    ),
    "stdin that is a number": ({"stdin": 7}, errors.InvalidRequest, "stdin"),
    "stdin of a gigabyte": ({"stdin": b"x" * (17 << 20)}, errors.LimitExceeded, "stdin"),
    "a descriptor that is closed": ({"stdin_descriptor": 999_999}, errors.InvalidRequest, "stdin"),
    "a descriptor that is negative": ({"stdin_descriptor": -1}, errors.InvalidRequest, "stdin"),
    "a descriptor that is text": ({"stdin_descriptor": "0"}, errors.InvalidRequest, "stdin"),
    "two kinds of standard input": (
        {"stdin": "x", "stdin_descriptor": 0},
        errors.InvalidRequest,
        "stdin",
    ),
    "a callback that is none": ({"on_output": "print"}, errors.InvalidRequest, "on_output"),
    "another that is none": ({"on_usage": 7}, errors.InvalidRequest, "on_usage"),
    "unknown filter": ({"filter": "maybe"}, errors.InvalidRequest, "warn"),
    "a filter for Go": ({"filter": "deny", "language": "go"}, errors.InvalidRequest, "Python"),
    "fresh_exec that is a number": ({"fresh_exec": 1}, errors.InvalidRequest, "fresh_exec"),
    "an option that does not exist": ({"timeout": 30}, errors.InvalidRequest, "timeout_s"),
}  # fmt: skip


@pytest.fixture(scope="module")
def unused_traces(make_traces: Callable[[], Any]) -> Any:
    return make_traces()


@pytest.fixture(scope="module")
def unused(unused_traces: Any) -> Iterator[Belljar]:
    with Belljar() as jar:
        yield jar


@pytest.mark.parametrize(("options", "error", "words"), WRONG.values(), ids=WRONG.keys())
def test_wrong_use_is_refused(
    unused: Belljar,
    unused_traces: Any,
    options: dict[str, Any],
    error: type[BelljarError],
    words: str,
) -> None:
    """R5: the right class, words for people, and neither a zygote nor a sandbox was started."""
    before = unused_traces.zygotes()
    with pytest.raises(error) as caught:
        unused.run(**{"code": "print(1)", **options})
    assert isinstance(caught.value, belljar.InvalidRequest)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 700
    str(caught.value).encode()
    assert unused_traces.zygotes() == before
    if not before:  # else one that should have been refused was not
        assert unused_traces.processes() == set()


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, (_, error, _) in WRONG.items()
        if error not in (errors.InvalidRequest, errors.InvalidVariable)
        and "text" not in name
    ],
)  # fmt: skip
def test_a_refusal_says_what_to_do(unused: Belljar, name: str) -> None:
    """R5: the hint is for whoever has to mend it."""
    options, error, _ = WRONG[name]
    with pytest.raises(error) as caught:
        unused.run(**{"code": "print(1)", **options})
    if "half" not in name:
        assert caught.value.hint


def test_exactly_the_maximum_is_allowed(jar: Belljar) -> None:
    """R5: 100 KB of code and 120 s are the most, not too much."""
    code = "print(1)" + "#" * 99_992
    assert len(code) == 100_000
    assert jar.run(code, timeout_s=120).stdout == "1\n"


def test_an_operators_maximum_counts(traces: Any) -> None:
    """R5: the maximum is the operator's; the default follows it down."""
    maxima = belljar.Limits(timeout_s=5, memory_bytes=256 << 20)
    with Belljar(Settings(maxima=maxima, code_bytes=50)) as jar:
        with pytest.raises(errors.LimitExceeded, match="maximum of 5"):
            jar.run("print(1)", timeout_s=6)
        with pytest.raises(errors.CodeTooLarge, match="50 bytes"):
            jar.run("#" * 51)
        assert traces.zygotes() == set()
        assert jar.run("print(1)").stdout == "1\n"


def test_an_unknown_engine_in_the_settings() -> None:
    """R5, I6"""
    with pytest.raises(errors.UnknownEngine, match="jail"), Belljar(Settings(engine="x")) as jar:
        jar.run("print(1)")


def test_a_required_control_that_is_missing_is_an_error(isolation: dict[str, str]) -> None:
    """I2: an operator who insists gets an error instead of a weaker wall, in both directions."""
    with Belljar(Settings(required=("telepathy",))) as jar:
        with pytest.raises(errors.EngineUnavailable, match="telepathy") as caught:
            jar.run("print(1)")
        assert "memory" in caught.value.hint
    with Belljar(Settings(required=("memory", "system_calls", "filesystem"))) as jar:
        if isolation["memory"].startswith("cgroup"):
            assert jar.run("print(1)").success
        else:
            with pytest.raises(errors.EngineUnavailable, match="watchdog") as caught:
                jar.run("print(1)")
            assert "doctor" in caught.value.hint


def test_an_environment_that_is_not_built(tmp_path: Any) -> None:
    """R5: with building turned off the error says how to build it."""
    with Belljar(Settings(home=tmp_path, build_environments=False)) as jar:
        with pytest.raises(belljar.EnvironmentUnavailable, match="data") as caught:
            jar.run("import numpy")
        assert "belljar env build data" in caught.value.hint
        assert jar.run("print(1)").success


def test_warming_something_unknown() -> None:
    """F1, R5"""
    with Belljar() as jar, pytest.raises(errors.UnknownEnvironment, match="science"):
        jar.warm("science", 2)
