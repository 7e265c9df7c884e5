"""Whether what was typed so far is complete, or goes on in the next line (pure).

Nobody but the person at the terminal types here, so Python may read it; nothing is run.
"""

from __future__ import annotations

import ast
import codeop
import re
import warnings

MOST_CHARACTERS = 100_000
"""Longer code is refused anyway, and not looked at here."""
SEPARATOR = "%%"
"""A line of nothing else begins and ends code that goes as it is, in any language."""


def complete(language: str, text: str) -> bool:
    if len(text) > MOST_CHARACTERS:
        return True
    first, _, rest = text.partition("\n")
    if first.strip() == SEPARATOR:
        return rest.rstrip().endswith(f"\n{SEPARATOR}") or rest.strip() == SEPARATOR
    if language == "python":
        return _python(text)
    if language == "bash":
        return _bash(text)
    return not _open(text, quotes="'\"`", comment="//", block=("/*", "*/"))


def unwrap(text: str) -> str:
    """Code without the separators around it."""
    lines = text.splitlines()
    if lines and lines[0].strip() == SEPARATOR:
        lines = lines[1:]
        if lines and lines[-1].strip() == SEPARATOR:
            lines.pop()
    return "\n".join(lines)


def _python(text: str) -> bool:
    ended = "\n" in text and not text.rpartition("\n")[2].strip()
    if text.startswith("%%"):  # a magic for the whole cell
        return ended
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if codeop.compile_command(text, symbol="exec") is None:
                return False
            body = ast.parse(text).body
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return True  # the sandbox says what is wrong with it
    # A block may go on: an empty line ends it.
    goes_on = bool(body) and hasattr(body[-1], "body") and "\n" in text
    return ended or not goes_on


_BASH_OPEN = {"if": "fi", "case": "esac", "do": "done", "{": "}"}


def _bash(text: str) -> bool:
    if text.endswith("\\") or _open(text, quotes="'\"", comment="#", brackets="()"):
        return False
    if marks := re.findall(r"(?<!<)<<-?\s*['\"]?(\w+)['\"]?", text):
        return all(re.search(rf"^\t*{re.escape(mark)}$", text, re.MULTILINE) for mark in marks)
    words = [word for piece in re.split(r"[;\n&|]+", text) if (word := _first(piece))]
    return all(words.count(start) <= words.count(end) for start, end in _BASH_OPEN.items())


def _first(piece: str) -> str:
    """The word that a simple command begins with; `then` and the like may stand before it."""
    words = [word for word in piece.split() if word not in ("then", "else", "elif")]
    if words[-1:] == ["{"]:  # a function
        return "{"
    return words[0] if words else ""


def _open(
    text: str,
    *,
    quotes: str,
    comment: str,
    block: tuple[str, str] | None = None,
    brackets: str = "()[]{}",
) -> bool:
    """Whether a bracket, a string or a comment is still open."""
    depth, at = 0, 0
    while at < len(text):
        character = text[at]
        if block and text.startswith(block[0], at):
            end = text.find(block[1], at + 2)
            if end < 0:
                return True
            at = end + 2
            continue
        starts_word = at == 0 or text[at - 1].isspace() or comment != "#"
        if text.startswith(comment, at) and starts_word:
            end = text.find("\n", at)
            if end < 0:
                break
            at = end
        elif character in quotes:
            end = _end_of_string(text, at)
            if end < 0:
                return True
            at = end
        elif character == "\\":
            at += 1
        elif (place := brackets.find(character)) >= 0:
            depth += -1 if place % 2 else 1
        at += 1
    return depth > 0


def _end_of_string(text: str, at: int) -> int:
    quote, at = text[at], at + 1
    while at < len(text) and text[at] != quote:
        at += 2 if text[at] == "\\" else 1
    return at if at < len(text) else -1
