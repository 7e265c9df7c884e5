"""S3: what notebooks understand beyond Python."""

from __future__ import annotations

import ast
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

Cells = Any


@pytest.mark.parametrize(
    "code",
    [
        "x = '''\n!not a command\n%nor this\nwhat?\n'''\nx",
        "x = (10\n% 3)\nx",
        "x = [\n1\n,\n2]; y = 7 \\\n% 4\ny",
        "x = 1  # really?\nx",
        "'?'",
        'x = "a?"\nx == """\n%time\n"""',
        "a = 1\nb = a != 2\nb",
    ],
)
def test_s3_plain_python_is_left_alone(cell: Cells, code: str) -> None:
    *statements, last = ast.parse(code).body
    names: dict[str, Any] = {}
    exec(compile(ast.Module(statements, []), "", "exec"), names)
    assert isinstance(last, ast.Expr)
    expected = eval(compile(ast.Expression(last.value), "", "eval"), names)
    ran = cell(code)
    assert (ran.status, ran.value) == ("ok", repr(expected)), ran.stderr


def test_s3_lines_inside_strings_and_brackets_stay_even_beside_real_magics(cell: Cells) -> None:
    code = '''
text = """
!echo inside "quotes" and 'more
%pwd
"""
pair = ("(", '[', """)
""", 10
% 3)
other = f"{text[0]!r}" # it's a comment (with a bracket
!echo outside
escaped = 'it\\'s' + "a \\" quote"; raw = r'\\\\'
%pwd
(text, pair)
'''
    ran = cell(code)
    assert ran.status == "ok", ran.stderr
    assert ran.stdout == "outside\n"
    assert "!echo inside" in ran.value and "%pwd" in ran.value


def test_s3_line_numbers_stay_right(cell: Cells) -> None:
    ran = cell("x = 1\n!true \\\n  && true\n%pwd\nif x:\n    !true\n    1 / 0\n")
    assert 'File "<run 1>", line 7, in <module>' in ran.stderr
    assert "    1 / 0\n" in ran.stderr


# -- commands --------------------------------------------------------------------------------------


def test_s3_commands_write_to_the_runs_streams(cell: Cells) -> None:
    ran = cell("print('before')\n!echo out; echo err >&2; exit 3\nprint('after')\n_exit_code")
    assert (ran.stdout, ran.stderr, ran.value) == ("before\nout\nafter\n", "err\n", "3")


def test_s3_a_commands_output_as_a_list(cell: Cells, tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "b.txt").touch()
    assert cell("files = !ls *.txt\nfiles").value == "['a.txt', 'b.txt']"
    assert cell("files.n, files.s").value == r"('a.txt\nb.txt', 'a.txt b.txt')"
    assert cell("!!echo shown").value == "['shown']"
    cell("d = {}\nd['k'] = !echo stored")
    assert cell("d").value == "{'k': ['stored']}"


def test_s3_variables_in_commands(cell: Cells) -> None:
    cell("name = 'Ada'\nn = 2")
    ran = cell("!echo {name} $name {n + 1} $HOME_OF_NOBODY $$name {nope} '{print $1}' {{x}}")
    assert ran.stdout == "Ada Ada 3 {nope} {print $1} {x}\n"
    ran = cell("def f(word):\n    !echo {word}\nf('local')")
    assert ran.stdout == "local\n"


def test_s3_a_command_can_be_interrupted_with_all_it_started(cell: Cells) -> None:
    """Also with what ignores SIGINT, as shells have their background jobs do."""
    nap = f"77.{os.getpid()}"  # of this test's alone, whatever else runs on the machine
    code = f"!(trap '' INT; sleep {nap}; echo no) & echo go; sleep {nap}"
    ran = cell(code, interrupt="go")
    assert ran.error["name"] == "KeyboardInterrupt"
    look = f"found = !pgrep -f 'sleep [7]{nap[1:]}'\nfound"
    deadline = time.monotonic() + 30
    while (left := cell(look).value) != "[]" and time.monotonic() < deadline:
        time.sleep(0.1)  # what was killed may still be dying
    assert left == "[]"


