"""CC-08: whatever the interpreter imports to report an error, a warning or its end, it never runs a
file of the code's for it. Which modules those are differs from one Python to the next, so these
tests do not name them: every name of the standard library is shadowed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import belljar

REPORTS = {
    "error": "1 / 0",
    "over many lines": "def f(a, b):\n    return (a /\n        b)\nf(1,\n  0)",
    "name": "prnt(1)",
    "attribute": "[].apend(1)",
    "module": "import no_such_module_anywhere",
    "name in a module": "from sys import agrv",
    "syntax": "exec('a b c')",
    "keyword": "compile('whille True:\\n    pass\\n', 'x', 'exec')",
    "indentation": "exec('if 1:\\nx')",
    "syntax of a module": (
        "with open('own.py', 'w') as file:\n"
        "    n = file.write('# -*- coding: latin-1 -*-\\nx = = 1\\n')\nimport own"
    ),
    "error in a module": (
        "with open('own.py', 'w') as file:\n"
        "    n = file.write('# -*- coding: utf-8 -*-\\ndef f():\\n    return 1 / 0\\n')\n"
        "import own\nown.f()"
    ),
    "group": "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])",
    "chain": "try: {}[1]\nexcept KeyError as error: raise ValueError(1) from error",
    "recursion": "def f(): f()\nf()",
    "note": "error = ValueError(1); error.add_note('n'); raise error",
    "unprintable": "class E(Exception):\n    def __str__(self): return 1\nraise E",
    "text": "b'\\xff'.decode()",
    "hook that fails": "sys.excepthook = lambda *given: 1 / 0\n[][1]",
    "interrupt": "raise KeyboardInterrupt",
    "exit": "raise SystemExit('text')",
    "warning": "warnings.simplefilter('always')\nwarnings.warn('careful')",
    "warning of the compiler": "warnings.simplefilter('always')\neval('1 is 1')",
    "file left open": "warnings.simplefilter('always')\nfile = open('/dev/null')\ndel file",
    "never awaited": "async def f(): pass\nf()",
    "destructor": "class C:\n    def __del__(self): 1 / 0\nC(); None",
    "thread": "thread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join()",
    "at the end": "n = atexit.register(lambda: 1 / 0)",
    "nothing": "pass",
}

# The shadows are planted by the code itself: what it finds imported stays, and only what the
# interpreter still has to import could be one of them.
PLANT = """\
import atexit, os, sys, threading, warnings
SHADOW = '''
import os
file = os.open("/data/output/" + __name__, os.O_WRONLY | os.O_CREAT)
os.close(file)
raise ImportError("shadow")
'''
os.mkdir("/tmp/shadows")  # more files than would be brought back from the workspace
for name in sys.stdlib_module_names - {"atexit", "os", "sys", "threading", "warnings"}:
    with open(f"/tmp/shadows/{name}.py", "w") as module:
        n = module.write(SHADOW)
sys.path.insert(0, "/tmp/shadows")
"""

IMPORTED = """\
sys.excepthook = sys.__excepthook__
found = os.listdir("/data/output")
for name in found:
    os.unlink(f"/data/output/{name}")
sorted(found)
"""


@pytest.fixture(scope="module")
def jar() -> Iterator[belljar.Belljar]:
    with belljar.Belljar() as jar:
        yield jar


def imported(result: belljar.Result) -> list[str]:
    folder = "/data/output/"
    return sorted(file.path.removeprefix(folder) for file in result.files if folder in file.path)


@pytest.mark.parametrize("report", REPORTS)
def test_cc08_a_report_runs_no_file_of_the_codes(jar: belljar.Belljar, report: str) -> None:
    result = jar.run(PLANT + REPORTS[report])
    assert imported(result) == []
    assert report == "exit" or (result.status == "ok") == (result.error is None)


@pytest.mark.parametrize("report", REPORTS)
def test_cc08_a_report_in_a_kept_sandbox_runs_no_file_of_the_codes(
    kept: belljar.Sandbox, report: str
) -> None:
    kept.run(REPORTS[report])
    assert kept.run(IMPORTED).value == "[]"


@pytest.fixture(scope="module")
def kept(jar: belljar.Belljar) -> Iterator[belljar.Sandbox]:
    with belljar.Sandbox(jar, environment="base", max_runs=1000) as box:
        assert box.run(PLANT).status == "ok"
        yield box


def test_cc08_a_report_among_shadows_that_were_there_before(jar: belljar.Belljar) -> None:
    """Here they may be imported by the code, as on a bare host, but not by its traceback."""
    names = ("traceback", "linecache", "tokenize", "_colorize", "_suggestions", "textwrap", "ast")
    shadow = "open('/data/output/' + __name__, 'w').close()\nraise ImportError('shadow')\n"
    result = jar.run("prnt(1)", files={f"{name}.py": shadow for name in names})
    assert result.error is not None and result.error.name == "NameError"
    assert imported(result) == []
    assert "Did you mean: 'print'?" in result.stderr


def test_the_text_of_an_exception_may_need_a_module_of_the_codes(jar: belljar.Belljar) -> None:
    code = (
        "class E(Exception):\n"
        "    def __str__(self):\n"
        "        import own\n"
        "        return own.TEXT\n"
        "raise E"
    )
    result = jar.run(code, files={"own.py": "TEXT = 'from a module of its own'"})
    assert "from a module of its own" in result.stderr
    assert result.error is not None and result.error.message == "from a module of its own"


@pytest.mark.parametrize("change", ["sys.path = None", "del sys.path", "sys.path[:] = [1]"])
def test_an_error_is_told_whatever_became_of_the_path(
    jar: belljar.Belljar, kept: belljar.Sandbox, change: str
) -> None:
    for result in (
        jar.run(f"import sys\n{change}\n1 / 0"),
        kept.run(f"path = list(sys.path)\n{change}\n1 / 0"),
    ):
        assert result.error is not None and result.error.name == "ZeroDivisionError"
        assert "ZeroDivisionError: division by zero" in result.stderr
    assert kept.run("sys.path = path").status == "ok"


def test_shadows_can_be_imported(jar: belljar.Belljar, kept: belljar.Sandbox) -> None:
    """So that the tests above can fail."""
    assert imported(jar.run(PLANT + "import pydoc")) == ["pydoc"]
    kept.run("import pydoc")
    assert kept.run(IMPORTED).value == "['pydoc']"
