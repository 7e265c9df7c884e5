"""A4: the skill for Claude Code. Valid by the rules of the public validators (agentskills'
skills-ref and quick_validate of Anthropic's skill-creator), and its scripts do what it says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from belljar.cli.app import app
from belljar.cli.shell_pictures import read_png
from belljar.model import GIB, MIB, Limits, Status
from belljar.settings import Settings

SKILL = Path(__file__).resolve().parents[2] / "skills" / "belljar"
RUN, CHECK = SKILL / "scripts/run.py", SKILL / "scripts/check.sh"
FIELDS = {"name", "description", "license", "allowed-tools", "metadata", "compatibility"}
BIN = Path(sys.executable).parent


def parts() -> tuple[dict[str, Any], str]:
    text = (SKILL / "SKILL.md").read_text()
    match = re.match(r"^---\n(.*?)\n---\n(.*)", text, re.DOTALL)
    assert match, "no frontmatter"
    return yaml.safe_load(match[1]), match[2]


def test_a4_the_frontmatter_is_valid() -> None:
    found, body = parts()
    assert set(found) <= FIELDS and {"name", "description"} <= set(found)
    assert all(isinstance(value, str) for value in found.values())
    name = found["name"]
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) and len(name) <= 64
    assert name == SKILL.name and not re.search("anthropic|claude", name)
    description = found["description"]
    assert 0 < len(description.strip()) <= 1024 and not set("<>") & set(description)
    assert "Use it" in description  # when, not only what
    assert 0 < len(found["compatibility"]) <= 500
    assert len(body.splitlines()) < 500


def test_a4_what_it_refers_to_is_there_and_nothing_else() -> None:
    """Progressive disclosure: one step from SKILL.md to everything."""
    _, body = parts()
    named = set(re.findall(r"(?:references|scripts)/[\w.]+", body))
    present = {
        str(path.relative_to(SKILL))
        for path in SKILL.rglob("*")
        if path.is_file() and path.name != "SKILL.md" and "__pycache__" not in path.parts
    }
    assert named == present
    for script in (RUN, CHECK):
        assert os.access(script, os.X_OK)


def test_a4_every_command_in_it_is_one() -> None:
    command: Any = typer.main.get_command(app)
    _, body = parts()
    lines = [
        line
        for block in re.findall(r"```sh\n(.*?)```", body, re.DOTALL)
        for line in block.splitlines()
    ]
    seen = 0
    for line in lines:
        words = shlex.split(line.partition("<")[0], comments=True)
        if words[:2] == ["python3", "scripts/run.py"]:
            words = ["belljar", "run", *words[2:]]
        if words[0] == "belljar":
            command.commands[words[1]].make_context("belljar", words[2:])
            seen += 1
    assert seen == 5
    for option in re.findall(r"`(--[a-z-]+)", body + (SKILL / "references/options.md").read_text()):
        assert any(
            option in parameter.opts
            for verb in ("run", "shell")
            for parameter in command.commands[verb].params
        ), option


def test_a4_its_tables_are_the_code() -> None:
    text = (SKILL / "references/options.md").read_text()
    units = {"": 1, "M": MIB, "G": GIB}
    names = {"timeout": "timeout_s", "memory": "memory_bytes", "disk": "disk_bytes"}
    rows = re.findall(r"\| `--([a-z-]+) [A-Z]+` \| (\d+)([MG]?) \| (\d+)([MG]?) \|", text)
    assert len(rows) == 6
    for option, usual, usual_unit, most, most_unit in rows:
        name = names.get(option, option.replace("-", "_"))
        assert int(usual) * units[usual_unit] == getattr(Limits(), name), option
        assert int(most) * units[most_unit] == getattr(Settings().maxima, name), option
    statuses = re.findall(r"^\| `([a-z_]+)` \|", text, re.MULTILINE)
    assert set(statuses) == set(Status.__args__)  # type: ignore[attr-defined]


# -- the scripts ---------------------------------------------------------------------------------


def script(
    *argv: object, folder: Path, stdin: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    path = f"{BIN}:{os.environ['PATH']}"
    return subprocess.run(
        [str(word) for word in argv],
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PATH": path, **variables},
    )


def test_a4_check_says_whether_sandboxes_work(tmp_path: Path) -> None:
    assert script(CHECK, folder=tmp_path).stdout.startswith("sandboxes work here (belljar ")
    missing = script(CHECK, folder=tmp_path, BELLJAR="no-such-program")
    assert missing.returncode == 1 and "from a checkout of Belljar: pip install" in missing.stdout
    broken = script(CHECK, folder=tmp_path, BELLJAR="false")
    assert broken.returncode == 1 and "belljar doctor" in broken.stdout


def test_a4_run_tells_what_is_worth_reading(tmp_path: Path) -> None:
    code = "print('x' * 20_000, '\\x1b[2J')\nopen('/data/output/a\\x1b.txt', 'w').write('1')\n1/0\n"
    (tmp_path / "code.py").write_text(code)
    done = script(sys.executable, RUN, "code.py", "--output", "results", folder=tmp_path)
    assert done.returncode == 1 and done.stdout.startswith("error after ")
    assert "exit code 1" in done.stdout and "ZeroDivisionError" in done.stdout
    assert "characters left out" in done.stdout and len(done.stdout) < 10_000
    assert "\x1b" not in done.stdout and "in the folder of --output" in done.stdout
    assert "notes:" in done.stdout  # a name that no file of ours gets

    code = "echo $((6 * 7)); echo x > left"
    done = script(sys.executable, RUN, "-", "--language", "bash", folder=tmp_path, stdin=code)
    assert done.returncode == 0 and "stdout:\n42" in done.stdout
    assert "/workspace/left (2 bytes)" in done.stdout and "brings them back" in done.stdout


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["code.py", "--timeout", "500"], "refused: limits.timeout_s: 500 is above"),
        (["missing.py"], "refused: "),
        (["code.py", "--no-such-option"], "refused: "),
    ],
)
def test_a4_run_tells_what_was_refused(tmp_path: Path, given: list[str], why: str) -> None:
    (tmp_path / "code.py").write_text("print(1)")
    done = script(sys.executable, RUN, *given, folder=tmp_path)
    assert done.returncode == 125 and done.stdout.startswith(why)


def test_s3_the_steps_of_its_example_can_be_run(tmp_path: Path) -> None:
    """As SKILL.md says: one sandbox, pictures in a folder, a result taken out."""
    (tmp_path / "data.csv").write_text("month,revenue\n1,10\n2,30\n2,5\n")
    text = (SKILL / "references/data.md").read_text()
    steps = re.search(r"```text\n(.*?)```", text, re.DOTALL)
    assert steps
    options = ("--environment", "data", "--input", "data.csv", "--pictures", "pictures")
    done = script("belljar", "shell", *options, folder=tmp_path, stdin=steps[1])
    assert done.returncode == 0, done.stderr
    assert "revenue    int64" in done.stdout
    assert (tmp_path / "monthly.csv").read_text() == "month,revenue\n1,10\n2,35\n"
    (picture,) = (tmp_path / "pictures").glob("*.png")
    assert read_png(picture.read_bytes())
