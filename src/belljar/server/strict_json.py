"""JSON as its standard says, and no more of it than is bearable.

The standard library only: it also runs in a process of its own, which should start fast.

What is read from JSON takes a multiple of its length in memory if it consists of small pieces, so
their number is bounded.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

MOST_PIECES = 25_000
"""Values, keys and brackets in one text."""
DEEPEST = 32
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""Never tried twice from the same place, and one that does not end goes to the end: else a body
of quotes would take the square of its length."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_MARKS = (b",", b"[", b"{", b":")


class NotRead(ValueError):
    """In words for whoever sent it."""


def pieces(content: bytes | bytearray) -> int:
    """At least as many as it has, found fast: what is in strings counts, too."""
    return sum(map(content.count, _MARKS))


def parse(content: bytes | bytearray) -> Any:
    """No NaN, no name twice, only texts that can be written as UTF-8; else NotRead."""
    _check_shape(content)
    try:
        found = json.loads(
            content.decode(),
            parse_constant=_no_number,
            object_pairs_hook=_once,
        )
    except UnicodeDecodeError:
        raise NotRead("the body is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise NotRead(f"the body is no JSON: {error.msg} at character {error.pos}") from None
    except (ValueError, RecursionError) as error:
        # Numbers of thousands of digits, and what the hooks say.
        raise NotRead(f"the body cannot be read: {str(error)[:100]}") from None
    if _SURROGATE.search(content):
        _check_texts(found)
    return found


def _check_texts(found: Any) -> None:
    """JSON can spell half of a pair of surrogates, in names as well as in values: no character, and
    nothing that could be written to a file, a database or an answer."""
    left = [found]
    try:
        while left:
            match left.pop():
                case str() as text:
                    text.encode()
                case dict() as mapping:
                    left += mapping
                    left += mapping.values()
                case list() as values:
                    left += values
    except UnicodeEncodeError:
        raise NotRead("a text has half of a surrogate pair, which is no character") from None


def _check_shape(content: bytes | bytearray) -> None:
    if pieces(content) > MOST_PIECES:
        bare = _bare(content)
        if pieces(bare) > MOST_PIECES:
            raise NotRead(f"the body has more than {MOST_PIECES} values, keys and brackets")
    if content.count(b"[") + content.count(b"{") > DEEPEST:
        _check_depth(_bare(content))


def _bare(content: bytes | bytearray) -> bytes:
    """Without what is in strings. JSON with more strings than pieces is none."""
    bare, strings = _STRINGS.subn(b"", content, MOST_PIECES + 1)
    if strings > MOST_PIECES:
        raise NotRead(f"the body has more than {MOST_PIECES} values, keys and brackets")
    return bare


def _check_depth(bare: bytes) -> None:
    depth = 0
    for mark in re.finditer(rb"[\[{\]}]", bare):
        depth += 1 if mark[0] in b"[{" else -1
        if depth < 0:
            return  # no JSON: reading it ends here, too
        if depth > DEEPEST:
            raise NotRead(f"the body is nested deeper than {DEEPEST}")


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in one object")
    return found
