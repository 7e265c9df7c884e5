"""The parts of the command line that need no sandbox (A2)."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.cli import app, files, network, numbers, run, table, verdict
from belljar.cli.terminal import Filter, harmless
from belljar.errors import InvalidRequest, InvalidVariable, LimitExceeded, UnknownLanguage
from belljar.model import Dropped, Finding, Limits, OutputFile, Result
from belljar.network import Allow, Egress, Secret

# -- arguments -------------------------------------------------------------------------------------

NAMES = [name for option in run.OPTIONS for name in option.names.split()]
WORDS = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from(NAMES).map(lambda name: f"{name}=value"),
    st.sampled_from(NAMES).map(lambda name: f"{name}="),
    st.sampled_from(["-", "file.py", "", "x y", "-5", "--", "--nope", "-cx", "--help", "a=b"]),
)


def typer_values(arguments: list[str]) -> dict[str, Any] | None:
    """What typer makes of the same arguments; None where it has something to explain."""
    import typer

    seen: list[dict[str, Any]] = []

    def verb(**values: Any) -> int:
        seen.append(values)
        return 0

    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    program.command()(table.command(run.OPTIONS, verb))
    try:
        program(arguments, standalone_mode=False)
    except typer.Exit:
        return None
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return None
    return seen[0] if seen else None


@settings(deadline=None)  # the first use loads typer
@given(st.lists(WORDS, max_size=6))
def test_both_readings_of_the_arguments_agree(arguments: list[str]) -> None:
    """A2: whatever the quick reading accepts, typer reads in the same way."""
    quick = table.parse(run.OPTIONS, arguments)
    if quick is not None:
        assert typer_values(arguments) == quick


@pytest.mark.parametrize(
    "arguments",
    [["-c", "print(1)"], ["x.py", "--timeout=5", "-m", "1G"], ["-", "--json"], ["--env", "A=-1"]],
)
def test_usual_arguments_do_not_need_typer(arguments: list[str]) -> None:
    assert table.parse(run.OPTIONS, arguments) is not None


@pytest.mark.parametrize(
    "arguments", [["--help"], ["-h"], ["--nope"], ["a", "b"], ["-c"], ["--json=1"], ["--", "x"]]
)
def test_what_needs_explaining_is_left_to_typer(arguments: list[str]) -> None:
    assert table.parse(run.OPTIONS, arguments) is None


def test_every_option_reaches_the_verb() -> None:
    import inspect

    assert [option.keyword for option in run.OPTIONS] == list(inspect.signature(run.run).parameters)


def test_every_limit_can_be_set_from_the_command_line() -> None:
    """L1-L5: no limit is out of reach here."""
    source = Path(run.__file__).read_text()
    for name in Limits.__dataclass_fields__:
        assert f'"{name}": numbers.' in source


# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1048576", 1048576),
        ("512M", 512 << 20),
        ("512m", 512 << 20),
        ("512MB", 512 << 20),
        ("512MiB", 512 << 20),
        ("1.5G", 3 << 29),
        ("64k", 65536),
        ("100 b", 100),
        ("2T", 2 << 40),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert numbers.size("--memory", text) == expected


@pytest.mark.parametrize("text", ["", "M", "-1", "1e9", "five", "1X", "nan", "9" * 400, "1.2.3"])
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(LimitExceeded, match="--memory"):
        numbers.size("--memory", text)


@pytest.mark.parametrize("text", ["x", "", "1,5", "0x10"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(LimitExceeded, match="--timeout"):
        numbers.number("--timeout", text)
    with pytest.raises(LimitExceeded, match="--processes"):
        numbers.count("--processes", text)


def test_a_number_not_given_is_the_default() -> None:
    assert (
        numbers.size("-m", None) is numbers.count("-p", None) is numbers.number("-t", None) is None
    )


# -- code, language, variables ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "language"),
    [
        (None, "python"),
        ("-", "python"),
        ("a/b.py", "python"),
        ("x.JS", "javascript"),
        ("x.mjs", "javascript"),
        ("x.ts", "typescript"),
        ("x.go", "go"),
        ("x.sh", "bash"),
        ("x.bash", "bash"),
        ("script", "python"),
    ],
)
def test_the_language_is_guessed_from_the_suffix(file: str | None, language: str) -> None:
    assert run.guess_language(file) == language


def test_an_unknown_suffix_is_refused_with_advice() -> None:
    with pytest.raises(UnknownLanguage) as refusal:
        run.guess_language("x.rb")
    assert "--language" in refusal.value.hint


@pytest.mark.parametrize(("code", "file"), [(None, None), ("1", "x.py")])
def test_the_code_is_given_exactly_once(code: str | None, file: str | None) -> None:
    with pytest.raises(InvalidRequest, match="once"):
        run.read_code(code, file)


def test_variables() -> None:
    assert run.variables(["A=1", "B=x=y", "C="]) == {"A": "1", "B": "x=y", "C": ""}
    with pytest.raises(InvalidVariable, match="NAME=VALUE"):
        run.variables(["A"])


def test_n1_hosts_methods_and_paths_are_one_rule() -> None:
    asked = ["a.example", "*.b.example:443"]
    found = network.options(asked, ["get"], ["/v1/*"], [], [])
    assert found == {"network": (Allow(*asked, methods=("GET",), paths=("/v1/*",)),)}
    assert network.options([], [], [], [], []) == {}
    with pytest.raises(InvalidRequest, match="--allow-host"):
        network.options([], ["GET"], [], [], [])


def test_n2_a_secret_is_named_on_the_command_line_and_never_written_there() -> None:
    found = network.secrets(
        ["KEY=env:THE_KEY@api.example.com", "MAIL=file:/run/a@b/key@mail.example"],
        ["KEY=X-Api-Key: {}"],
    )
    assert found == {
        "KEY": Secret("env:THE_KEY", host="api.example.com", header="X-Api-Key: {}"),
        "MAIL": Secret("file:/run/a@b/key", host="mail.example"),
    }
    for wrong in ("KEY=hunter2hunter2@api.example.com", "KEY=env:THE_KEY", "hunter2", "=x", "KEY"):
        with pytest.raises(InvalidRequest) as refusal:
            network.secrets([wrong], [])
        assert "hunter2" not in str(refusal.value) and refusal.value.hint
    with pytest.raises(InvalidRequest, match="there is no --secret OTHER"):
        network.secrets([], ["OTHER=X: {}"])


# -- verdicts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (Result(status="ok", exit_code=0), 0),
        (Result(status="error", exit_code=7), 7),
        (Result(status="timeout", exit_code=None, signal=9), 124),
        (Result(status="out_of_memory", exit_code=None, signal=9), 137),
        (Result(status="out_of_memory", exit_code=1), 137),
        (Result(status="denied", exit_code=None), 125),
        (Result(status="killed", exit_code=None, signal=11), 139),
        (Result(status="killed", exit_code=None, signal=9), 137),
        (Result(status="killed", exit_code=None), 125),
    ],
)
def test_exit_status(result: Result, status: int) -> None:
    assert verdict.exit_status(result) == status


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (Result(status="ok", exit_code=0), ""),
        (Result(status="error", exit_code=7), ""),
        (Result(status="timeout", exit_code=None), "timed out.*2.5 s"),
        (Result(status="out_of_memory", exit_code=None), "out of memory.*512 MiB"),
        (
            Result(
                status="denied",
                exit_code=None,
                findings=(Finding(line=3, rule="module", message="socket is blocked"),),
            ),
            "line 3: socket is blocked",
        ),
        (Result(status="killed", exit_code=None, signal=11), "SIGSEGV"),
        (Result(status="killed", exit_code=None, signal=64), "64"),
        (Result(status="ok", exit_code=0, dropped=Dropped(stdout=5000)), "stdout.*4.883 KiB"),
        (Result(status="ok", exit_code=0, warnings=("look out",)), "warning: look out"),
        (
            Result(
                status="ok",
                exit_code=0,
                egress=(Egress(at=0, host="a.b", port=443, verdict="refused", why="no rule"),),
            ),
            "network: refused a.b:443: no rule",
        ),
    ],
)
def test_the_reason_is_told_in_a_line(result: Result, words: str) -> None:
    told = "\n".join(verdict.explain(result, Limits(timeout_s=2.5)))
    assert re.search(words, told, re.DOTALL) if words else told == ""


# -- the terminal ----------------------------------------------------------------------------------

HOSTILE = [
    b"\x1b]0;title\x07",  # window title
    b"\x1b]52;c;aGk=\x07",  # clipboard
    b"\x1b[2J\x1b[H",  # clear and home
    b"\x1b[6n",  # answers back: the terminal types
    b"\x1bP$q\x1b\\",
    b"\x9b31m",  # C1 introducer as a byte
    "\u009b2J".encode(),  # and as a character
    b"\x1b[31;5",  # never finished
    b"\x08\x08\x7f\x00\x0e",
    "\u202egnp.exe".encode(),  # reads right to left
]


def filtered(*pieces: bytes) -> bytes:
    cleaner = Filter()
    return b"".join(cleaner.feed(piece) for piece in pieces) + cleaner.end()


@pytest.mark.parametrize("data", HOSTILE)
def test_no_control_sequence_reaches_the_terminal(data: bytes) -> None:
    shown = filtered(b"a" + data + b"b").decode()
    assert not set(shown) & {chr(code) for code in (*range(9), 11, 12, *range(14, 32), 127)}
    assert not re.search("[\x80-\x9f\u202a-\u202e\u2066-\u2069]", shown)
    assert shown.startswith("a") and shown.endswith("b")


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_how_output_is_cut_does_not_matter(pieces: list[bytes]) -> None:
    assert filtered(*pieces) == filtered(b"".join(pieces))


@given(st.binary(max_size=100))
def test_whatever_is_printed_only_colours_survive(data: bytes) -> None:
    shown = filtered(data).decode()
    without_colours = re.sub("\x1b\\[[0-9;:]*m", "", shown)
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", without_colours)


def test_colours_and_text_pass_and_colours_end() -> None:
    data = "\x1b[1;31mrouge\x1b[0m é\t漢\r\n".encode()
    assert filtered(data) == data + b"\x1b[0m"
    assert filtered(b"plain\n") == b"plain\n"
    assert filtered("é".encode()[:1], "é".encode()[1:]) == "é".encode()


def test_messages_keep_no_colour_either() -> None:
    assert harmless("\x1b[31mred\x07") == "\\x1b[31mred\\x07"


# -- files out -------------------------------------------------------------------------------------


def produced(path: str, content: bytes | None = b"new") -> OutputFile:
    return OutputFile(path=path, size=len(content or b""), content=content)


def test_files_are_written_below_the_folder(tmp_path: Path) -> None:
    """S2: both places of a sandbox end in one folder; /data/output goes first."""
    remarks = files.write(
        str(tmp_path / "new" / "out"),
        [
            produced("/workspace/a.txt", b"workspace"),
            produced("/data/output/a.txt", b"output"),
            produced("/data/output/deep/er/b.bin", b"\x00"),
        ],
    )
    out = tmp_path / "new" / "out"
    assert (out / "a.txt").read_bytes() == b"output"
    assert (out / "deep/er/b.bin").read_bytes() == b"\x00"
    assert len(remarks) == 1 and "/workspace/a.txt" in remarks[0]


@pytest.mark.parametrize(
    "path",
    [
        "/workspace/../x",
        "/workspace/../../x",
        "/workspace//x",
        "/data/output/a/../../x",
        "/workspace/",
        "/workspace/a\x00b",
        "/workspace/a\nb",
        "/data/output/..",
    ],
)
def test_hostile_names_are_not_written(tmp_path: Path, path: str) -> None:
    """A guest can lie about names; its agent's word is not trusted."""
    out = tmp_path / "out"
    remarks = files.write(str(out), [produced(path)])
    assert len(remarks) == 1
    assert [entry.name for entry in tmp_path.rglob("*")] == ["out"]


