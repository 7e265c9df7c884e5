"""What hostile code prints, made harmless for a terminal.

A terminal obeys escape sequences: they can retitle the window, write to the clipboard, hide text or
make the terminal type. Only colours pass; every other control character is shown, not obeyed.
"""

from __future__ import annotations

import codecs
import re
from functools import cache

_RESET = "\x1b[0m"


# Compiled when first needed: most runs print into a pipe, and say nothing of their own.
@cache
def _trouble() -> re.Pattern[str]:
    # Directional marks are no control characters, but make text read differently from what it is.
    return re.compile(
        "\x1b\\[[0-9;:]{0,32}m"
        "|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
    )


@cache
def _unfinished() -> re.Pattern[str]:
    return re.compile("\x1b(\\[[0-9;:]{0,32})?$")


def harmless(text: str) -> str:
    """One whole text without colours, for messages that quote what the guest said."""
    return _trouble().sub(lambda match: _visible(match[0]), text)


class Filter:
    """A stream of bytes on its way to a terminal; sequences and characters may arrive in pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._held = ""
        self._coloured = False

    def feed(self, data: bytes) -> bytes:
        text = self._held + self._decoder.decode(data)
        held = _unfinished().search(text)
        self._held = held[0] if held else ""
        return self._clean(text[: len(text) - len(self._held)])

    def end(self) -> bytes:
        """What was held back, and an end to any colour that was left on."""
        rest = self._clean(self._held + self._decoder.decode(b"", True))
        self._held = ""
        return rest + (_RESET.encode() if self._coloured else b"")

    def _clean(self, text: str) -> bytes:
        return _trouble().sub(self._replace, text).encode("utf-8", "backslashreplace")

    def _replace(self, match: re.Match[str]) -> str:
        if match[0].endswith("m") and len(match[0]) > 1:
            self._coloured = True
            return match[0]
        return _visible(match[0])


def _visible(text: str) -> str:
    return text.translate(_CONTROLS).encode("ascii", "backslashreplace").decode()


_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), 127)}
