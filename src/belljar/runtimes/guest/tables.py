"""pandas frames and series as HTML, and as JSON records for programs. Both bounded."""

from __future__ import annotations

import sys
from typing import Any

HTML_ROWS = 60
HTML_COLUMNS = 20
JSON_ROWS = 200
JSON_COLUMNS = 100
JSON_BYTES = 256 * 1024


def adapt(pandas: Any) -> None:
    """As pandas does when it finds IPython: wide frames are wrapped, not cut to a terminal."""
    if pandas.get_option("display.max_columns") == 0:
        pandas.set_option("display.max_columns", HTML_COLUMNS)


def is_table(value: object) -> bool:
    pandas: Any = sys.modules.get("pandas")
    try:
        return isinstance(value, (pandas.DataFrame, pandas.Series))
    except AttributeError:  # not imported, or not to its end
        return False


def html(value: Any) -> tuple[str, dict[str, Any]]:
    """The markup, and what was left out."""
    pandas: Any = sys.modules["pandas"]
    frame = value if isinstance(value, pandas.DataFrame) else value.to_frame()
    rows = min(pandas.get_option("display.max_rows") or HTML_ROWS, HTML_ROWS)
    columns = min(pandas.get_option("display.max_columns") or HTML_COLUMNS, HTML_COLUMNS)
    with pandas.option_context(
        *("display.max_rows", rows, "display.min_rows", rows),
        *("display.max_columns", columns, "display.notebook_repr_html", True),
    ):
        text = frame._repr_html_()
    truncated = len(frame) > rows or len(frame.columns) > columns
    return text, {"rows": len(frame), "columns": len(frame.columns), "truncated": truncated}


def records(value: Any) -> tuple[str, dict[str, Any]]:
    """The first rows as a list of objects. An index that says something becomes columns."""
    pandas: Any = sys.modules["pandas"]
    if isinstance(value, pandas.Series):
        frame = value.head(JSON_ROWS).to_frame("value" if value.name is None else value.name)
    else:
        frame = value.iloc[:JSON_ROWS, :JSON_COLUMNS]
    index = value.index
    if not (isinstance(index, pandas.RangeIndex) and index.name is None and not index.start):
        frame = frame.reset_index(allow_duplicates=True)
    frame = frame.set_axis(_names(frame.columns), axis=1)
    text = _json(frame)
    while len(text) > JSON_BYTES and len(frame) > 1:
        frame = frame.head(max(1, min(len(frame) // 2, len(frame) * JSON_BYTES // len(text))))
        text = _json(frame)
    columns = len(value.columns) if value.ndim == 2 else 1
    described = {
        "rows": len(value),
        "rows_shown": len(frame),
        "columns": columns,
        "truncated": len(frame) < len(value) or columns > JSON_COLUMNS,
    }
    return text, described


def _json(frame: Any) -> str:
    text: str = frame.to_json(
        orient="records", date_format="iso", default_handler=str, force_ascii=False
    )
    return text


def _names(columns: Any) -> list[str]:
    """Texts, each once: two columns of one name would be one key."""
    names: list[str] = []
    taken: set[str] = set()
    for column in columns:
        if isinstance(column, tuple):
            text = ".".join([str(part) for part in column if part != ""])
        else:
            text = str(column)
        name, count = text, 1
        while name in taken:
            count += 1
            name = "%s.%d" % (text, count)
        taken.add(name)
        names.append(name)
    return names
