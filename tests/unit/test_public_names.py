"""A1: the names that other people's programs may rely on."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import belljar
from belljar import errors
from belljar.options import RunOptions

PUBLIC = [
    "Allow",
    "Belljar",
    "BelljarError",
    "Busy",
    "Caller",
    "Closed",
    "Egress",
    "EngineError",
    "EngineUnavailable",
    "EnvironmentUnavailable",
    "ErrorInfo",
    "InvalidRequest",
    "Limits",
    "Output",
    "OutputFile",
    "Page",
    "Result",
    "Sandbox",
    "SandboxEnded",
    "SandboxLost",
    "Secret",
    "Settings",
    "TrailError",
    "Unsupported",
    "Usage",
    "aio",
    "fetch",
    "run",
    "wasm",
]

OPTIONS = {
    "language", "environment", "engine", "need",
    "timeout_s", "memory_bytes", "cpus", "processes", "disk_bytes", "disk_files", "open_files",
    "output_bytes", "result_files", "result_bytes",
    "stdin", "stdin_descriptor", "env", "files", "inputs", "filter", "language_level", "fresh_exec",
    "packages", "network", "secrets", "on_output", "on_usage", "caller",
}  # fmt: skip


def test_exported_names_are_pinned() -> None:
    assert sorted(belljar.__all__) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_can_be_imported(name: str) -> None:
    """In a new interpreter: here another test may have imported it before."""
    subprocess.run([sys.executable, "-c", f"from belljar import {name}"], check=True)
    assert getattr(belljar, name) is not None


def test_a_star_import_brings_them_all() -> None:
    names: dict[str, object] = {}
    exec("from belljar import *", names)
    assert set(PUBLIC) <= set(names)


def test_another_name_is_an_ordinary_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'jail'"):
        belljar.jail  # noqa: B018


def test_options_of_run_are_pinned() -> None:
    assert set(RunOptions.__annotations__) == OPTIONS


@pytest.mark.parametrize("name", ["run", "fetch", "warm", "close"])
def test_the_asynchronous_twin_has_the_same_methods(name: str) -> None:
    one, twin = getattr(belljar.Belljar, name), getattr(belljar.aio.Belljar, name)
    assert list(inspect.signature(one).parameters) == list(inspect.signature(twin).parameters)
    assert inspect.iscoroutinefunction(twin)
    assert not inspect.iscoroutinefunction(one)


def test_both_module_level_functions_take_the_same() -> None:
    assert list(inspect.signature(belljar.run).parameters) == ["code", "options"]
    assert list(inspect.signature(belljar.aio.run).parameters) == ["code", "options"]
    assert inspect.iscoroutinefunction(belljar.aio.run)


def errors_defined() -> dict[str, type[BaseException]]:
    return {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, BaseException)
    }


def test_every_error_derives_from_the_root() -> None:
    for error in errors_defined().values():
        assert issubclass(error, belljar.BelljarError)
        assert not issubclass(error, BaseExceptionGroup)


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = {
        line.lstrip("│├└─ ").split()[0] for line in (errors.__doc__ or "").splitlines() if line
    }
    assert set(errors_defined()) <= drawn


def test_every_error_carries_a_hint() -> None:
    for error in errors_defined().values():
        raised = error("what happened", hint="what to do")  # type: ignore[call-arg]
        assert str(raised) == "what happened (what to do)"
        assert raised.hint == "what to do"  # type: ignore[attr-defined]
        assert str(error("what happened")) == "what happened"


def test_importing_the_package_costs_next_to_nothing() -> None:
    """The zygote and the command line import it first: nothing heavy may come along."""
    code = (
        "import sys; before = set(sys.modules); import belljar; print(*set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    heavy = {"asyncio", "dataclasses", "enum", "json", "pathlib", "re", "typing"}
    assert not heavy & set(done.stdout.split())


def test_the_version_is_that_of_the_distribution() -> None:
    from importlib.metadata import version

    assert version("belljar") == belljar.__version__
