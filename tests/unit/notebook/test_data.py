"""S3: figures and tables of the data environment, compared as pictures and structures."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

Cells = Any
Start = Any

PNG = "image/png"


def pixels(png: bytes) -> tuple[int, int, set[tuple[int, ...]]]:
    """Width, height and the colours of an 8-bit RGB(A) image, read without any library."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height, depth, colour = struct.unpack(">IIBB", png[16:26])
    assert (depth, colour) in ((8, 2), (8, 6))
    size = 3 if colour == 2 else 4
    raw = zlib.decompress(b"".join(data for kind, data in chunks(png) if kind == b"IDAT"))
    stride = width * size
    before = bytearray(stride)
    colours: set[tuple[int, ...]] = set()
    for row in range(height):
        start = row * (stride + 1)
        line = unfiltered(raw[start], bytearray(raw[start + 1 : start + 1 + stride]), before, size)
        colours |= {tuple(line[at : at + 3]) for at in range(0, stride, size)}
        before = line
    return width, height, colours


def chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        at += length + 12


def unfiltered(kind: int, line: bytearray, above: bytearray, size: int) -> bytearray:
    for at in range(len(line)):
        left = line[at - size] if at >= size else 0
        up = above[at]
        corner = above[at - size] if at >= size else 0
        if kind == 4:
            guess = left + up - corner
            nearest = min(
                (abs(guess - value), order) for order, value in enumerate((left, up, corner))
            )
            add = (left, up, corner)[nearest[1]]
        else:
            add = (0, left, up, (left + up) // 2)[kind]
        line[at] = (line[at] + add) & 0xFF
    return line


def pictures(ran: Any) -> list[int]:
    return [index for index, output in enumerate(ran.outputs) if PNG in output["data"]]


def red(colours: set[tuple[int, ...]]) -> bool:
    return (255, 0, 0) in colours


# -- figures ---------------------------------------------------------------------------------------


def test_s3_a_plot_comes_back_without_savefig_or_show(data_cell: Cells) -> None:
    ran = data_cell(
        "import matplotlib.pyplot as plt\nplt.figure(figsize=(3, 2), dpi=50)\n"
        "plt.plot([0, 1], [0, 1], color='#ff0000', linewidth=5);"
    )
    assert ran.status == "ok" and ran.stderr == ""
    (output,) = ran.outputs
    assert output["kind"] == "display"
    width, height, colours = pixels(ran.data(PNG))
    assert output["metadata"] == {PNG: {"width": width, "height": height}}
    assert 100 < width < 200 and 60 < height < 130
    assert red(colours) and (255, 255, 255) in colours
    assert data_cell("plt.get_fignums()").value == "[]"


def test_s3_each_figure_is_shown_once(data_cell: Cells) -> None:
    data_cell("import matplotlib.pyplot as plt")
    ran = data_cell("a = plt.figure()\nb = plt.figure()")
    assert pictures(ran) == [0, 1]
    assert pictures(data_cell("x = 1")) == []
    ran = data_cell("fig, ax = plt.subplots()\nax.plot([1, 2])\nfig")
    assert [output["kind"] for output in ran.outputs] == ["result"] and pictures(ran) == [0]
    ran = data_cell("fig2, ax2 = plt.subplots()\ndisplay(fig2)")
    assert pictures(ran) == [0]
    ran = data_cell("ax.set_facecolor('#ff0000')\nfig")  # closed, and still there to be shown
    assert red(pixels(ran.data(PNG))[2])


def test_s3_show_shows_at_once(data_cell: Cells) -> None:
    ran = data_cell(
        "import matplotlib.pyplot as plt\nfor colour in ('red', 'blue'):\n"
        "    plt.figure(figsize=(1, 1), facecolor=colour)\n    plt.show(block=False)\n"
        "    print(plt.get_fignums())\ndisplay('after')"
    )
    assert ran.stdout == "[]\n[]\n" and ran.stderr == ""
    assert pictures(ran) == [0, 1]
    assert red(pixels(ran.data(PNG, 0))[2]) and not red(pixels(ran.data(PNG, 1))[2])
    assert ran.outputs[2]["data"]["text/plain"] == "'after'"
    ran = data_cell("fig = plt.figure()\nfig.show()\nx = 1")
    assert pictures(ran) == [0] and ran.stderr == ""


def test_s3_show_imported_by_name_and_pandas_plots(data_cell: Cells) -> None:
    ran = data_cell(
        "from matplotlib.pyplot import plot, show\nplot([1, 2])\nshow()\n"
        "import pandas as pd\npd.Series([1, 3, 2]).plot(color='red')\nNone"
    )
    assert pictures(ran) == [0, 1] and ran.stderr == ""
    assert red(pixels(ran.data(PNG, 1))[2])


def test_s3_a_figure_that_was_saved_is_shown_as_well(data_cell: Cells, tmp_path: Path) -> None:
    ran = data_cell("import matplotlib.pyplot as plt\nplt.plot([1])\nplt.savefig('own.png')")
    assert (tmp_path / "own.png").read_bytes().startswith(b"\x89PNG")
    assert pictures(ran) == [0]


def test_s3_figures_of_a_failed_run_are_shown_and_of_an_interrupted_one_closed(
    data_cell: Cells,
) -> None:
    ran = data_cell("import matplotlib.pyplot as plt\nplt.plot([1])\n1 / 0")
    assert ran.status == "error" and pictures(ran) == [0]
    ran = data_cell("plt.plot([1])\nprint('go')\nwhile True: pass", interrupt="go")
    assert (ran.outputs, ran.dropped_outputs) == ([], 1)
    assert data_cell("plt.get_fignums()").value == "[]"


def test_s3_a_figure_that_cannot_be_drawn_does_not_break_the_run(data_cell: Cells) -> None:
    ran = data_cell("import matplotlib.pyplot as plt\nplt.title('$\\\\notacommand{$')\nx = 1")
    assert ran.status == "ok"
    assert "image/png of Figure: ValueError" in ran.stderr
    assert data_cell("plt.get_fignums()").value == "[]"


def test_l5_many_figures_are_not_drawn_in_vain(start: Start, data_packages: Path) -> None:
    cell = start(outputs=2, packages=(data_packages,))
    ran = cell(
        "import matplotlib.pyplot as plt\nplt.rcParams['figure.max_open_warning'] = 0\n"
        "for _ in range(5): plt.figure(figsize=(1, 1))"
    )
    assert (pictures(ran), ran.dropped_outputs) == ([0, 1], 3)


def test_s3_an_image_of_pillow(data_cell: Cells) -> None:
    ran = data_cell("from PIL import Image\nImage.new('RGB', (4, 3), (255, 0, 0))")
    assert pixels(ran.data(PNG)) == (4, 3, {(255, 0, 0)})
    assert "image/jpeg" not in ran.outputs[0]["data"]


# -- tables ----------------------------------------------------------------------------------------


def test_s3_a_frame_as_text_html_and_records(data_cell: Cells) -> None:
    ran = data_cell(
        "import pandas as pd\npd.DataFrame({'name': ['Ada', None], 'n': [1, 2],"
        " 'x': [0.5, float('nan')], 'when': pd.to_datetime(['2026-01-02', None])})"
    )
    assert set(ran.outputs[0]["data"]) == {"text/plain", "text/html", "application/json"}
    assert ran.json() == [
        {"name": "Ada", "n": 1, "x": 0.5, "when": ran.json()[0]["when"]},
        {"name": None, "n": 2, "x": None, "when": None},
    ]
    assert ran.json()[0]["when"].startswith("2026-01-02")
    html = ran.data("text/html")
    assert html.count("<tr") == 3 and "<td>Ada</td>" in html
    assert ran.value == ran.data("text/plain") and "Ada" in ran.value
    assert ran.outputs[0]["metadata"] == {
        "text/html": {"rows": 2, "columns": 4, "truncated": False},
        "application/json": {"rows": 2, "rows_shown": 2, "columns": 4, "truncated": False},
    }


def test_s3_large_frames_are_bounded_and_say_so(data_cell: Cells) -> None:
    ran = data_cell(
        "import numpy as np, pandas as pd\n"
        "big = pd.DataFrame(np.arange(3_000_000).reshape(100_000, 30))\nbig"
    )
    metadata = ran.outputs[0]["metadata"]
    assert metadata["application/json"] == {
        "rows": 100_000,
        "rows_shown": 200,
        "columns": 30,
        "truncated": True,
    }
    assert metadata["text/html"] == {"rows": 100_000, "columns": 30, "truncated": True}
    records = ran.json()
    assert len(records) == 200 and records[1]["29"] == 59
    body = ran.data("text/html").partition("<tbody>")[2]
    assert 55 <= body.count("<tr") <= 61
    assert "100000 rows × 30 columns" in ran.data("text/html")
    assert "[100000 rows x 30 columns]" in ran.value
    ran = data_cell("pd.options.display.max_rows = 4\nbig")
    assert ran.data("text/html").partition("<tbody>")[2].count("<tr") <= 5
    ran = data_cell(
        "pd.options.display.max_rows = None\npd.options.display.max_columns = None\nbig.head(5000)"
    )
    assert ran.data("text/html").partition("<tbody>")[2].count("<tr") <= 61


def test_l5_wide_cells_shorten_the_records(data_cell: Cells) -> None:
    ran = data_cell("import pandas as pd\npd.DataFrame({'t': ['x' * 10_000] * 300})")
    described = ran.outputs[0]["metadata"]["application/json"]
    assert described["truncated"] and 10 < described["rows_shown"] < 30
    assert len(ran.json()) == described["rows_shown"]
    assert len(ran.data("application/json")) <= 256 * 1024


def test_s3_an_index_that_says_something_is_in_the_records(data_cell: Cells) -> None:
    data_cell(
        "import pandas as pd\nf = pd.DataFrame({'k': list('aab'), 'j': [1, 1, 2], 'v': [1, 2, 3]})"
    )
    assert data_cell("f.groupby('k').sum()[['v']]").json() == [
        {"k": "a", "v": 3},
        {"k": "b", "v": 3},
    ]
    assert data_cell("f.groupby(['k', 'j'])['v'].sum()").json() == [
        {"k": "a", "j": 1, "v": 3},
        {"k": "b", "j": 2, "v": 3},
    ]
    assert data_cell("f[f.v > 2]").json() == [{"index": 2, "k": "b", "j": 2, "v": 3}]
    assert data_cell("f.groupby('k').agg({'v': ['min', 'max']})").json()[0] == {
        "k": "a",
        "v.min": 1,
        "v.max": 2,
    }
    assert data_cell("pd.concat([f.v, f.v], axis=1)").json()[0] == {"v": 1, "v.2": 1}
    assert data_cell("f.set_index('k', drop=False)[['k']]").json()[0] == {"k": "a", "k.2": "a"}


def test_s3_series(data_cell: Cells) -> None:
    ran = data_cell("import pandas as pd\npd.Series([1.5, 2.5])")
    assert ran.json() == [{"value": 1.5}, {"value": 2.5}]
    assert "<table" in ran.data("text/html") and "dtype: float64" in ran.value
    assert data_cell("pd.Series([3], index=['a'], name='n')").json() == [{"index": "a", "n": 3}]


@pytest.mark.parametrize(
    "frame",
    [
        "pd.DataFrame()",
        "pd.DataFrame(index=[1, 2])",
        "pd.DataFrame({'b': [b'\\xff', b'x']})",
        "pd.DataFrame({'o': [object(), {1: 2}]})",
        "pd.DataFrame({'c': [1j], 'p': pd.period_range('2026', periods=1)})",
        "pd.DataFrame({'i': pd.interval_range(0, 1)})",
        "pd.DataFrame({'t': pd.to_timedelta(['1D'])})",
        "pd.DataFrame({'z': pd.to_datetime(['2026-01-01']).tz_localize('UTC')})",
        "pd.DataFrame({1: [1], '1': [2], None: [3], ('a', 'b'): [4]})",
        "pd.DataFrame({'\\ud800': ['\\ud800']})",
        "pd.Series([pd.DataFrame({'x': [1]})], name=('a', 'b'))",
        "pd.DataFrame({'cat': pd.Categorical(['a']), 'big': [2 ** 70]})",
    ],
)
def test_s3_strange_frames_do_not_break_the_run(data_cell: Cells, frame: str) -> None:
    ran = data_cell("import pandas as pd\n" + frame)
    assert (ran.status, len(ran.outputs)) == ("ok", 1), ran.stderr
    if "application/json" in ran.outputs[0]["data"]:
        assert isinstance(ran.json(), list)


def test_s3_wide_frames_are_wrapped_and_not_cut_to_a_terminal(data_cell: Cells) -> None:
    ran = data_cell(
        "import pandas as pd\nprint(pd.DataFrame({'column %d' % n: [n] for n in range(15)}))"
    )
    assert all(f"column {n}" in ran.stdout for n in range(15))


def test_s3_arrays_and_models_have_their_usual_text(data_cell: Cells) -> None:
    assert data_cell("import numpy as np\nnp.arange(3)").value == "array([0, 1, 2])"
    ran = data_cell("from sklearn.linear_model import LinearRegression\nLinearRegression()")
    assert ran.value == "LinearRegression()" and "<style>" in ran.data("text/html")


def test_s3_numpy_in_json(data_cell: Cells) -> None:
    ran = data_cell(
        "import numpy as np\nclass J:\n    def _repr_json_(self):\n"
        "        return {'a': np.array([1.0, np.nan]), 'n': np.int64(3)}\nJ()"
    )
    assert json.loads(ran.data("application/json")) == {"a": [1.0, None], "n": 3}
