"""S3: Plotly and Altair themselves, installed for the test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import uv

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Cells = Any
Start = Any

PLOTLY = "application/vnd.plotly.v1+json"


@pytest.fixture(scope="session")
def charts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = os.environ.get("BELLJAR_TEST_HOME")
    folder = Path(home, "notebook-charts") if home else tmp_path_factory.mktemp("charts")
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        done = subprocess.run(
            [
                *(uv.find_uv_bin(), "pip", "install", "--target", str(folder)),
                *("--python", sys.executable, "--only-binary", ":all:", "plotly>=6", "altair>=5.5"),
            ],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            pytest.skip(f"Plotly and Altair cannot be installed here: {done.stderr[-500:]}")
        (folder / "complete").touch()
    return folder


@pytest.fixture
def cell(start: Start, charts: Path) -> Cells:
    return start(packages=(charts,))


def test_s3_a_plotly_figure_is_its_structure(cell: Cells) -> None:
    cell("import plotly.graph_objects as go\nfig = go.Figure(go.Bar(y=[1, 3, 2]))")
    for code in ("fig", "fig.show()", "display(fig)", "import plotly.io\nplotly.io.show(fig)"):
        ran = cell(code)
        assert ran.status == "ok" and ran.stderr == ""
        (output,) = ran.outputs
        assert set(output["data"]) == {"text/plain", PLOTLY}
        structure = ran.json(PLOTLY)
        (trace,) = structure["data"]
        assert (trace["type"], trace["y"]) == ("bar", [1, 3, 2])
        assert "layout" in structure


def test_s3_an_altair_chart_is_its_specification(cell: Cells) -> None:
    ran = cell(
        "import altair as alt\ndata = alt.Data(values=[{'a': 1, 'b': 2}])\n"
        "alt.Chart(data).mark_bar().encode(x='a:Q', y='b:Q')"
    )
    assert ran.value == "alt.Chart(...)"
    (mime,) = set(ran.outputs[0]["data"]) - {"text/plain"}
    assert mime.startswith("application/vnd.vegalite.v") and mime.endswith("json")
    chart = ran.json(mime)
    assert chart["mark"] == {"type": "bar"} and chart["data"]["values"] == [{"a": 1, "b": 2}]
    assert chart["encoding"]["x"] == {"field": "a", "type": "quantitative"}