def test_s3_commands_read_stdin(cell: Cells) -> None:
    assert cell("!cat", stdin="through\n").stdout == "through\n"


def test_s5_installing_from_inside_is_refused_with_the_way_to_do_it(cell: Cells) -> None:
    for line in (
        "%pip install humanize",
        "!pip install -q humanize",
        "!python3 -m pip install humanize",
        "!uv pip install humanize",
        "x = !pip3 install humanize",
        "%conda install humanize",
    ):
        ran = cell(line)
        assert ran.error["name"] == "UsageError", line
        assert 'box.install("name")' in ran.error["message"]


# -- magics ----------------------------------------------------------------------------------------


def test_s3_time(cell: Cells) -> None:
    ran = cell("%time sum(range(1000))")
    assert ran.value == "499500"
    assert re.search(
        r"^CPU times: user .*, sys: .*, total: .*\nWall time: [\d.]+ \S+\n$", ran.stdout
    )
    ran = cell("%%time\nx = 5\nx * 2")
    assert ran.value == "10" and "Wall time" in ran.stdout
    assert cell("x").value == "5"
    assert cell("y = %time 6 * 7\ny").value == "42"
    assert cell("%time 5;").value is None


def test_s3_errors_in_a_timed_cell_have_their_line(cell: Cells) -> None:
    ran = cell("\n%%time\nx = 1\n1 / 0")
    assert 'File "<run 1>", line 4, in <module>\n    1 / 0\n' in ran.stderr
    assert "Wall time" in ran.stdout
    ran = cell("x = 1\n%time 1 / 0")
    assert 'File "<run 2>", line 2, in <module>\n    %time 1 / 0\n' in ran.stderr
    assert "guest" not in ran.stderr and "__belljar__" not in ran.stderr


def test_s3_a_timed_cell_may_have_magics_and_await(cell: Cells) -> None:
    ran = cell("%%time\nimport asyncio\n!echo in\nawait asyncio.sleep(0, 3)")
    assert ran.stdout.startswith("in\n") and ran.value == "3"


def test_s3_timeit(cell: Cells) -> None:
    cell("data = list(range(10))")
    ran = cell("%timeit -n 5 -r 3 sum(data)")
    assert re.fullmatch(
        r"[\d.e+]+ \S+ ± [\d.e+]+ \S+ per loop \(mean ± std. dev. of 3 runs, 5 loops each\)\n",
        ran.stdout,
    )
    ran = cell("%%timeit -n 2 -r 2 local = 3\nlocal + 1\nsum(data)")
    assert "2 runs, 2 loops" in ran.stdout
    assert cell("%timeit -n x").error["name"] == "UsageError"


def test_s3_folders(cell: Cells, tmp_path: Path) -> None:
    (tmp_path / "sub folder").mkdir()
    assert cell("%pwd").value == repr(str(tmp_path))
    assert cell("%cd 'sub folder'").stdout == f"{tmp_path}/sub folder\n"
    assert cell("import os; os.getcwd()").value == repr(f"{tmp_path}/sub folder")
    cell("%cd -")
    assert cell("here = %pwd\nhere").value == repr(str(tmp_path))
    assert cell("%ls").stdout == "sub folder\n"
    ran = cell("%cd nowhere")
    assert ran.error["name"] == "FileNotFoundError"


def test_s3_environment_variables(cell: Cells) -> None:
    assert cell("%env COLOUR=dark blue").stdout == "env: COLOUR=dark blue\n"
    assert cell("%env COLOUR").value == "'dark blue'"
    assert cell("!echo $COLOUR").stdout == "dark blue\n"
    assert cell("x = %env\nx['COLOUR']").value == "'dark blue'"
    assert cell("%env NOT_THERE").error["name"] == "UsageError"


