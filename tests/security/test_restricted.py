"""RestrictedPython inside a wall: the usual ways out of the language are refused (I5)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import belljar
from belljar import Belljar, InvalidRequest
from belljar.errors import EnvironmentUnavailable, LimitExceeded
from belljar.model import ErrorInfo, Result
from belljar.runtimes import restricted

pytest.importorskip("RestrictedPython")


@pytest.fixture(scope="module")
def jar() -> Iterator[Belljar]:
    with Belljar() as jar:
        yield jar


def run(jar: Belljar, code: str, **options: object) -> Result:
    return jar.run(code, language_level="restricted", **options)  # type: ignore[arg-type]


DENIED = {
    "class": "print(().__class__)",
    "subclasses": "[].__class__.__base__.__subclasses__()",
    "globals": "def f(): pass\nf.__globals__",
    "frame": "g = (n for n in [1])\ng.gi_frame",
    "traceback": "try:\n    1 / 0\nexcept Exception as e:\n    e.__traceback__",
    "eval": "eval('1')",
    "exec": "exec('1')",
    "import function": "__import__('os')",
    "builtins": "__builtins__",
    "underscore": "_x = 1",
    "dunder method": "class A:\n    def __getattr__(self, name): return 1",
    "f-string": "f'{().__class__}'",
    "lambda": "(lambda x=().__class__: x)()",
    "comprehension": "[x.__class__ for x in [1]]",
    "decorator": "@().__class__\ndef f(): pass",
    "default": "def f(x=[].__class__): pass",
    "keyword": "print(end=().__class__)",
    "walrus": "(y := ().__class__)",
    "async": "async def f(): pass",
    "star import": "from math import *",
    "private import": "from math import __doc__",
    "print collector": "_print_ = 1",
    "guard": "_getattr_ = getattr",
    "breakpoint": "breakpoint()",
    "metaclass": "class A(metaclass=print): pass",
    # What published ways out of RestrictedPython, and out of languages like it, are made of.
    "frames of a generator": "g = (g.gi_frame.f_back.f_back for n in [1])",
    "frames of a coroutine": "print.cr_frame",
    "frame of a traceback": "e.tb_frame.f_globals",
    "code of a function": "print.co_code",
    "a group of exceptions": "try:\n    pass\nexcept* Exception:\n    pass",
    "an annotation": "def f(x: ().__class__): pass",
    "a variable's annotation": "x: ().__class__ = 1",
    "match": "match 1:\n    case object(__class__=x): pass",
    "a guard as an argument": "def f(_getattr_): pass",
    "a guard as an exception": "try:\n    pass\nexcept Exception as _getattr_:\n    pass",
    "a guard as a class": "class _write_: pass",
    "a guard imported": "from math import sqrt as _getattr_",
    "a guard in a loop": "for _getiter_ in [1]: pass",
    "a guard in a with": "with open as _write_: pass",
    "a guard by a walrus": "(_getattr_ := 1)",
    "a guard deleted": "del _getattr_",
    "a guard in a lambda": "lambda _getattr_: 1",
    "a name that ends in roles": "x__roles__ = 1",
    "nonlocal": "def f():\n    x = 1\n    def g():\n        nonlocal x",
}


@pytest.mark.parametrize("code", DENIED.values(), ids=DENIED)
def test_refused_before_anything_ran(jar: Belljar, code: str) -> None:
    result = run(jar, "print('ran')\n" + code)
    assert (result.status, result.exit_code, result.stdout) == ("denied", None, ""), result.stderr
    assert result.findings
    for finding in result.findings:
        assert finding.line >= 2 and finding.rule == "restricted" and finding.message
        assert f"line {finding.line}: {finding.message}" in result.stderr


REFUSED = {
    "getattr": ("getattr((), '__class__')", "AttributeError"),
    "getattr with a default": ("getattr((), '__class__', 1)", "AttributeError"),
    "getattr with a strange name": (
        "class S(str):\n    def startswith(self, x): return False\n"
        "print(getattr((), S('__class__')))",
        "TypeError",
    ),
    "setattr": ("import math\nsetattr(math, 'pi', 3)", "TypeError"),
    "assign to a module": ("import math\nmath.pi = 3", "TypeError"),
    "assign to a type": ("int.x = 3", "TypeError"),
    "format": ("'{0.__class__}'.format(1)", "NotImplementedError"),
    "format of the type": ("str.format('{0.__class__}', 1)", "NotImplementedError"),
    "format_map": ("'{x.__class__}'.format_map({'x': 1})", "NotImplementedError"),
    "format by map": ("list(map(getattr('{0.__class__}', 'format'), [1]))", "NotImplementedError"),
    "format in a wrapper": (
        "from functools import cache\ncache(str).format('{0.__class__}', 1)",
        "NotImplementedError",
    ),
    "format_map in a wrapper": (
        "from functools import lru_cache\nlru_cache(1)(str).format_map",
        "NotImplementedError",
    ),
    "what an error is about": (
        "try:\n    len.nothing\nexcept AttributeError as error:\n    error.obj",
        "NotImplementedError",
    ),
    "the same by getattr": (
        "try:\n    len.nothing\nexcept AttributeError as error:\n    getattr(error, 'obj', 1)",
        "NotImplementedError",
    ),
    "setattr of a dunder": (
        "class A: pass\nclass B: pass\na = A()\nsetattr(a, '__class__', B)",
        "AttributeError",
    ),
    "setattr of a dunder on a class": (
        "class A: pass\nsetattr(A, '__getattr__', lambda self, name: 1)",
        "AttributeError",
    ),
    "setattr with a strange name": (
        "class S(str):\n    def startswith(self, x): return False\n"
        "class A: pass\nsetattr(A(), S('__class__'), A)",
        "TypeError",
    ),
    "delattr of a dunder": ("class A: pass\ndelattr(A, '__dict__')", "AttributeError"),
    "import": ("import os", "ImportError"),
    "import from": ("from sys import modules", "ImportError"),
    "import below": ("import collections.abc", "ImportError"),
    "import relative": ("from . import main", "ImportError"),
    "a module's own imports": ("import json\njson.codecs.open('/etc/passwd')", "AttributeError"),
    "Formatter": ("from string import Formatter", "ImportError"),
    "UserString": ("from collections import UserString", "ImportError"),
    "attrgetter": ("from operator import attrgetter", "ImportError"),
    "methodcaller": ("from operator import methodcaller", "ImportError"),
    "open": ("open('/etc/passwd')", "NameError"),
    "compile": ("compile('1', '', 'eval')", "NameError"),
    "globals function": ("globals()", "NameError"),
    "vars": ("vars()", "NameError"),
    "type": ("type('X', (), {})", "NameError"),
    "object": ("object()", "NameError"),
    "super": ("super()", "NameError"),
    "library": ("import RestrictedPython", "ImportError"),
}


@pytest.mark.parametrize(("code", "error"), REFUSED.values(), ids=REFUSED)
def test_refused_while_it_runs(jar: Belljar, code: str, error: str) -> None:
    result = run(jar, f"print('ran')\n{code}\nprint('and went on')")
    assert (result.status, result.exit_code, result.stdout) == ("error", 1, "ran\n"), result.stderr
    assert result.error and result.error.name == error, result.stderr


@pytest.mark.parametrize("fresh_exec", [False, True])
@pytest.mark.parametrize("name", ["traceback", "random", "__future__", "typing", "sitecustomize"])
def test_files_of_the_caller_are_no_modules(jar: Belljar, name: str, fresh_exec: bool) -> None:
    """They are not restricted: one named as a module of the standard library would be run."""
    files = {f"{name}.py": "print('unrestricted')", "RestrictedPython/__init__.py": "print('this')"}
    code = "import random\nprint(random.choice([1]))\n1 / 0"
    result = run(jar, code, files=files, fresh_exec=fresh_exec)
    assert result.stdout == "1\n" and result.error, result.stderr
    assert result.error.name == "ZeroDivisionError"


def test_no_attribute_leads_to_the_interpreter(jar: Belljar) -> None:
    """Everything that can be named, and everything one step from it that has a public name."""
    code = """
