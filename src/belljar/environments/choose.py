"""`environment="auto"`: the smallest environment that has the modules the code imports.

The code is read as text. Parsing it would be exact, and would let hostile source exhaust the
parser's stack on the host. A wrong guess here costs little: too large an environment still runs
the code, and what is missed can be named with `environment=`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from belljar.environments.catalogue import BASE, BUILT_IN, Environment
from belljar.runtimes.languages import Language

SCAN_CHARACTERS = 200_000
"""The code and the modules beside it, together; the rest is not looked at."""
SCAN_STEPS = 20_000
"""Words looked at: thousands of imports more than honest code has, milliseconds of work."""

_COMMENT_LINE = re.compile(r"^[ \t\f]*+#[^\n]*+", re.MULTILINE)
_KEYWORD = re.compile(r"\b(?:import|from|__import__|import_module|find_spec)\b")
# A word or one other character, behind blanks and joined line ends.
_TOKEN = re.compile(r"(?:[ \t\f\r]|\\\r?\n)*+(\w++|[^\w])")
_QUOTES = frozenset("'\"\\")


def choose(code: str, language: Language, *, files: Mapping[str, bytes] | None = None) -> str:
    """The name of the environment for `code` and the Python modules that lie beside it."""
    if language.name != "python":
        return language.environment
    candidates = [environment for environment in BUILT_IN if environment.runtime == "python"]
    offered = frozenset[str]().union(*(environment.imports for environment in candidates))
    text = _text(code, files or {})
    # Most code names no package at all, and a search is far cheaper than reading words.
    if not any(module in text for module in offered):
        return BASE.name
    wanted = imported(text) & offered
    # The first of those that have the most, so the smallest that has everything if there is one.
    return max(candidates, key=lambda environment: len(wanted & environment.imports)).name


def choose_tier(
    code: str, environment: Environment, *, files: Mapping[str, bytes] | None = None
) -> str:
    """The smallest warm interpreter of `environment` that has what the code asks for; "" if the
    environment has none."""
    if not environment.tiers:
        return ""
    text = _text(code, files or {})
    wanted = imported(text) & environment.imports
    smallest = 0
    for index, tier in enumerate(environment.tiers):
        if any(word in text for word in tier.words):
            smallest = index
    for tier in environment.tiers[smallest:]:
        if wanted <= tier.imports:
            return tier.name
    return environment.tiers[-1].name


def _text(code: str, files: Mapping[str, bytes]) -> str:
    texts = [code[:SCAN_CHARACTERS]]
    room = SCAN_CHARACTERS - len(code)
    for name, content in files.items():
        if room > 0 and name.endswith(".py"):
            texts.append(bytes(content[:room]).decode("utf-8", "replace"))
            room -= len(texts[-1])
    return "\n".join(texts)


def imported(text: str) -> set[str]:
    """The top-level modules that import statements in `text` name, also those inside strings."""
    found: set[str] = set()
    words = Words(_COMMENT_LINE.sub("", text))
    while keyword := words.seek_keyword():
        if keyword == "import":
            _import(words, found)
        elif keyword == "from":
            _from(words, found)
        else:
            _dynamic(words, found)
    return found


class Words:
    """Reads a text word by word and never goes back, which keeps the cost linear."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.steps = 0

    def seek_keyword(self) -> str:
        """Go behind the next keyword and return it; "" when there is none."""
        self.steps += 1
        match = _KEYWORD.search(self.text, self.position) if self.steps < SCAN_STEPS else None
        if match is None:
            return ""
        self.position = match.end()
        return match[0]

    def take(self, *accepted: str) -> str:
        """The next word if it is one of `accepted`, or without any if it can name a module;
        else "" and stay.
        """
        self.steps += 1
        match = _TOKEN.match(self.text, self.position) if self.steps < SCAN_STEPS else None
        if match is None:
            return ""
        word = match[1]
        if word not in accepted if accepted else not _is_name(word):
            return ""
        self.position = match.end()
        return word


def _is_name(word: str) -> bool:
    return word.isidentifier() and not _KEYWORD.fullmatch(word)


def _import(words: Words, found: set[str]) -> None:
    """`import a.b as c, d`"""
    while module := words.take():
        found.add(module)
        _skip_dotted(words)
        if words.take("as"):
            words.take()
        if not words.take(","):
            return


def _from(words: Words, found: set[str]) -> None:
    """`from a.b import …`; the names behind it are not modules to look for."""
    module = words.take()
    if module:
        _skip_dotted(words)
        if words.take("import"):
            found.add(module)


def _dynamic(words: Words, found: set[str]) -> None:
    """`import_module("a.b")`"""
    if words.take("("):
        while words.take(*_QUOTES):
            pass
        if module := words.take():
            found.add(module)


def _skip_dotted(words: Words) -> None:
    while words.take("."):
        words.take()
