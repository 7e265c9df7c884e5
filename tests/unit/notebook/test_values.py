"""S3, R1: the last expression's value, display(), rich representations, and their bounds."""

from __future__ import annotations

import json
from typing import Any

import pytest

Cells = Any
Start = Any


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", "2"),
        ("x = 5", None),
        ("5;", None),
        ("5 ; ", None),
        ("(5);  # quiet", None),
        ("5 # loud;", "5"),
        ("'a;b'", "'a;b'"),
        ("x = 1; x", "1"),
        ("None", None),
        ("'text'", "'text'"),
        ("print", "<built-in function print>"),
        ("x = (\n 1 +\n 2)\n(x\n)", "3"),
        ("'ä' * 3 ;", None),
        ("if True:\n    5", None),
        ('"""a docstring?"""', "'a docstring?'"),
        ("", None),
        ("# nothing", None),
        ("7\r\n8\r\n", "8"),
        ("lambda: 0 if False else 1;", None),
    ],
)
def test_s3_the_last_expression_is_the_value(cell: Cells, code: str, value: str | None) -> None:
    ran = cell(code)
    assert (ran.status, ran.value) == ("ok", value)
    kinds = [(output["kind"], output["data"]) for output in ran.outputs]
    assert kinds == ([] if value is None else [("result", {"text/plain": value})])


def test_s3_the_last_value_is_the_underscore(cell: Cells) -> None:
    cell("20 + 1")
    cell("x = 1")
    assert cell("_ * 2").value == "42"
    cell("def _(text): return text.upper()")
    cell("5")
    assert cell("_('mine')").value == "'MINE'"


def test_s3_nothing_of_ours_is_among_the_variables(cell: Cells) -> None:
    cell("x = 1\nx")
    assert cell("[name for name in dir() if not name.startswith('__')]").value == "['_', 'x']"
    assert cell("[name for name in dir() if 'belljar' in name]").value == "[]"


def test_s3_display_shows_in_order(cell: Cells) -> None:
    ran = cell("print('a')\ndisplay(1, 'two')\nprint('b')\n3")
    assert [(o["kind"], o["data"]["text/plain"]) for o in ran.outputs] == [
        ("display", "1"),
        ("display", "'two'"),
        ("result", "3"),
    ]
    assert ran.stdout == "a\nb\n"


def test_s3_a_display_can_be_updated(cell: Cells) -> None:
    ran = cell("h = display(1, display_id=True)\nh.update(2)\ndisplay(3, display_id='own')")
    first, second, third, result = ran.outputs
    assert first["metadata"]["display_id"] == second["metadata"]["display_id"]
    assert second["metadata"]["update"] is True and second["data"]["text/plain"] == "2"
    assert third["metadata"] == {"display_id": "own"}
    assert result["kind"] == "result"


RICH = """
import base64
class Rich:
    def __repr__(self): return "plain"
    def _repr_html_(self): return "<b>html</b>"
    def _repr_markdown_(self): return "**md**"
    def _repr_svg_(self): return "<svg/>"
    def _repr_png_(self): return b"\\x89PNG data", {"width": 3}
    def _repr_jpeg_(self): raise RuntimeError("never asked when there is a PNG")
    def _repr_latex_(self): return "$x$"
    def _repr_json_(self): return {"a": [1, None]}
"""


def test_s3_every_rich_representation(cell: Cells) -> None:
    ran = cell(RICH + "Rich()")
    (output,) = ran.outputs
    assert ran.value == "plain"
    assert {m: c for m, c in output["data"].items() if isinstance(c, str)} == {
        "text/plain": "plain",
        "text/html": "<b>html</b>",
        "text/markdown": "**md**",
        "image/svg+xml": "<svg/>",
        "text/latex": "$x$",
        "application/json": '{"a": [1, null]}',
    }
    assert ran.data("image/png") == b"\x89PNG data"
    assert output["metadata"] == {"image/png": {"width": 3}}
    assert ran.stderr == ""


def test_s3_a_jpeg_alone(cell: Cells) -> None:
    ran = cell("class J:\n    def _repr_jpeg_(self): return b'\\xff\\xd8'\nJ()")
    assert ran.data("image/jpeg") == b"\xff\xd8"


