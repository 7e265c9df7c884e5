"""How the command line talks to people: one line on standard error, never a traceback."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from belljar.cli.terminal import harmless

if TYPE_CHECKING:
    from belljar.errors import BelljarError

REFUSED = 125
"""Belljar refused the run, or could not run it."""


def say(message: str, *, hint: str = "") -> None:
    """`belljar: message`, and what to do about it on a line of its own."""
    text = f"belljar: {harmless(message)}\n"
    if hint:
        text += f"  hint: {harmless(hint)}\n"
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        pass  # nobody listens


def problem(error: BelljarError) -> dict[str, dict[str, str]]:
    """The one shape of an error in JSON."""
    name = type(error).__name__
    return {"error": {"name": name, "message": error.full_message, "hint": error.hint}}
