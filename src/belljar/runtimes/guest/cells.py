"""From the text of a run to code.

Text that is Python is compiled as it is. Only what is not gets a second look for lines that
notebooks understand (`!command`, `%magic`, `name?`): each becomes a call on the same line, so line
numbers stay right.
"""

from __future__ import annotations
import __future__

import ast
import linecache
import re
import types
from typing import Any

VALUE = "__belljar_value__"
"""The last expression's value is assigned to it: one compilation and one execution do for all."""
DOOR = "__belljar__"
"""The name, among the builtins, under which translated lines find us."""

COROUTINE = 0x80  # inspect.CO_COROUTINE

_FUTURES = 0
for _name in __future__.all_feature_names:
    _FUTURES |= getattr(__future__, _name).compiler_flag

_REMEMBERED = 500

_SET_FROM = re.compile(r"([\w.,* \t\[\]'\"]*[\w\]])[ \t]*=[ \t]*([!%])(?!=)(.*)", re.DOTALL)
_MAGIC = re.compile(r"(\w+)[ \t]*(.*)", re.DOTALL)
_ASKED = re.compile(r"(\?{0,2})[ \t]*([\w.]+)[ \t]*(\?{0,2})[ \t]*")
_TOKEN = re.compile(r"""#|\\|'{3}|"{3}|'|"|[\[({]|[\])}]""")


class Compiler:
    """Compiles one run after the other; `from __future__` in one holds for those that follow."""

    def __init__(self) -> None:
        self._futures = 0
        self._remembered: dict[str, None] = {}

    def remember(self, text: str, name: str) -> None:
        """For tracebacks, `inspect.getsource` and warnings."""
        lines = [line + "\n" for line in text.split("\n")]
        linecache.cache[name] = (len(text), None, lines, name)
        self._remembered[name] = None
        if len(self._remembered) > _REMEMBERED:
            oldest = next(iter(self._remembered))
            del self._remembered[oldest]
            linecache.cache.pop(oldest, None)

    def compile(self, text: str, name: str, *, line: int = 0) -> tuple[types.CodeType, bool]:
        """The code, and whether it leaves a value in VALUE.

        `line`: the text is part of that line of what was remembered."""
        flags = self._futures | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        special: set[int] = {line} if line else set()
        tree, mistake = _parse(text, name, flags)
        if mistake and not line:
            straight = _without_common_indent(text)
            if straight != text:
                text = straight
                self.remember(text, name)
                tree, mistake = _parse(text, name, flags)
        if mistake:
            translated, lines = translate(text)
            if lines:
                special |= lines
                text = translated
                tree, mistake = _parse(text, name, flags)
        if mistake:
            raise _with_source(mistake, name, special)
        assert tree is not None
        valued = _keep_value(tree, text)
        if special:
            _point_at_whole_lines(tree, special, name)
        try:
            code = compile(tree, name, "exec", flags, True)
        except SyntaxError as error:
            raise _with_source(error, name, special) from None
        self._futures |= code.co_flags & _FUTURES
        return code, valued


def _parse(text: str, name: str, flags: int) -> tuple[ast.Module | None, SyntaxError | None]:
    try:
        return compile(text, name, "exec", flags | ast.PyCF_ONLY_AST, True), None
    except SyntaxError as error:
        return None, error.with_traceback(None)


def _keep_value(tree: ast.Module, text: str) -> bool:
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        return False
    if ";" in text and _ends_with_semicolon(last, text):
        return False
    target = ast.copy_location(ast.Name(VALUE, ast.Store()), last)
    tree.body[-1] = ast.copy_location(ast.Assign([target], last.value), last)
    return True


def _ends_with_semicolon(last: ast.Expr, text: str) -> bool:
    line = text.split("\n")[(last.end_lineno or 1) - 1].encode("utf-8", "surrogatepass")
    return line[last.end_col_offset :].lstrip(b" \t\f\\").startswith(b";")


def _point_at_whole_lines(tree: ast.Module, special: set[int], name: str) -> None:
    """Columns are those of the translation; without them tracebacks mark the line as it is."""
    node: Any
    for node in ast.walk(tree):
        if getattr(node, "lineno", 0) in special:
            line = linecache.getline(name, node.lineno).rstrip("\n")
            width = len(line.encode("utf-8", "surrogatepass"))
            node.col_offset = len(line) - len(line.lstrip())
            node.end_lineno = node.lineno
            node.end_col_offset = max(width, node.col_offset + 1)


