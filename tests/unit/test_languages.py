"""Languages as plug-ins (R2)."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import types
from pathlib import Path

import pytest

from belljar.errors import UnknownLanguage
from belljar.model import MIB, Limits
from belljar.runtimes import languages
from belljar.runtimes.languages import Language


def launch(name: str, **limits: float) -> languages.Launch:
    language = languages.get(name)
    return language.launch(
        environment_path="/opt/belljar/x",
        limits=Limits(**limits),  # type: ignore[arg-type]
        interpreter="/usr/bin/python3.11",
    )


@pytest.mark.parametrize(
    ("asked", "name", "file_name", "environment"),
    [
        ("python", "python", "main.py", "base"),
        ("py", "python", "main.py", "base"),
        ("Python3", "python", "main.py", "base"),
        ("javascript", "javascript", "main.js", "node"),
        ("js", "javascript", "main.js", "node"),
        ("node", "javascript", "main.js", "node"),
        ("typescript", "typescript", "main.ts", "node"),
        ("ts", "typescript", "main.ts", "node"),
        ("bash", "bash", "main.sh", "base"),
        ("sh", "bash", "main.sh", "base"),
        ("go", "go", "main.go", "go"),
        ("golang", "go", "main.go", "go"),
    ],
)
def test_R2_every_language_is_found_by_each_of_its_names(
    asked: str, name: str, file_name: str, environment: str
) -> None:
    language = languages.get(asked)
    assert (language.name, language.file_name, language.environment) == (
        name,
        file_name,
        environment,
    )


@pytest.mark.parametrize("name", ["cobol", "", "main.py", "pyth\x00on", "x" * 100_000])
def test_R2_an_unknown_language_is_refused_with_those_that_are_known(name: str) -> None:
    with pytest.raises(UnknownLanguage) as caught:
        languages.get(name)
    for language in languages.BUILT_IN:
        assert language.name in caught.value.hint
    assert len(str(caught.value)) < 300


def test_names_are_unique() -> None:
    names = [name for item in languages.BUILT_IN for name in (item.name, *item.aliases)]
    assert len(names) == len(set(names))


def test_python_is_started_by_the_interpreter_the_engine_gives() -> None:
    assert launch("python").argv == ("/usr/bin/python3.11", "-s", "main.py")
    assert launch("python").compile_argv == ()


def test_node_is_told_the_memory_of_the_run_and_not_less_L2() -> None:
    """Less, and V8 would abort by itself instead of meeting the wall's out-of-memory verdict."""
    for name in ("javascript", "typescript"):
        argv = launch(name, memory_bytes=300 * MIB).argv
        assert argv[0] == "/opt/belljar/x/bin/node"
        assert "--max-old-space-size=300" in argv


def test_go_compiles_first_and_runs_what_came_out() -> None:
    started = launch("go")
    assert started.compile_argv[0] == "/opt/belljar/x/bin/belljar-go-build"
    assert started.compile_argv[1:] == started.argv
    assert not started.argv[0].startswith("/workspace"), "it would come back as a result file"


@pytest.mark.parametrize(("cpus", "threads"), [(0.1, "1"), (1.0, "1"), (1.5, "2"), (4.0, "4")])
def test_L1_go_uses_the_cores_of_the_run_not_of_the_machine(cpus: float, threads: str) -> None:
    assert launch("go", cpus=cpus).variables["GOMAXPROCS"] == threads


def test_variables_every_language_gets() -> None:
    for language in languages.BUILT_IN:
        variables = launch(language.name).variables
        assert (
            variables["PATH"] == "/opt/belljar/x/bin:/opt/belljar/bin:/usr/local/bin:/usr/bin:/bin"
        )
        assert variables["HOME"] == "/workspace"
        assert not any("{" in value for value in variables.values())


def test_every_minimum_is_below_the_default_limits() -> None:
    for language in languages.BUILT_IN:
        assert 0 < language.minimum_memory_bytes < Limits().memory_bytes
        assert 0 < language.minimum_processes < Limits().processes


RUBY = Language(
    name="ruby",
    file_name="main.rb",
    argv=("/usr/bin/ruby", "{file}"),
    minimum_memory_bytes=MIB,
    minimum_processes=1,
)


def offer(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    entry = importlib.metadata.EntryPoint("ruby", value, languages.ENTRY_POINT_GROUP)

    def entry_points(*, group: str, name: str = entry.name) -> importlib.metadata.EntryPoints:
        found = [entry] if (group, name) == (entry.group, entry.name) else []
        return importlib.metadata.EntryPoints(found)

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    stranger = types.ModuleType("stranger")
    vars(stranger).update(RUBY=RUBY, NOT_A_LANGUAGE="ruby")
    monkeypatch.setitem(sys.modules, "stranger", stranger)


def test_R2_another_package_adds_a_language(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "stranger:RUBY")
    assert languages.get("ruby") is RUBY
    assert languages.get("Ruby") is RUBY
    with pytest.raises(UnknownLanguage, match=r"known languages: python, .*, go, ruby"):
        languages.get("cobol")


@pytest.mark.parametrize("value", ["stranger:NOT_A_LANGUAGE", "stranger:missing", "nowhere:RUBY"])
def test_a_broken_plug_in_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    offer(monkeypatch, value)
    with pytest.raises(UnknownLanguage, match=r"ruby.*broken"):
        languages.get("ruby")


def test_a_plug_in_cannot_replace_a_built_in_language(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_arguments: str) -> list[object]:
        raise AssertionError("looked up although the name is built in")

    monkeypatch.setattr(importlib.metadata, "entry_points", refuse)
    assert languages.get("python").name == "python"


def test_f2_who_asks_for_what_does_not_exist_has_it_looked_for_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It takes milliseconds; and what is installed meanwhile is found."""
    looked = 0

    def entry_points(**_: str) -> tuple[()]:
        nonlocal looked
        looked += 1
        return ()

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    for number in range(50):
        with pytest.raises(UnknownLanguage):
            languages.get(f"no-{number}")
    assert looked == 1
    os.utime(tmp_path, ns=(1, 1))  # as an installation changes the folder
    with pytest.raises(UnknownLanguage):
        languages.get("ruby")
    assert looked == 2
