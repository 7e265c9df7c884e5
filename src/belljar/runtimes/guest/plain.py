"""The text of a value: its repr, laid out for reading, and never longer than asked.

A list of ten million numbers is shown without making its whole text first.
"""

from __future__ import annotations

import itertools

WIDTH = 80
_ITEMS = 1000
_DEPTH = 50
_SHORT = 24

_BRACKETS: dict[type, str] = {list: "[]", tuple: "()", set: "{}", dict: "{}"}


def plain(value: object, *, limit: int) -> str:
    """Whatever its `__repr__` does: an exception in it is told in place of the text."""
    try:
        text = _text(value, limit, 0, ())
    except Exception as error:
        text = "<%s: its repr failed with %s>" % (type(value).__name__, _described(error))
    return cut(text, limit)


def cut(text: str, limit: int) -> str:
    """Head and tail, and how much is missing between them."""
    if len(text) <= limit:
        return text
    tail = limit // 4
    note = "\n… %d characters left out …\n" % (len(text) - limit)
    return text[: limit - tail] + note + text[len(text) - tail :]


def _described(error: Exception) -> str:
    try:
        return "%s: %s" % (type(error).__name__, str(error)[:500])
    except Exception:
        return type(error).__name__


def _text(value: object, room: int, depth: int, above: tuple[int, ...]) -> str:
    kind = type(value)
    if kind is str or kind is bytes:
        if len(value) <= room:  # type: ignore[arg-type]
            return repr(value)
        # Its middle would be cut anyhow; what is cut must not be made first.
        return repr(value[:room]) + "… (%d in all)" % len(value)  # type: ignore
    brackets = _BRACKETS.get(kind)
    if brackets is None or not value or depth > _DEPTH:
        return repr(value)
    if id(value) in above:
        return brackets[0] + "..." + brackets[1]
    parts = _parts(value, room, depth, (*above, id(value)))
    closing = ",)" if kind is tuple and len(parts) == 1 else brackets[1]
    line = brackets[0] + ", ".join(parts) + closing
    if len(line) <= WIDTH - depth and "\n" not in line:
        return line
    return brackets[0] + _filled(parts, depth) + closing


def _parts(value: object, room: int, depth: int, above: tuple[int, ...]) -> list[str]:
    parts: list[str] = []
    total = len(value)  # type: ignore[arg-type]
    for item in itertools.islice(value, _ITEMS):  # type: ignore[call-overload]
        if room <= 0:
            break
        if type(value) is dict:
            part = _text(item, room, depth + 1, above) + ": "
            part += _text(value[item], room - len(part), depth + 1, above)
        else:
            part = _text(item, room, depth + 1, above)
        parts.append(part)
        room -= len(part) + 2
    if len(parts) < total:
        parts.append("… %d more" % (total - len(parts)))
    return parts


def _filled(parts: list[str], depth: int) -> str:
    """One to a line; short ones as many as fit."""
    indent = "\n" + " " * (depth + 1)
    if any(len(part) > _SHORT for part in parts[:_ITEMS]):
        return ("," + indent).join(parts)
    lines: list[str] = []
    line = ""
    for part in parts:
        if line and len(line) + len(part) + 4 > WIDTH - depth:
            lines.append(line)
            line = ""
        line += (", " if line else "") + part
    return ("," + indent).join([*lines, line])