def _with_source(error: SyntaxError, name: str, special: set[int]) -> SyntaxError:
    """What the compiler did not know, or knows in our words, is shown in the caller's."""
    if error.filename == name and error.lineno and (not error.text or error.lineno in special):
        error.text = linecache.getline(name, error.lineno) or error.text
        if error.lineno in special and error.text:
            error.offset = len(error.text) - len(error.text.lstrip()) + 1
            error.end_offset = error.offset
    return error


# -- what only notebooks understand ----------------------------------------------------------------


def translate(text: str) -> tuple[str, set[int]]:
    """The text with every special line made a call, and the numbers of those lines."""
    lines = text.split("\n")
    first = next((n for n, line in enumerate(lines) if line.strip()), 0)
    if lines[first].startswith("%%"):
        body = "\n".join(lines[first + 1 :])
        match = _MAGIC.match(lines[first][2:])
        name, rest = (match[1], match[2]) if match else ("", lines[first][2:])
        call = "%s.cell(%r, %r, %r, %d)" % (DOOR, name, rest.strip(), body, first + 1)
        return "\n" * first + call, {first + 1}
    special = set()
    lexer = _Lexer()
    number = 0
    while number < len(lines):
        line = lines[number]
        start = number
        if lexer.at_statement() and _may_be_special(line):
            whole = line
            while whole.endswith("\\") and number + 1 < len(lines):
                number += 1
                whole = whole[:-1] + "\n" + lines[number]
            meant = _call(whole.replace("\n", " "))
            if meant:
                indent = line[: len(line) - len(line.lstrip())]
                lines[start] = indent + meant
                lines[start + 1 : number + 1] = [""] * (number - start)
                special.add(start + 1)
                number += 1
                continue
            number = start
        lexer.feed(line)
        number += 1
    return "\n".join(lines), special


def _without_common_indent(text: str) -> str:
    """People quote code in the indentation of their own."""
    lines = text.split("\n")
    first = next((line for line in lines if line.strip()), "")
    indent = first[: len(first) - len(first.lstrip())]
    if not indent or not all(line.startswith(indent) or not line.strip() for line in lines):
        return text
    return "\n".join([line[len(indent) :] for line in lines])


def _may_be_special(line: str) -> bool:
    stripped = line.strip()
    return stripped[:1] in ("!", "%", "?") or stripped[-1:] == "?" or "=" in line


def _call(line: str) -> str | None:
    """Python for a special line; None for any other. Nothing here is valid Python as it stands."""
    text = line.strip()
    end = ";" if text.endswith(";") and text[0] == "%" else ""
    if text.startswith("!!"):
        return "%s.output(%r)" % (DOOR, text[2:].strip())
    if text.startswith("!"):
        return "%s.system(%r)" % (DOOR, text[1:].strip())
    if text.startswith("%"):
        match = _MAGIC.match(text[1:])
        return "%s.line(%r, %r)%s" % (DOOR, *(match.groups() if match else (text[1:], "")), end)
    asked = _ASKED.fullmatch(text)
    if asked and (asked[1] or asked[3]):
        return "%s.help(%r, %r)" % (DOOR, asked[2], "??" in (asked[1], asked[3]))
    match = _SET_FROM.fullmatch(text)
    if match:
        targets, kind, rest = match.groups()
        if kind == "!":
            return "%s = %s.output(%r)" % (targets, DOOR, rest.strip())
        magic = _MAGIC.match(rest)
        if magic:
            return "%s = %s.line(%r, %r)" % (targets, DOOR, *magic.groups())
    return None


class _Lexer:
    """Knows whether the next line begins a statement: not inside a string or brackets."""

    def __init__(self) -> None:
        self._quote = ""
        self._depth = 0
        self._continued = False

    def at_statement(self) -> bool:
        return not self._quote and self._depth <= 0 and not self._continued

    def feed(self, line: str) -> None:
        self._continued = False
        position = 0
        while position < len(line):
            match = _TOKEN.search(line, position)
            if not match:
                break
            token, position = match[0], match.end()
            if token == "\\":
                self._continued = position >= len(line)
                position += 1
            elif self._quote:
                if token == self._quote:
                    self._quote = ""
                elif token[0] == self._quote[0]:
                    # Another number of the same quotes: the end may be among them.
                    position = match.start() + 1
                    if len(self._quote) == 1:
                        self._quote = ""
            elif token == "#":
                break
            elif token[0] in "'\"":
                self._quote = token
            else:
                self._depth += 1 if token in "([{" else -1
        if len(self._quote) == 1 and not self._continued:
            self._quote = ""  # a string that was not closed: the line is wrong, not the rest