def test_s3_mime_bundles(cell: Cells) -> None:
    """The forms in which Plotly, Altair and others give theirs."""
    code = """
    class Plotly:
        def _repr_mimebundle_(self, include=None, exclude=None, **kwargs):
            content = {"data": [{"y": [1, float("nan")]}], "layout": {}}
            return {"application/vnd.plotly.v1+json": content}
    class Altair:
        def _repr_mimebundle_(self, include=None, exclude=None):
            return {"application/vnd.vegalite.v5+json": {"mark": "bar"}, "text/plain": "chart"}, {
                "application/vnd.vegalite.v5+json": {"embed_options": {}}}
    class Picture:
        def _repr_mimebundle_(self, include, exclude):
            return {"image/png": "iVBORw==", "text/html": None}
    display(Plotly(), Altair(), Picture())
    """
    ran = cell(code)
    plotly, altair, picture = ran.outputs
    content = json.loads(plotly["data"]["application/vnd.plotly.v1+json"])
    assert content == {"data": [{"y": [1, None]}], "layout": {}}  # NaN is not JSON
    assert "Plotly object" in plotly["data"]["text/plain"]
    assert json.loads(altair["data"]["application/vnd.vegalite.v5+json"]) == {"mark": "bar"}
    assert altair["data"]["text/plain"] == "chart"
    assert altair["metadata"] == {"application/vnd.vegalite.v5+json": {"embed_options": {}}}
    assert ran.data("image/png") == b"\x89PNG" and set(picture["data"]) == {
        "image/png",
        "text/plain",
    }


@pytest.mark.parametrize(
    "method", ["_repr_html_", "_repr_png_", "_repr_json_", "_repr_mimebundle_", "_ipython_display_"]
)
def test_s3_a_representation_that_fails_does_not_break_the_run(cell: Cells, method: str) -> None:
    code = (
        f"class Bad:\n    def __repr__(self): return 'still'\n    def {method}(self, **k): 1 / 0\n"
    )
    ran = cell(code + "Bad()")
    assert (ran.status, ran.value) == ("ok", "still")
    assert [output["data"] for output in ran.outputs] == [{"text/plain": "still"}]
    assert f"{method} of Bad: ZeroDivisionError" in ran.stderr
    polite = cell(code.replace("1 / 0", "raise NotImplementedError") + "Bad()")
    assert (polite.value, polite.stderr) == ("still", "")


@pytest.mark.parametrize(
    "body",
    ["1 / 0", "return 5", "return 'x' * (10 ** 7)", "raise MemoryError", "return repr(self)"],
)
def test_s3_a_repr_that_fails_or_floods(cell: Cells, body: str) -> None:
    ran = cell(f"class Bad:\n    def __repr__(self): {body}\n[Bad()]")
    assert ran.status == "ok"
    assert len(ran.value) < 40_000
    assert "left out" in ran.value or "its repr failed" in ran.value


def test_s3_odd_contents_are_left_out(cell: Cells) -> None:
    ran = cell(
        "display({'text/plain': 'p', 'not a type': 'x', 'image/png': 'nob64', 5: ''}, raw=True)\n"
        "display({'text/plain': 'half \\ud800'}, raw=True)"
    )
    assert ran.status == "ok", ran.stderr
    assert [o["data"] for o in ran.outputs] == [{"text/plain": "p"}, {"text/plain": "half \\ud800"}]


def test_s3_a_class_is_not_asked_for_its_instances_form(cell: Cells) -> None:
    assert list(cell(RICH + "Rich").outputs[0]["data"]) == ["text/plain"]


def test_s3_an_object_that_answers_to_every_name(cell: Cells) -> None:
    ran = cell(
        "class Any:\n    def __getattr__(self, name): return Any()\n"
        "    def __call__(self, *a, **k): return self\nAny()"
    )
    assert list(ran.outputs[0]["data"]) == ["text/plain"]


def test_s3_an_object_that_shows_itself(cell: Cells) -> None:
    ran = cell(
        "class Own:\n    def _ipython_display_(self): display('shown')\n"
        "    def __repr__(self): return 'own'\nOwn()"
    )
    assert [o["data"]["text/plain"] for o in ran.outputs] == ["'shown'"]
    assert ran.value == "own"


# -- text ------------------------------------------------------------------------------------------


def test_s3_containers_are_laid_out(cell: Cells) -> None:
    assert cell("{'a': 1, 'b': (1,), 'c': {2}}").value == "{'a': 1, 'b': (1,), 'c': {2}}"
    wide = cell("{'k%d' % n: 'v' * 30 for n in range(3)}").value
    assert wide == "{'k0': '%s',\n 'k1': '%s',\n 'k2': '%s'}" % (("v" * 30,) * 3)
    assert cell("x = [1]; x.append(x); x").value == "[1, [...]]"
    numbers = cell("list(range(100))").value
    assert all(len(line) <= 80 for line in numbers.splitlines())
    assert numbers.count("\n") < 8 and eval(numbers) == list(range(100))


