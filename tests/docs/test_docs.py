"""The documentation against the code: what is written is true, what is shown runs."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import os
import re
import shlex
import subprocess
import sys
import tomllib
import typing
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import typer.main

import belljar
from belljar import errors
from belljar.cli import main, run, say, verdict
from belljar.cli.app import app
from belljar.engines import registry
from belljar.engines.base import Capabilities
from belljar.engines.linux import root
from belljar.environments import catalogue
from belljar.model import GIB, KIB, MIB, Limits, Result, Status
from belljar.options import RunOptions
from belljar.policy.limits import BOUNDS
from belljar.probes import load
from belljar.runtimes import languages
from belljar.runtimes.guest import protocol
from belljar.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
README, LIBRARY = ROOT / "README.md", ROOT / "docs/library.md"
SPECIFICATION, THREATS = ROOT / "docs/specification.md", ROOT / "docs/threat-model.md"
ARCHITECTURE = ROOT / "docs/architecture.md"

# What Belljar is asked to do so far; each has a promise, or says what it waits for.
MISSION = {
    *("R1", "R2", "R3", "R4", "R5"),
    *("L1", "L2", "L3", "L4", "L5", "L6", "L7"),
    *("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8"),
    *("S1", "S2", "S3", "S4", "S5", "S6"),
    *("N1", "N2", "N3", "P1", "P2", "A1", "A2", "A3", "A4", "A5", "F1", "F2"),
}

_PROBE = re.compile(r"\b(?:AP|CC|FS|NW|PR|PV|RS)-\d\d\b")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def section(page: Path, heading: str) -> str:
    """The text below a heading, up to the next one."""
    text = page.read_text()
    match = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert match, f"{name(page)} has no heading {heading!r}"
    return match[1]


def rows(text: str) -> list[list[str]]:
    """The body of every table in a text, as cells."""
    found: list[list[str]] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if set("".join(cells)) <= set("-:"):
            found.pop()  # what stood above was the head
        else:
            found.append(cells)
    return found


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# -- what is shown runs ------------------------------------------------------------------------


def blocks(page: Path, language: str) -> Iterator[tuple[int, str, str | None]]:
    """(line, code, what the page shows as its output, if the next block is text)."""
    text = page.read_text()
    found = list(_FENCE.finditer(text))
    for index, fence in enumerate(found):
        if fence[1] != language:
            continue
        after = found[index + 1] if index + 1 < len(found) else None
        adjacent = after and after[1] == "text" and not text[fence.end() : after.start()].strip()
        shown = after[2] if after and adjacent else None
        yield text.count("\n", 0, fence.start()) + 1, fence[2], shown


EXAMPLES = [
    ROOT / "docs" / page
    for page in ("restricted.md", "engines.md", "files.md", "agents.md", "kept.md")
]
SHOWN = [
    pytest.param(code, shown, id=f"{name(page)}:{line}")
    for page in (README, LIBRARY, *EXAMPLES)
    for line, code, shown in blocks(page, "python")
]


@pytest.mark.parametrize(("code", "shown"), SHOWN)
def test_a1_every_python_block_runs_and_prints_what_is_shown(
    code: str, shown: str | None, tmp_path: Path
) -> None:
    script = tmp_path / "block.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stderr
    if shown is not None:
        assert done.stdout == shown


def test_r1_the_sample_code_does_its_work_and_is_refused_the_rest(tmp_path: Path) -> None:
    """R1, S2, I1, I2, I4, L4: what `make run` shows to a newcomer."""
    result = belljar.run((ROOT / "examples/hello.py").read_text())
    assert result.status == "ok", result.stderr
    assert "it worked" not in result.stdout
    assert result.stdout.count("[Errno") == 5
    assert "[Errno -3] Temporary failure in name resolution" in result.stdout
    assert [file.path for file in result.files] == ["/data/output/squares.csv"]


def test_a1_the_tour_ends_well() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/tour.py")],
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    for line in ("a mistake: error", "an endless loop: timeout", "too much memory: out_of_memory"):
        assert line in done.stdout


# -- commands are real ---------------------------------------------------------------------------


def commands() -> list[tuple[str, list[str]]]:
    """Every command in a shell block, and every `make …` or `belljar …` in running text."""
    found: list[tuple[str, list[str]]] = []
    for page in PAGES:
        text = page.read_text()
        lines = [line for _, code, _ in blocks(page, "sh") for line in code.splitlines()]
        plain = _FENCE.sub("", text)
        lines += [words for words in quoted(plain.replace("\n", " ")) if " " in words]
        for line in lines:
            for words in simple_commands(line.replace("…", "")):
                if Path(words[0]).name in ("make", "belljar"):
                    found.append((f"{name(page)}: {line}", [Path(words[0]).name, *words[1:]]))
    return found


def simple_commands(line: str) -> Iterator[list[str]]:
    """A shell line cut at pipes, redirections and semicolons."""
    reader = shlex.shlex(line, posix=True, punctuation_chars="<>|;&")
    reader.whitespace_split = True
    for operator, words in itertools.groupby(reader, lambda word: set(word) <= set("<>|;&")):
        if not operator:
            yield list(words)


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def make_variables() -> set[str]:
    text = (ROOT / "Makefile").read_text()
    return set(re.findall(r"^([A-Z_]+) *[:?]?=", text, re.MULTILINE))


def test_a2_there_are_commands_in_the_readme() -> None:
    spoken = [words for where, words in commands() if where.startswith("README")]
    assert ["make", "run"] in spoken and ["make", "test"] in spoken
    assert {words[1] for words in spoken if words[0] == "belljar"} >= {"run", "doctor", "prove"}


@pytest.mark.parametrize(
    "words", [words for _, words in commands()], ids=[where for where, _ in commands()]
)
def test_a2_every_documented_command_is_one(words: list[str]) -> None:
    program, *arguments = words
    if program == "make":
        given = {word.partition("=")[0] for word in arguments if "=" in word}
        assert {word for word in arguments if "=" not in word} <= make_targets()
        assert given <= make_variables()
        return
    assert arguments[0] in main.VERBS or arguments[0].startswith("--")
    command: typing.Any = typer.main.get_command(app)
    while getattr(command, "commands", None) and arguments[:1] and arguments[0] in command.commands:
        command = command.commands[arguments.pop(0)]
    if arguments:  # a verb alone is only mentioned; with arguments it must be usable
        with suppress(typer.Exit):  # --version has done its work
            command.make_context("belljar", list(arguments))


def test_a2_the_exit_statuses_of_the_readme_are_those_of_the_program() -> None:
    text = section(README, "The command line")
    for status in (verdict.TIMED_OUT, verdict.OUT_OF_MEMORY, say.REFUSED, verdict.SIGNALLED):
        assert str(status) in text
        assert str(status) in run.EPILOG


# -- tables are complete -------------------------------------------------------------------------


def amount(cell: str) -> float:
    """30, 0.01, 512 MiB."""
    number, _, unit = cell.partition(" ")
    return float(number) * {"": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}[unit]


def test_r1_every_option_of_run_is_documented() -> None:
    named = {
        option
        for cells in rows(section(LIBRARY, "Options of `run`"))
        for option in quoted(cells[0])
    }
    limits = set(BOUNDS)
    assert named - limits == set(RunOptions.__annotations__) - limits


def test_l1_the_table_of_limits_is_the_code() -> None:
    """L1-L5: defaults, least and maxima."""
    table = rows(section(LIBRARY, "Limits"))
    documented = {quoted(cells[0])[0]: [amount(cell) for cell in cells[1:4]] for cells in table}
    maxima = Settings(home=Path()).maxima
    assert documented == {
        field.name: [
            float(getattr(Limits(), field.name)),
            float(BOUNDS[field.name].least),
            float(getattr(maxima, field.name)),
        ]
        for field in dataclasses.fields(Limits)
    }


def test_r1_every_field_of_a_result_is_documented() -> None:
    named = [field for cells in rows(section(LIBRARY, "The result")) for field in quoted(cells[0])]
    fields = {field.name for field in dataclasses.fields(Result)}
    properties = {key for key, value in vars(Result).items() if isinstance(value, property)}
    assert sorted(named) == sorted(fields | properties)


def test_r1_every_status_is_documented() -> None:
    named = [quoted(cells[0])[0] for cells in rows(section(LIBRARY, "Statuses"))]
    assert sorted(named) == sorted(typing.get_args(Status))


def test_a1_every_error_is_documented_and_where_it_is_found() -> None:
    known = {
        item.__name__: item.__name__ in belljar.__all__
        for item in vars(errors).values()
        if inspect.isclass(item) and issubclass(item, errors.BelljarError)
    }
    known.pop("BelljarError")
    table = rows(section(LIBRARY, "Errors"))
    assert {quoted(cells[0])[0]: "*" not in cells[0] for cells in table} == known


def test_a1_every_setting_is_documented_with_its_default() -> None:
    table = {quoted(cells[0])[0]: cells[1] for cells in rows(section(LIBRARY, "Settings"))}
    assert set(table) == {field.name for field in dataclasses.fields(Settings)}
    for field in dataclasses.fields(Settings):
        if field.default is not dataclasses.MISSING:
            assert table[field.name].strip("`").replace('"', "'") == repr(field.default)


def test_r2_every_language_is_documented_with_its_limits() -> None:
    documented = []
    for cells in rows(section(LIBRARY, "Languages")):
        language, aliases, file, environment = (quoted(cell) for cell in cells[:4])
        least = amount(cells[4]), int(cells[5])
        documented.append((*language, tuple(aliases), *file, *environment, *least))
    assert documented == [
        (
            item.name,
            item.aliases,
            item.file_name,
            item.environment,
            item.minimum_memory_bytes,
            item.minimum_processes,
        )
        for item in languages.BUILT_IN
    ]


def test_s5_every_environment_is_documented_with_its_packages() -> None:
    table = {
        quoted(cells[0])[0]: (cells[1], cells[2].lower())
        for cells in rows(section(LIBRARY, "Environments"))
    }
    assert {key: runtime for key, (runtime, _) in table.items()} == {
        item.name: item.runtime for item in catalogue.BUILT_IN
    }
    for package in catalogue.get("data").packages:
        assert re.split("[<>=]", package)[0] in table["data"][1]


# -- promises have tests -------------------------------------------------------------------------


def names_of_tests(path: Path) -> set[str]:
    """Names of tests, methods as Class::name; read, not run."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found.add(node.name)  # whose tests are inherited, as those of a conformance suite
            found |= {
                f"{node.name}::{item.name}"
                for item in node.body
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return {test for test in found if test.rpartition("::")[2].startswith(("test_", "Test"))}


def promises() -> list[tuple[str, str, list[str], list[str]]]:
    """(mission ids, promise, tests, probes) of every line outside Pending."""
    kept = SPECIFICATION.read_text().partition("\n## Pending\n")[0]
    return [
        (cells[0], cells[1], quoted(cells[2]), _PROBE.findall(cells[2]))
        for cells in rows(kept)
        if re.fullmatch(r"[A-Z]\d(, [A-Z]\d)*", cells[0])
    ]


@pytest.mark.parametrize("promise", promises(), ids=[f"{p[0]} {p[1][:60]}" for p in promises()])
def test_every_promise_names_tests_that_exist(
    promise: tuple[str, str, list[str], list[str]],
) -> None:
    _, _, tests, probes = promise
    assert tests or probes, "a promise without a test belongs under Pending"
    for test in tests:
        path, _, function = test.partition("::")
        assert (ROOT / path).is_file(), path
        assert function in names_of_tests(ROOT / path), test
    assert set(probes) <= {probe.id for probe in load()}


def test_every_request_of_the_mission_is_answered() -> None:
    """Each is promised, or stands under Pending with the reason."""
    pending = section(SPECIFICATION, "Pending")
    cells = [promise[0] for promise in promises()] + [row[0] for row in rows(pending)]
    named = {name for cell in cells for name in cell.split(", ")}
    assert named >= MISSION


def test_every_probe_that_is_named_exists() -> None:
    known = {probe.id for probe in load()}
    for page in PAGES:
        assert set(_PROBE.findall(page.read_text())) <= known, name(page)


def test_i8_the_threat_model_names_every_probe_that_applies() -> None:
    named = set(_PROBE.findall(THREATS.read_text()))
    assert named == {probe.id for probe in load() if not probe.needs}


# -- pages hang together -------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the usual renderers make them."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")
        for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_link_is_broken(page: Path) -> None:
    text = _FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{target} leads nowhere"
        if anchor:
            assert anchor in anchors(linked), f"{target}: no such heading"


@pytest.mark.parametrize("page", sorted((ROOT / "docs/adr").glob("*.md")), ids=name)
def test_every_decision_has_its_parts(page: Path) -> None:
    assert re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", page.name)
    number = int(page.name[:4])
    text = page.read_text()
    assert text.startswith(f"# {number}. ")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    parts = [heading for heading in headings if heading in ("Context", "Decision", "Consequences")]
    assert parts == ["Context", "Decision", "Consequences"]


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = [int(page.name[:4]) for page in sorted((ROOT / "docs/adr").glob("*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_map_of_the_code_is_right() -> None:
    text = ARCHITECTURE.read_text()
    for path in re.findall(r"`((?:src/belljar|bench|compat)/[^`]*)`", text):
        assert (ROOT / path).exists(), path
    named = {path.strip("/") for path in re.findall(r"`src/belljar/([^`]*)`", text)}
    for place in ("", "engines/"):
        for item in (ROOT / "src/belljar" / place).iterdir():
            if item.suffix in ("", ".py") and not item.name.startswith("_"):
                found = f"{place}{item.name}"
                assert any(f"{path}/".startswith(f"{found}/") for path in named), found
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    drawn = " ".join(next(b for b in _FENCE.findall(text) if "cli |" in b[1])[1].split())
    assert drawn == " → ".join(layers).replace("belljar.", "")


def test_the_table_of_the_protocol_is_complete() -> None:
    kinds = {value: key for key, value in vars(protocol).items() if type(value) is int}
    for heading, from_host, from_agent in (
        ("The protocol", protocol.FROM_HOST, protocol.FROM_AGENT),
        ("With a kept sandbox", protocol.KEPT_FROM_HOST, protocol.KEPT_FROM_AGENT),
    ):
        drawn: list[set[str]] = [set(), set()]
        for cells in rows(section(ARCHITECTURE, heading)):
            for side in (0, 1):
                drawn[side] |= set(cells[2 * side].replace(",", " ").split())
        assert drawn[0] == {kinds[kind] for kind in from_host}
        assert drawn[1] == {kinds[kind] for kind in from_agent}


def test_i2_what_can_be_read_of_the_hosts_etc_is_told() -> None:
    told = THREATS.read_text().partition("from `/etc` only")[2].partition(". ")[0]
    assert sorted(quoted(told)) == sorted(root.ETC_FROM_HOST)


def test_every_path_in_contributing_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for path in re.findall(r"`((?:src|tests)/[^`<]*)`", text):
        assert (ROOT / path).exists(), path


def test_the_newest_version_has_its_news() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## \[(.+)\]", text, re.MULTILINE)
    assert versions[:2] == ["Unreleased", belljar.__version__]


def test_the_licence_is_the_one_that_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "LICENSE").read_text()
    assert project["license"] == "Apache-2.0"
    assert "Apache License" in text and "Version 2.0, January 2004" in text and len(text) > 10_000


def test_no_page_speaks_of_a_machine_it_was_written_on() -> None:
    home = os.path.expanduser("~")
    for page in PAGES:
        text = page.read_text()
        assert str(ROOT) not in text, name(page)
        assert home == "/root" or home not in text, name(page)


def test_i8_what_does_not_apply_behind_a_wall_is_documented() -> None:
    """The list in data and the table for people are the same."""
    section_rows = rows(
        section(ROOT / "docs" / "threat-model.md", "What each wall does not promise")
    )
    cells = {name: row[3] for row in section_rows for name in quoted(row[0])}
    cases = tomllib.loads((ROOT / "src/belljar/probes/behind.toml").read_text())["case"]
    known = {
        (engine, name) for case in cases for engine in case["engines"] for name in case["probes"]
    }
    for engine, name in known:
        assert re.search(rf"\b{name}\b", cells[engine]), f"{name} behind {engine}"
    for engine in ("jail", "docker", "gvisor", "microvm", "wasm"):
        for probe in re.findall(r"\b[A-Z]{2}-\d\d\b", cells[engine]):
            assert (engine, probe) in known, f"{probe} does apply behind {engine}"


def test_i5_the_table_of_what_engines_can_do_is_the_code() -> None:
    """Every capability, for every engine of ours."""
    text = section(ROOT / "docs" / "engines.md", "What each can do")
    head = next(line for line in text.splitlines() if line.startswith("| capability"))
    assert quoted(head) == list(registry.BUILT_IN)
    documented = {quoted(cells[0])[0]: cells[2:] for cells in rows(text)}
    assert set(documented) == {field.name for field in dataclasses.fields(Capabilities)}
    for number, engine in enumerate(registry.BUILT_IN):
        for name, value in vars(registry.capabilities(engine)).items():
            if value is None or isinstance(value, frozenset):
                shown = "all" if value is None else ", ".join(sorted(value))
            else:
                shown = {True: "yes", False: "no"}[value] if type(value) is bool else str(value)
            assert documented[name][number] == shown, f"{name} of {engine}"
