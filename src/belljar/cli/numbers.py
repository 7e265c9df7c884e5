"""Numbers as people write them on a command line: 512M, 1.5G, 64k; 2.5; 64.

Options arrive here as text: letting typer convert them would load a validation library, which
takes longer than a run. What a number may be is policy's to say.
"""

from __future__ import annotations

import math
import re

from belljar.errors import LimitExceeded

_SIZE = r"(\d{1,15}(?:\.\d{1,15})?)\s*(?:([kmgt])i?)?b?"
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def size(option: str, text: str | None) -> int | None:
    """A number of bytes; units are powers of 1024."""
    if text is None:
        return None
    match = re.fullmatch(_SIZE, text.strip(), re.IGNORECASE)
    if not match:
        raise LimitExceeded(
            f"{option}: {text!r} is not a size", hint="write 512M, 1.5G or a number of bytes"
        )
    return math.floor(float(match[1]) * _UNITS[(match[2] or "").lower()])


def count(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise LimitExceeded(f"{option}: {text!r} is not a whole number") from None


def number(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise LimitExceeded(f"{option}: {text!r} is not a number") from None
