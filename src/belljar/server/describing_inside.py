"""Run inside a sandbox by describing.py: looks at one file and prints what it is, as JSON.

Standard library only; nothing of it runs on the host.
"""

from __future__ import annotations

import csv
import json
import time
from typing import Any

LOOK = 256 * 1024
MOST_COLUMNS, MOST_ROWS, CELL = 500, 10, 200
TYPED_ROWS = 1000
JSON_BYTES = 64 * 1024 * 1024


def main(path: str, name: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    with open(path, "rb") as file:
        head = file.read(LOOK)
    try:
        found = _look(path, name.lower(), head, end)
    except Exception as error:
        found = _told("unknown", note=f"{type(error).__name__}: {error}"[:500])
    print(json.dumps(found))


def _look(path: str, name: str, head: bytes, end: float) -> dict[str, Any]:
    if head.startswith(b"SQLite format 3\0"):
        return _sqlite(path)
    try:
        text = _text(head)
    except UnicodeDecodeError:
        return _told("unknown", note="it is not text")
    if "\0" in text:
        return _told("unknown", note="it is not text")
    start = text.lstrip()[:1]
    if name.endswith((".jsonl", ".ndjson")):
        return _lines(path, end)
    if start in ("{", "["):
        try:
            json.loads(text.lstrip().split("\n", 1)[0])
        except ValueError:
            pass
        else:
            if start == "{" and text.count("\n") > 1:
                return _lines(path, end)
        return _json(path)
    if name.endswith((".csv", ".tsv", ".tab")) or _has_columns(text):
        return _table(path, name, text, end)
    return _plain(path, end)


def _text(head: bytes) -> str:
    """Without a character that was cut."""
    for cut in range(4):
        try:
            return head[: len(head) - cut].decode("utf-8-sig")
        except UnicodeDecodeError:
            if len(head) < LOOK:
                raise
    return head[: len(head) - 3].decode("utf-8-sig")


def _has_columns(text: str) -> bool:
    try:
        csv.Sniffer().sniff(text[:8192], delimiters=",;\t|")
    except csv.Error:
        return False
    return True


def _table(path: str, name: str, text: str, end: float) -> dict[str, Any]:
    try:
        dialect: Any = csv.Sniffer().sniff(text[:65536], delimiters=",;\t|")
    except csv.Error:
        dialect = csv.excel_tab if name.endswith((".tsv", ".tab")) else csv.excel
    csv.field_size_limit(1 << 20)
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        rows = csv.reader(file, dialect)
        names = next(rows, [])
        kinds: list[set[str]] = [set() for _ in names]
        sample: list[list[str]] = []
        count, complete = 0, True
        for row in rows:
            if not row:
                continue
            count += 1
            if count <= TYPED_ROWS:
                if count <= MOST_ROWS:
                    sample.append(row)
                for kind, value in zip(kinds, row, strict=False):
                    kind.add(_kind(value))
            elif count % 10_000 == 0 and time.monotonic() > end:
                complete = False
                break
    columns = [(column, _common(kind)) for column, kind in zip(names, kinds, strict=True)]
    return _told("csv", columns, count, complete, sample)


def _lines(path: str, end: float) -> dict[str, Any]:
    kinds: dict[str, set[str]] = {}
    first: list[dict[str, Any]] = []
    count, complete = 0, True
    with open(path, "rb") as file:
        for line in file:
            if not line.strip():
                continue
            count += 1
            if count <= TYPED_ROWS:
                value = json.loads(line)
                record = value if isinstance(value, dict) else {"value": value}
                _learn(kinds, record)
                if count <= MOST_ROWS:
                    first.append(record)
            elif count % 10_000 == 0 and time.monotonic() > end:
                complete = False
                break
    return _records("jsonl", kinds, first, count, complete)


def _json(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        content = file.read(JSON_BYTES + 1)
    if len(content) > JSON_BYTES:
        return _told("json", complete=False, note="too large to be read at once")
    value = json.loads(content)
    if isinstance(value, dict):
        return _told("json", [(name, _kind_of(one)) for name, one in value.items()], note="object")
    if not isinstance(value, list):
        return _told("json", note="one value")
    kinds: dict[str, set[str]] = {}
    records = [one if isinstance(one, dict) else {"value": one} for one in value[:TYPED_ROWS]]
    for record in records:
        _learn(kinds, record)
    return _records("json", kinds, records[:MOST_ROWS], len(value), True)


def _sqlite(path: str) -> dict[str, Any]:
    import sqlite3

    database = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    tables = [
        name
        for (name,) in database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
        )
    ]
    if not tables:
        return _told("sqlite", note="no tables")
    quoted = '"' + tables[0].replace('"', '""') + '"'
    rows = database.execute(f"SELECT * FROM {quoted} LIMIT {MOST_ROWS}")
    names = [column[0] for column in rows.description]
    sample = [[str(value) for value in row] for row in rows]
    (count,) = database.execute(f"SELECT count(*) FROM {quoted}").fetchone()
    columns = [(name, "other") for name in names]
    note = f"tables: {', '.join(tables)}; this is the first"
    return _told("sqlite", columns, count, True, sample, note)


def _plain(path: str, end: float) -> dict[str, Any]:
    count, complete = 0, True
    sample: list[list[str]] = []
    with open(path, encoding="utf-8", errors="replace") as file:
        while line := file.readline(1 << 20):
            count += 1
            if count <= MOST_ROWS:
                sample.append([line.rstrip("\n")])
            elif count % 10_000 == 0 and time.monotonic() > end:
                complete = False
                break
    return _told("text", [("line", "text")], count, complete, sample)


def _records(
    form: str, kinds: dict[str, set[str]], first: list[dict[str, Any]], count: int, complete: bool
) -> dict[str, Any]:
    sample = [[_cell(record.get(name)) for name in kinds] for record in first]
    columns = [(name, _common(kind)) for name, kind in kinds.items()]
    return _told(form, columns, count, complete, sample)


def _learn(kinds: dict[str, set[str]], record: dict[str, Any]) -> None:
    for name, value in record.items():
        if name in kinds or len(kinds) < MOST_COLUMNS:
            kinds.setdefault(name, set()).add(_kind_of(value))


def _kind(text: str) -> str:
    if not text:
        return "empty"
    if text.lower() in ("true", "false"):
        return "boolean"
    try:
        int(text)
        return "integer"
    except ValueError:
        pass
    try:
        float(text)
        return "number"
    except ValueError:
        return "text"


def _kind_of(value: Any) -> str:
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "boolean"
    names = {int: "integer", float: "number", str: "text"}
    return names.get(type(value), "other")


def _common(kinds: set[str]) -> str:
    kinds = kinds - {"empty"}
    if not kinds:
        return "empty"
    if kinds == {"integer", "number"}:
        return "number"
    return kinds.pop() if len(kinds) == 1 else "text"


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _told(
    form: str,
    columns: Any = (),
    rows: int | None = None,
    complete: bool = True,
    sample: Any = (),
    note: str = "",
) -> dict[str, Any]:
    return {
        "format": form,
        "columns": [
            {"name": _short(name), "type": kind} for name, kind in list(columns)[:MOST_COLUMNS]
        ],
        "rows": rows,
        "complete": complete,
        "sample": [[_short(cell) for cell in row[:MOST_COLUMNS]] for row in sample],
        "note": _short(note, 500),
    }


def _short(text: str, most: int = CELL) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")[:most]
