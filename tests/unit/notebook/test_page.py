"""docs/notebook.md against the code."""

from __future__ import annotations

import re
from pathlib import Path

from belljar.runtimes.guest import display, failures, magics, packages, tables

PAGE = (Path(__file__).parents[3] / "docs/notebook.md").read_text()


def test_s3_every_magic_is_documented_and_no_other() -> None:
    table = PAGE.partition("### Magics\n")[2].partition("\n## ")[0]
    named = [
        name for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in row.split()
    ]
    documented = {name.strip("`,") for name in named}
    assert documented == set(magics._known(magics.Magics).split())


def test_s3_every_name_of_ipython_is_documented() -> None:
    line = PAGE.partition("works without IPython: ")[2].partition("There is no")[0]
    assert set(re.findall(r"`(\w+)`", line)) == {
        *packages._KINDS,
        *("display", "update_display", "clear_output", "Math", "Image"),
    }


def test_l5_the_bounds_are_those_of_the_code() -> None:
    assert f"up to {tables.HTML_ROWS} rows, {tables.HTML_COLUMNS} columns" in PAGE
    assert f"up to {tables.JSON_ROWS} rows, {tables.JSON_COLUMNS} columns, " in PAGE
    assert f"{tables.JSON_BYTES // 1024} KiB" in PAGE
    assert f"Text is cut at {display.TEXT_CHARS // 1024} Ki characters" in PAGE
    assert f"cut at {failures.MESSAGE_CHARS // 1024} Ki characters, tracebacks" in PAGE
    assert f"tracebacks at {failures.TRACEBACK_CHARS // 1024} Ki" in PAGE
    for mime, method in display._METHODS:
        assert f"`{method}`" in PAGE, mime