def test_s3_who_and_reset(cell: Cells) -> None:
    assert cell("%who").stdout == "Nothing is defined yet.\n"
    cell("number, text, items = 1, 'two words', [1, 2, 3]")
    assert cell("%who").stdout == "items\tnumber\ttext\n"
    assert cell("%who int").stdout == "number\n"
    assert cell("%whos").stdout.splitlines() == [
        "Variable  Type  Data/Info",
        "items     list  n=3",
        "number    int   1",
        "text      str   'two words'",
    ]
    cell("%reset -f")
    assert cell("number").error["name"] == "NameError"
    assert cell("display(1)\n__name__").value == "'__main__'"


def test_s3_run_a_file(cell: Cells, tmp_path: Path) -> None:
    (tmp_path / "prog.py").write_text(
        "import sys\ndef f():\n    return shared\nshared = sys.argv[1:]\n"
        "print(__name__, __file__)\n"
        "if 'fail' in shared:\n    1 / 0\nsys.exit(int(shared[-1]))\n"
    )
    ran = cell("%run prog.py 'one word' 0")
    assert ran.stdout == "__main__ prog.py\n"
    assert cell("f()").value == "['one word', '0']"
    assert cell("%run prog.py 3").exit_code == 3
    ran = cell("%run prog.py fail 0")
    assert (
        'File "prog.py", line 7' in ran.stderr or f'File "{tmp_path}/prog.py", line 7' in ran.stderr
    )
    assert cell("%run").error["name"] == "UsageError"


def test_s3_write_a_file(cell: Cells, tmp_path: Path) -> None:
    assert cell("%%writefile 'made here.py'\nx = '%pwd'\n").stdout == "Writing made here.py\n"
    assert (tmp_path / "made here.py").read_text() == "x = '%pwd'\n"
    assert cell("%%writefile -a 'made here.py'\ny = 2").stdout == "Appending to made here.py\n"
    assert (tmp_path / "made here.py").read_text() == "x = '%pwd'\ny = 2\n"
    assert cell("%%writefile 'made here.py'\n").stdout == "Overwriting made here.py\n"


def test_s3_bash(cell: Cells) -> None:
    ran = cell("%%bash\nfor n in 1 2; do\n  echo $n\ndone\necho oops >&2")
    assert (ran.status, ran.stdout, ran.stderr) == ("ok", "1\n2\n", "oops\n")
    ran = cell("%%bash\nexit 5")
    assert ran.error["name"] == "CalledProcessError" and "5" in ran.error["message"]
    assert cell("_exit_code").value == "5"


def test_s3_shown_cells(cell: Cells) -> None:
    assert cell("%%html\n<b>x</b>\n").outputs[0]["data"]["text/html"] == "<b>x</b>\n"
    assert cell("%%markdown\n# x").outputs[0]["data"]["text/markdown"] == "# x"


def test_s3_what_has_no_meaning_here_is_accepted(cell: Cells) -> None:
    ran = cell("%matplotlib inline\n%config InlineBackend.figure_format = 'retina'\n1")
    assert (ran.status, ran.value) == ("ok", "1")
    assert ran.stderr == "belljar: %config has no effect here\n"


def test_s3_unknown_magics_say_what_there_is(cell: Cells) -> None:
    for line in ("%nonsense", "%%nonsense\nx"):
        ran = cell(line)
        assert ran.error["name"] == "UsageError"
        assert "%timeit" in ran.error["message"] and "%%bash" in ran.error["message"]
    assert "%%bash in its first line" in cell("x = 1\n%bash").error["message"]


def test_s3_help(cell: Cells) -> None:
    cell("def area(width, height=2):\n    '''Of a rectangle.'''\n    return width * height")
    for line in ("area?", "?area", "  area ?"):
        ran = cell(line)
        assert "Signature: area(width, height=2)" in ran.stdout
        assert "Of a rectangle." in ran.stdout
    assert "return width * height" in cell("area??").stdout
    assert "Return the number of items" in cell("len?").stdout
    assert "Signature: os.path.join(" in cell("import os\nos.path.join?").stdout
    assert "Value:     5" in cell("x = 5\nx?").stdout
    assert cell("unknown?").error["name"] == "NameError"
    assert cell("for n in range(2):\n    area?").stdout.count("Of a rectangle.") == 2
