"""Data as its readers read it: percent-encoding, the escapes of strings and those of HTML undone.

Every pattern here takes a bounded number of steps for each byte, whatever the data: a run that
could be tried from each of its bytes is tried from its first one only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from html.entities import html5

PLAIN = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
"""What no usual way of writing has to escape."""

_NAMES = {
    name[:-1].lower().encode(): character.encode()
    for name, character in html5.items()
    if name.endswith(";") and len(character) == 1 and "!" <= character <= "~"
}
_NUMBER = rb"(?:9|10|13|3[2-9]|[4-9][0-9]|1[01][0-9]|12[0-6])"
ESCAPE = re.compile(
    # One set of first bytes, which is searched for many times faster than several beginnings.
    rb"[%%\\&](?:"
    rb"(?<=%%)(?:25)*(0[9ad]|[2-7][0-9a-f])"
    rb"|(?<=\\)(?<!\\\\)\\*+(?:([^0-9a-z\\])|(?:u00|x)([0-7][0-9a-f])|u\{0*([2-7][0-9a-f])\})"
    rb"|(?<=\\)(?<!\\\\)(?<=(\\))\\++(?=[0-9a-z])"
    rb"|(?<=&)(?:amp;)*(?:#(?:0*(%b)|x0*([0-7]?[0-9a-f]));|(?=[a-z]{2,16};)(%b);))"
    % (_NUMBER, b"|".join(_NAMES)),
    re.IGNORECASE | re.DOTALL,
)
LONGEST_ESCAPE = 24
"""Longer ones are undone as well, but not where a stream happens to be cut in them."""
_ITSELF, _DECIMAL, _NAME = (2, 5), 6, 8
_IN_DIGITS = re.compile(
    rb"(%(?:25)*|\\+(?:u00|x)|\\+u\{0*)[0-9a-f]{2}(\}?)", re.IGNORECASE | re.DOTALL
)
_ENTITY = re.compile(rb"(&(?:amp;)*)[^&;]+;", re.IGNORECASE)
_QUOTED = re.compile(rb"(\\+)([^0-9A-Za-z\\])", re.DOTALL)

_BEGUN = re.compile(
    rb"(?:%(?:25)*[0-9a-f]?|(?<!\\)\\+(?:u(?:0{0,2}|00[0-7]|\{0*[0-9a-f]?)|x[0-7]?)?"
    rb"|&(?:amp;)*(?:#0*[0-9]{0,3}|#x0*[0-9a-f]{0,2}|([a-z]*)))\Z",
    re.IGNORECASE,
)

_BREAK = re.compile(rb"\\(?<!\\\\)\\*+[rnt]")
_GAP = re.compile(_BREAK.pattern + rb"|[\r\n\t ]+")
_STANDARD = bytes.maketrans(b"-_", b"+/")

Spans = tuple[Sequence[int], Sequence[int]]
"""Where in the data each byte of a reading begins, and where it ends."""


def undone(data: bytes) -> bytes:
    """Each escape as the character it stands for. Several of one kind around each other, such as
    %2541, count as one."""
    if b"%" in data or b"\\" in data or b"&" in data:
        return ESCAPE.sub(_meaning, data)
    return data


def begun(text: bytes) -> int:
    """How many of its last bytes may be the beginning of an escape that goes on behind it."""
    found = _BEGUN.search(text)
    if found is None or not any(name.startswith((found[1] or b"").lower()) for name in _NAMES):
        return 0
    return len(text) - found.start()


def like(piece: bytes, byte: int) -> bytes:
    """A letter or a digit, written as `piece` writes its character, and if possible as long."""
    if len(piece) == 1:
        return bytes([byte])
    if digits := _IN_DIGITS.fullmatch(piece):
        return digits[1] + b"%02X" % byte + digits[2]
    if entity := _ENTITY.fullmatch(piece):
        room = len(piece) - len(entity[1]) - 2
        # &#65; has no room for three digits: then the capital letter.
        number = b"%d" % byte if byte < 100 or room > 2 else b"%d" % ord(chr(byte).upper())
        return entity[1] + b"#" + number.rjust(room, b"0") + b";"
    if quoted := _QUOTED.fullmatch(piece):
        return (quoted[1] if quoted[2] in PLAIN else b"") + bytes([byte])
    inner = Reading(piece).undone
    if 1 < len(inner.text) < len(piece):  # one kind within another
        wanted, (starts, ends) = like(inner.text, byte), inner.spans
        if len(wanted) == len(inner.text):
            units = [piece[start:end] for start, end in zip(starts, ends, strict=True)]
            return b"".join(
                unit if new == old else like(unit, new)
                for unit, old, new in zip(units, inner.text, wanted, strict=True)
            )
    return bytes([byte])


class Reading:
    """Data, read in one way; and further ways to read that."""

    def __init__(self, text: bytes, below: Reading | None = None) -> None:
        self.text = text
        self._below = below

    @cached_property
    def spans(self) -> Spans:
        if self._below is None:
            return range(len(self.text)), range(1, len(self.text) + 1)
        starts: list[int] = []
        ends: list[int] = []
        at, under = 0, self._below
        for escape in ESCAPE.finditer(under.text):
            start, end = escape.span()
            starts += range(at, start + 1)
            ends += range(at + 1, start + 1)
            ends.append(end)
            at = end
        starts += range(at, len(under.text))
        ends += range(at + 1, len(under.text) + 1)
        return _through(under.spans, starts, ends)

    @property
    def undone(self) -> Reading:
        """Itself if there is nothing to undo."""
        text = undone(self.text)
        return self if text is self.text or text == self.text else Reading(text, self)

    def seen(self, view: str) -> bytes:
        """`text`; `lower`: in small letters; `spaced`: so, with spaces for plus signs, as in forms;
        `letters`: base64 in its standard alphabet, without line breaks, escaped or not, and
        indentation."""
        if view == "text":
            return self.text
        if view == "letters":
            text = _BREAK.sub(b"", self.text) if b"\\" in self.text else self.text
            return text.translate(_STANDARD, b"\r\n\t ")
        return self.text.lower() if view == "lower" else self.text.lower().replace(b"+", b" ")

    @cached_property
    def letter_spans(self) -> Spans:
        starts: list[int] = []
        at = 0
        for gap in _GAP.finditer(self.text):
            starts += range(at, gap.start())
            at = gap.end()
        starts += range(at, len(self.text))
        return _through(self.spans, starts, [start + 1 for start in starts])


def _through(below: Spans, starts: Sequence[int], ends: Sequence[int]) -> Spans:
    """Positions in a text as positions in the data."""
    if isinstance(below[0], range):
        return starts, ends
    return [below[0][start] for start in starts], [below[1][end - 1] for end in ends]


def _meaning(escape: re.Match[bytes]) -> bytes:
    kind = escape.lastindex or 0
    text = escape[kind]
    if kind in _ITSELF:
        return text
    if kind == _NAME:
        return _NAMES[text.lower()]
    return bytes([int(text, 10 if kind == _DECIMAL else 16)])
