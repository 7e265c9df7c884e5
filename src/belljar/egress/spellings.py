"""Every usual way to write a text, as forms to be found (`finding`).

In each reading the text is looked for in any letter case, in hexadecimal and in base64 (wherever in
the encoded bytes it begins, also across line breaks); in the data itself also in UTF-16.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote, quote_plus

from belljar.egress.escapes import ESCAPE, PLAIN, Reading, begun, like, undone
from belljar.egress.finding import BASE64, NONE, READINGS, Check, Form, Put, Unit

_SHORTEST = 8
SHORTEST_JOINED = 4
"""Of a text that ends in the beginning of an escape, without that."""
_STRETCH = 8
"""A spelling with more bytes than this for each character of the text is not found."""
_VALUE = {letter: value for value, letter in enumerate(BASE64)}
_UUID = re.compile(
    rb"([0-9a-f]{8})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{12})", re.IGNORECASE
)
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_OPEN_ESCAPES = (
    b"% %2 %4 %25 %252 %254 \\ \\x \\x4 \\u \\u0 \\u00 \\u004 \\u{ \\u{4 "
    b"& &# &#4 &#1 &#11 &#x &#x4".split()
)


def resizes(text: bytes) -> bool:
    """Whether a find can be replaced by something of another length."""
    return any(byte not in PLAIN for byte in text)


def spellings(text: bytes, instead: bytes, sent: Mapping[bytes, bytes] | None = None) -> list[Form]:
    """Every usual way to write `text`; in its place `instead`, as long as it, in the same way.

    `sent`: how it was written in what is answered, which may be encoded as a whole → the same."""
    assert len(text) == len(instead)
    forms: list[Form] = []
    for reading in range(READINGS):
        forms += _texts(text, instead, reading)
        forms += [_written(*pair, reading) for pair in _as_uuid(text, instead)]
    if any(sign in text for sign in b"%\\&"):  # may be undone with the escapes of a spelling
        forms += [_whole(way, instead) for way in _ways_twice(text)]
    for one, other in {text: instead, **(sent or {})}.items():
        forms += _encoded(one, other)
    for form in forms:
        form.longest_bytes = _STRETCH * len(text)
    return forms


def _as_uuid(text: bytes, instead: bytes) -> list[tuple[bytes, bytes]]:
    """With its hyphens, or without: a host that takes it for one writes it anew."""
    if (found := _UUID.fullmatch(text)) is None:
        return []
    parts = [instead[slice(*found.span(number))] for number in range(1, 6)]
    written = [(joint.join(found.groups()), joint.join(parts)) for joint in (b"", b"-")]
    return [pair for pair in written if pair[0] != text]


def _ways(text: bytes) -> set[bytes]:
    """As hosts usually write it, in any letter case."""
    shown = text.decode()
    ways = {shown, quote(text, safe=""), quote(text), quote_plus(text), html.escape(shown)}
    quoted = json.dumps(shown)[1:-1]
    safe = str.maketrans({sign: f"\\u00{ord(sign):02x}" for sign in "<>&"})  # within HTML
    ways |= {quoted, quoted.replace("/", "\\/"), quoted.translate(safe)}
    return {way.encode().lower() for way in ways}


def _ways_twice(text: bytes) -> list[bytes]:
    return sorted({way for one in _ways(text) for way in _ways(one)})


def exact(text: bytes, instead: bytes, check: Check | None = None) -> Form:
    form = Form(text, instead)
    form.check = check
    return form


def _encoded(text: bytes, instead: bytes) -> list[Form]:
    forms = [_wide(text, instead)]
    for reading in range(READINGS):
        digits, others = text.hex().encode(), instead.hex().encode()
        forms.append(_written(digits, others, reading))
        forms += [_base64(text, instead, before, reading) for before in range(3)]
    return forms


def in_base64(text: bytes) -> list[bytes]:
    """The letters that are of nothing else, by how many bytes stand before it."""
    forms = (_base64(text, text, before, 0) for before in range(3))
    return [form.needle for form in forms]


def _wide(text: bytes, instead: bytes) -> Form:
    needle = _in_utf_16(text.lower())
    return Form(needle, _in_utf_16(instead), view="lower")


def _in_utf_16(text: bytes) -> bytes:
    """By hand: the gateway opens no file later on, not even for a codec. For both byte orders: what
    begins with a byte of zero is the same from the second on."""
    made = bytearray(2 * len(text) - 1)
    made[::2] = text
    return bytes(made)


def _texts(text: bytes, instead: bytes, reading: int) -> list[Form]:
    # What looks like escapes in it may be undone as well, here or by the host.
    once = undone(text)
    reads = [one for one in dict.fromkeys((text, once, undone(once))) if len(one) >= _SHORTEST]
    forms = []
    for read in reads:
        last = begun(read) if reading else 0
        for start in (0, *(_swallowed_first(read) if reading else ())):
            forms.append(_written(read, instead, reading, start))
            if last and len(read) - start - last >= SHORTEST_JOINED:
                forms.append(_written(read, instead, reading, start, last))
    return forms


def _swallowed_first(text: bytes) -> list[int]:
    """How many of its first bytes would be read as the end of an escape that something in front of
    it begins; code can choose what that is where a query or a body may have a placeholder."""
    matches = [(len(one), ESCAPE.match(one + text)) for one in _OPEN_ESCAPES]
    counts = {found.end() - begun for begun, found in matches if found}
    return sorted(count for count in counts if 0 < count < len(text))


def _written(
    text: bytes,
    instead: bytes,
    reading: int,
    start: int = 0,
    last: int = 0,
) -> Form:
    """What is before `start`, and the `last` bytes, are swallowed by an escape."""
    swallowed, until = text[:start].lower(), len(text) - last
    found = partial(
        _folded,
        text[start:until],
        reading=reading,
        swallowed=swallowed,
        joined=_ways_twice(text[until:]) if last else (),
    )
    if len(text) != len(instead):
        return found(instead)

    def put(units: Sequence[Unit]) -> bytes:
        pairs = zip(units, instead[start:until], strict=True)
        middle = b"".join(like(unit.piece, byte) for unit, byte in pairs)
        return instead[:start] + middle + instead[until:]

    return found(put)


def _whole(text: bytes, instead: bytes) -> Form:
    return _folded(text, instead, reading=0)


def _folded(text: bytes, put: Put, **more: Any) -> Form:
    needle, view = text.lower(), "lower"
    if b" " in needle or b"+" in needle:  # a host may take one for the other
        needle, view = needle.replace(b"+", b" "), "spaced"
    return Form(needle, put, view=view, **more)


def _base64(text: bytes, instead: bytes, before: int, reading: int) -> Form:
    """As it is when so many bytes of something else stand before it in a group of three. The
    letters at its ends also have bits of what is around it, which are kept."""
    first_bit, end_bit = 8 * before, 8 * (before + len(text))
    own = slice(first_bit // 6, -(-end_bit // 6))
    letters, others = (base64.b64encode(bytes(before) + one)[own] for one in (text, instead))
    foreign = [0] * len(letters)
    if lead := first_bit % 6:
        foreign[0] = (63 << (6 - lead)) & 63
    if trail := end_bit % 6:
        foreign[-1] = 63 >> trail

    def put(units: Sequence[Unit]) -> bytes:
        url_safe = any(unit.piece in (b"-", b"_") for unit in units)
        done = []
        for unit, letter, kept in zip(units, others, foreign, strict=True):
            if unit is not NONE:
                if kept:
                    letter = BASE64[_VALUE[letter] & ~kept | _sextet(unit.piece) & kept]
                if url_safe:
                    letter = _URL_SAFE[letter]
                # As long as before: most decoders pass over spaces.
                done.append(unit.gap + like(unit.piece, letter).ljust(len(unit.piece)))
        return b"".join(done)

    return Form(
        letters[bool(lead) : len(letters) - bool(trail)],
        put,
        view="letters",
        reading=reading,
        lead=bool(lead),
        trail=bool(trail),
    )


def _sextet(piece: bytes) -> int:
    (letter,) = Reading(undone(undone(piece))).seen("letters")
    return _VALUE[letter]