import base64, bisect, calendar, cmath, collections, datetime, decimal, fractions, functools
import hashlib, heapq, itertools, json, math, operator, random, re, statistics, string, textwrap
import time, unicodedata
MODULES = [base64, bisect, calendar, cmath, collections, datetime, decimal, fractions, functools,
           hashlib, heapq, itertools, json, math, operator, random, re, statistics, string,
           textwrap, time, unicodedata]
for module in MODULES:
    for name in ['os', 'sys', 'io', 'codecs', 'builtins', 'open', 'functools', 'types', 'inspect',
                 'subprocess', 'struct', 'warnings', 'Formatter', 'attrgetter', 'methodcaller']:
        if hasattr(module, name) and module is not functools:
            print(module, name)
print('looked')
"""
    assert run(jar, code).stdout == "looked\n"


# ruff: noqa: E501
ORDINARY = {
    "arithmetic": ("print(2 ** 10, 7 // 2, -7 % 3, 0.1 + 0.2)", "1024 3 2 0.30000000000000004"),
    "functions": ("def f(n):\n    return 1 if n < 2 else n * f(n - 1)\nprint(f(20))", f"{2432902008176640000}"),
    "generators": ("def g():\n    yield 1\n    yield 2\nprint(list(g()), sum(n for n in g()))", "[1, 2] 3"),
    "classes": (
        "class Point:\n    def __init__(self, x):\n        self.x = x\n"
        "    def double(self):\n        self.x = self.x * 2\n        return self\n"
        "print(Point(21).double().x)",
        "42",
    ),
    "inheritance": (
        "class A:\n    name = 'a'\nclass B(A):\n    def tell(self): return self.name\n"
        "print(B().tell(), isinstance(B(), A))",
        "a True",
    ),
    "collections": (
        "from collections import Counter, defaultdict, deque\nd = defaultdict(list)\n"
        "d['a'].append(1)\nd['b'] = [2]\nc = Counter('aab')\nc['z'] = 9\nq = deque([1, 2])\nq[0] = 5\n"
        "print(dict(d), c['a'], c['z'], list(q))",
        "{'a': [1], 'b': [2]} 2 9 [5, 2]",
    ),
    "slices": ("x = [1, 2, 3, 4]\nx[1:3] = [9]\ndel x[0]\nprint(x, x[::-1])", "[9, 4] [4, 9]"),
    "unpacking": ("for k, (a, *b) in [(1, (2, 3, 4))]:\n    print(k, a, b)", "1 2 [3, 4]"),
    "in place": ("x = 5\nx += 2\nx **= 2\ny = [1]\ny += [2]\nprint(x, y)", "49 [1, 2]"),
    "exceptions": (
        "try:\n    {}['k']\nexcept KeyError as e:\n    print('no', e)\nfinally:\n    print('end')",
        "no 'k'\nend",
    ),
    "strings": ("print(f'{3.14159:.2f} {\"x\"!r:>5}', '%05d' % 42, 'a-b'.split('-'))", "3.14   'x' 00042 ['a', 'b']"),
    "modules": (
        "import json, math, re, datetime\nprint(json.dumps({'a': [1]}), math.sqrt(16), "
        "re.sub('a', 'b', 'aa'), datetime.date(2024, 2, 29).isoformat())",
        '{"a": [1]} 4.0 bb 2024-02-29',
    ),
    "decimal": ("from decimal import Decimal as D\nprint(D('0.1') + D('0.2'))", "0.3"),
    "sorting": ("print(sorted([3, 1, 2], key=lambda n: -n), max([1, 5]), any([0, 1]))", "[3, 2, 1] 5 True"),
    "with input": ("print(input().upper(), hasattr('x', 'upper'), getattr('x', 'nope', 7))", "HI True 7"),
}  # fmt: skip


@pytest.mark.parametrize(("code", "expected"), ORDINARY.values(), ids=ORDINARY)
def test_ordinary_computation_works(jar: Belljar, code: str, expected: str) -> None:
    result = run(jar, code, stdin="hi\n")
    assert (result.status, result.stdout) == ("ok", expected + "\n"), result.stderr
    assert result.isolation["language"].startswith("RestrictedPython 8")
    assert result.files == ()


def test_results_are_as_without_it(jar: Belljar) -> None:
    failed = run(jar, "x = 1\nx / 0")
    assert failed.error and failed.error.name == "ZeroDivisionError"
    assert failed.stderr.splitlines()[:2] == [
        "Traceback (most recent call last):",
        '  File "/workspace/main.py", line 2, in <module>',
    ]
    assert run(jar, "if").error == run(jar, "if").error and run(jar, "if").status == "error"
    assert run(jar, "raise SystemExit(3)").exit_code == 3
    assert run(jar, "while True: pass", timeout_s=0.5).status == "timeout"
    assert run(jar, "x = bytearray(2_000_000_000)").status == "out_of_memory"
    fresh = run(jar, "print(1)", fresh_exec=True)
    assert fresh.stdout == "1\n", fresh.stderr
    refused = run(jar, "().__class__", fresh_exec=True)
    assert refused.status == "denied" and refused.findings[0].line == 1, refused.stderr


def test_the_wall_is_the_same(jar: Belljar) -> None:
    """I5: never instead of one."""
    plain, level = jar.run("pass").isolation, run(jar, "pass").isolation
    assert {**plain, "language": level["language"]} == level


@pytest.mark.parametrize("language", ["bash", "javascript"])
def test_only_python_has_it(jar: Belljar, language: str) -> None:
    with pytest.raises(InvalidRequest, match="language_level"):
        run(jar, "1", language=language)


@pytest.mark.parametrize("level", ["strict", "", None, 1, ["restricted"]])
def test_unknown_levels_are_refused(jar: Belljar, level: object) -> None:
    with pytest.raises(InvalidRequest, match="language_level"):
        jar.run("1", language_level=level)  # type: ignore[arg-type]


def test_too_small_a_disk_is_refused(jar: Belljar) -> None:
    with pytest.raises(LimitExceeded, match="disk_bytes"):
        run(jar, "1", disk_bytes=64 * 1024)


def test_without_the_library_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    restricted._parts.cache_clear()
    monkeypatch.setattr(restricted, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentUnavailable) as missing:
        restricted.files("seal ")
    assert "[restricted]'" in missing.value.hint
    monkeypatch.undo()
    assert restricted.files("seal ")


def test_what_the_guest_says_is_bounded() -> None:
    many = "; ".join(f"line {n}: {'x' * 2000}" for n in range(1, 500))

    def told(message: str) -> ErrorInfo:
        return ErrorInfo(name="RestrictedSyntaxError", message=message, traceback="")

    found = restricted.refusals(told("seal " + many), "seal ")
    assert len(found) <= 50 and all(len(item.message) <= 500 for item in found)
    assert restricted.refusals(told(many), "seal ") == ()
    assert restricted.refusals(told(many), "") == ()
    assert restricted.refusals(None, "seal ") == ()


FORGED = """
class RestrictedSyntaxError(Exception):
    pass
