"""Between text and code: what a model says to run, and what it is told about the run (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from belljar.errors import UnknownLanguage
from belljar.model import Result
from belljar.runtimes import languages

FENCE = "```"
MOST_CHARACTERS = 8000
"""Of each stream and value: a table of a million rows must not cost a million tokens."""


def find_code(reply: str, language: str) -> str | None:
    """The fenced blocks in that language, or in none, one after the other; None if there are none.

    A block that does not end was cut off; it is run, and its error tells the model."""
    blocks = [code for tag, code in _blocks(reply) if not tag or _is(tag, language)]
    return "\n".join(blocks) if blocks else None


def _blocks(reply: str) -> Iterator[tuple[str, str]]:
    tag: str | None = None
    lines: list[str] = []
    for line in reply.splitlines(keepends=True):
        if not line.lstrip().startswith(FENCE):
            lines.append(line)
        elif tag is None:
            tag, lines = line.strip().strip("`").partition(" ")[0].lower(), []
        else:
            yield tag, "".join(lines)
            tag = None
    if tag is not None and lines:
        yield tag, "".join(lines)


def _is(tag: str, language: str) -> bool:
    try:
        return languages.get(tag).name == languages.get(language).name
    except UnknownLanguage:
        return False


def tell(result: Result) -> str:
    """A result in words: how it ended, what was printed and shown."""
    lines = [f"Run {result.run_id}: {result.status}, {result.duration_ms / 1000:.1f} s."]
    if result.status == "out_of_memory":
        lines.append("It used more memory than it may.")
    # The traceback of an uncaught error is the end of standard error.
    for title, text in (
        ("Standard output", result.stdout),
        ("Standard error", result.stderr),
        ("Value of the last expression", result.value or ""),
    ):
        if text.strip():
            lines += [f"{title}:", clip(text.rstrip("\n"))]
    pictures = sum("image/png" in output.data for output in result.outputs)
    if pictures:
        lines.append(f"Pictures shown: {pictures}.")
    if not result.success:
        lines.append("It failed: find out why, and answer with code that mends it.")
    return "\n".join(lines) + "\n"


def clip(text: str, most: int = MOST_CHARACTERS) -> str:
    """Head and tail; what is missing is counted."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"