def test_a_place_that_is_neither_stays_below_the_folder(tmp_path: Path) -> None:
    files.write(str(tmp_path / "out"), [produced("/etc/passwd")])
    assert (tmp_path / "out/etc/passwd").read_bytes() == b"new"


def test_links_in_the_folder_are_not_followed(tmp_path: Path) -> None:
    secret, out = tmp_path / "secret", tmp_path / "out"
    secret.mkdir()
    out.mkdir()
    (secret / "kept").write_bytes(b"old")
    (out / "folder").symlink_to(secret)
    (out / "file").symlink_to(secret / "kept")
    (out / "hard").hardlink_to(secret / "kept")
    remarks = files.write(
        str(out),
        [
            produced("/workspace/folder/kept"),
            produced("/workspace/file"),
            produced("/workspace/hard"),
        ],
    )
    assert (secret / "kept").read_bytes() == b"old"
    assert os.listdir(secret) == ["kept"]
    assert len(remarks) == 1 and "folder/kept" in remarks[0]
    assert (out / "file").read_bytes() == (out / "hard").read_bytes() == b"new"
    assert not (out / "file").is_symlink()


def test_existing_files_are_replaced_and_folders_are_not(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "b").mkdir()
    remarks = files.write(str(tmp_path), [produced("/workspace/a"), produced("/workspace/b")])
    assert (tmp_path / "a").read_bytes() == b"new"
    assert (tmp_path / "b").is_dir() and len(remarks) == 1
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]  # nothing unfinished is left