total = 0
for number in range(2000000):
    total += number
raise RestrictedSyntaxError("line 1: it was refused")
"""


@pytest.mark.parametrize("fresh_exec", [False, True])
def test_code_cannot_say_that_it_was_refused(jar: Belljar, fresh_exec: bool) -> None:
    """A verdict never rests on a name that code chose, and what ran is charged."""
    result = run(jar, FORGED, fresh_exec=fresh_exec)
    assert (result.status, result.exit_code, result.findings) == ("error", 1, ())
    assert result.error and result.error.name == "RestrictedSyntaxError"
    assert result.usage.cpu_ms >= 50


@pytest.mark.parametrize("fresh_exec", [False, True])
def test_what_a_refusal_took_is_charged(jar: Belljar, fresh_exec: bool) -> None:
    result = run(jar, "x = 1\n" * 2000 + "().__class__", fresh_exec=fresh_exec)
    assert result.status == "denied" and result.usage.cpu_ms > 0
    assert [finding.line for finding in result.findings] == [2001]
    filtered = jar.run("import os\n" * 100 + "eval('1')", filter="deny")
    assert filtered.status == "denied" and filtered.usage.cpu_ms > 0


def test_the_command_line_tells_the_line(capfd: pytest.CaptureFixture[str]) -> None:
    from belljar.cli.main import call

    code = ["-c", "().__class__", "--stdin", "/dev/null"]
    status = call(["run", *code, "--language-level", "restricted"])
    said = capfd.readouterr().err
    assert status == 125 and "not in the restricted language" in said and "line 1" in said


def test_it_is_documented_as_it_is() -> None:
    from pathlib import Path

    from belljar.runtimes.guest import restricted as guest

    page = (Path(belljar.__file__).parents[2] / "docs" / "restricted.md").read_text()
    for name in guest.MODULES:
        assert f"`{name}`" in page, name