def test_l5_long_containers_are_cut_without_being_made(cell: Cells) -> None:
    ran = cell("[0] * 10_000_000")
    assert ran.value.endswith("… 9999000 more]")
    ran = cell("'x' * 300_000_000")
    assert len(ran.value) < 40_000 and "300000000 in all" in ran.value
    ran = cell("{n: 'y' * 5000 for n in range(1000)}")
    assert len(ran.value) < 50_000 and "more" in ran.value
    ran = cell("x = []\nfor _ in range(10000): x = [x]\nx")
    assert ran.status == "ok" and len(ran.value) < 40_000


# -- bounds ----------------------------------------------------------------------------------------


def test_l5_outputs_are_counted_and_the_rest_is_dropped(start: Start) -> None:
    cell = start(outputs=3)
    ran = cell("for n in range(10): display(n)\n'last'")
    assert [o["data"]["text/plain"] for o in ran.outputs] == ["0", "1", "2"]
    assert ran.dropped_outputs == 8
    assert ran.value == "'last'"  # told all the same
    ran = cell("display(1)")
    assert (len(ran.outputs), ran.dropped_outputs) == (1, 0)


def test_l5_outputs_are_bounded_in_size_and_say_so(start: Start) -> None:
    cell = start(output_bytes=10_000)
    cell(
        "class Big:\n    def __init__(self, n): self.n = n\n"
        "    def __repr__(self): return 'big'\n    def _repr_html_(self): return 'h' * self.n"
    )
    ran = cell("Big(20_000)")
    (output,) = ran.outputs
    assert output["data"] == {"text/plain": "big"}
    assert output["metadata"] == {"dropped": {"text/html": 20_000}}
    ran = cell("for _ in range(5): display(Big(4_000))")
    assert ["text/html" in o["data"] for o in ran.outputs] == [True, True, False, False, False]
    ran = cell("for _ in range(500): display('x' * 100)")
    assert sum(len(o["data"]["text/plain"]) for o in ran.outputs) <= 10_000
    assert len(ran.outputs) + ran.dropped_outputs == 500


def test_l5_bytes_count_as_they_travel(start: Start) -> None:
    cell = start(output_bytes=1000)
    ran = cell("display({'image/png': bytes(800), 'text/plain': 'p'}, raw=True)")
    assert ran.outputs[0]["metadata"] == {"dropped": {"image/png": 1068}}


def test_l5_metadata_are_small_and_json(cell: Cells) -> None:
    ran = cell("display(1, metadata={'a': object()})\ndisplay(2, metadata={'a': 'x' * 100_000})")
    assert [o["metadata"] for o in ran.outputs] == [
        {"note": "the metadata were not JSON"},
        {"note": "the metadata were too large"},
    ]


# -- IPython by habit ------------------------------------------------------------------------------


def test_s3_what_people_import_from_ipython(cell: Cells, tmp_path: Any) -> None:
    (tmp_path / "p.png").write_bytes(b"\x89PNG...")
    code = """
    from IPython.display import HTML, JSON, SVG, Image, Latex, Markdown, Math, clear_output, display
    clear_output(wait=True)
    display(HTML("<p>"), Markdown("# m"), Latex("$l$"), SVG("<svg/>"))
    display(JSON({"j": 1}), Image("p.png"))
    Math("x^2")
    """
    ran = cell(code)
    assert ran.status == "ok", ran.stderr
    found = [(m, c) for o in ran.outputs for m, c in o["data"].items() if m != "text/plain"]
    assert found == [
        ("text/html", "<p>"),
        ("text/markdown", "# m"),
        ("text/latex", "$l$"),
        ("image/svg+xml", "<svg/>"),
        ("application/json", '{"j": 1}'),
        ("image/png", {"base64": "iVBORy4uLg=="}),
        ("text/latex", "$\\displaystyle x^2$"),
    ]
    assert cell("import IPython; IPython.get_ipython()").value is None


def test_s3_a_real_ipython_is_preferred(cell: Cells, tmp_path: Any) -> None:
    core = tmp_path / "IPython" / "core"
    core.mkdir(parents=True)
    (tmp_path / "IPython/__init__.py").write_text("real = True")
    (core / "__init__.py").write_text("")
    (core / "display_functions.py").write_text("def display(*values): print(values)")
    (tmp_path / "IPython/display.py").write_text(
        "from IPython.core.display_functions import *\nHTML = 1"
    )
    ran = cell(
        "import IPython\nfrom IPython.display import display, HTML\ndisplay(5)\nIPython.real, HTML"
    )
    assert (ran.value, ran.stdout) == ("(True, 1)", "")
    assert ran.outputs[0]["data"] == {"text/plain": "5"}