def test_what_was_not_brought_back_is_told(tmp_path: Path) -> None:
    skipped = OutputFile(path="/workspace/big", size=9, content=None, skipped="too large")
    assert files.write(str(tmp_path), [skipped]) == ["'/workspace/big' was not written: too large"]


# -- files in --------------------------------------------------------------------------------------


def test_folders_come_with_what_is_in_them(tmp_path: Path) -> None:
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "d/e/f").write_bytes(b"1")
    (tmp_path / "d/link").symlink_to("/etc/passwd")
    (tmp_path / "g").write_bytes(b"2")
    found = files.read("--file", [str(tmp_path / "d"), str(tmp_path / "g")])
    assert found == {"d/e/f": b"1", "g": b"2"}


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for path in (tmp_path / "x", tmp_path / "a/x"):
        path.write_bytes(b"")
    with pytest.raises(InvalidRequest, match="two files"):
        files.read("--file", [str(tmp_path / "x"), str(tmp_path / "a/x")])


@pytest.mark.parametrize("path", ["/dev/zero", "/does/not/exist"])
def test_what_is_no_plain_file_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(path)):
        files.read("--input", [path])


def test_a_pipe_without_writer_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidRequest, match="plain file"):
        files.read_file("FILE", str(tmp_path / "pipe"))


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "file", tmp_path / "file/below", ""):
        with pytest.raises(InvalidRequest, match="--output"):
            files.make_folder("--output", str(folder))
    files.make_folder("--output", str(tmp_path / "new/folder"))
    assert (tmp_path / "new/folder").is_dir()


# -- proving ---------------------------------------------------------------------------------------


def test_a_broken_probe_is_told_and_is_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """I8: the report is invented, what the command makes of it is not."""
    from belljar import probes
    from belljar.cli.main import call

    probe = probes.load()[0]
    broken = probes.Proven(
        probe=probe, outcome="broken", detail="read \x1b]0;it\x07 [all]", duration_ms=1
    )
    report = probes.Report(engine="jail", isolation={}, proven=(broken,), duration_s=1.0)
    monkeypatch.setattr(probes, "prove", lambda *_, **__: report)
    assert call(["prove"]) == 1
    told = capsys.readouterr().out
    assert probe.id in told and "\\x1b]0;it\\x07 [all]" in told and "0 of 1 held" in told
    assert "\x1b" not in told


# -- the documentation -----------------------------------------------------------------------------


def typer_options() -> set[str]:
    import typer.main

    found: set[str] = set()
    waiting: list[Any] = [typer.main.get_command(app.app)]
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        for parameter in command.params:
            found |= {name for name in parameter.opts if name.startswith("-")}
    return found


def test_every_option_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    assert len(typer_options()) > 25
    missing = sorted(name for name in typer_options() if f"`{name}" not in text)
    assert not missing
