"""Finding a text in a stream in any of its usual spellings, and putting another in its place.

The spellings of a text: as it is in either case, each character also as %41, %2541, \\u0041, \\x41
or, unless it is a plain one, as an HTML entity; in hexadecimal; in base64, wherever in the encoded
bytes it begins, also with line breaks; in UTF-16. A stream may come in any pieces, the outcome is
the same, and no more is held back than what may be the beginning of a find; or, where that would
tell what is looked for, of any.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

Element = tuple[bytes, ...]
"""The ways to write one position, the longest first."""

_HEAD = 8
"""Positions that a regular expression looks for; the rest is compared after."""
_FARTHEST = 32
_PLAIN = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
_ENTITIES = {
    b"&": b"&amp;",
    b"<": b"&lt;",
    b">": b"&gt;",
    b'"': b"&quot;",
    b"'": b"&apos;",
}
_NAMED = {entity[1:-1]: character for character, entity in _ENTITIES.items()}
_ESCAPE = re.compile(
    rb"(?:%%(?:25){0,2}|\\{1,2}(?:u00|x))([0-9a-f]{2})|&#x([0-9a-f]{2});|&#([0-9]{1,3});|"
    rb"&(%b);|\\{1,3}([^\\])" % b"|".join(_NAMED)
)
"""Any of a character's ways below, in lower case."""
_BEFORE_DIGITS = (b"%", b"%25", b"%2525", b"\\u00", b"\\\\u00", b"\\x", b"\\\\x")
_ESCAPED = {b"/": b"\\/", b"'": b"\\'", b'"': b'\\"', b"\\": b"\\\\", b" ": b"+"}
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_STANDARD = bytes.maketrans(b"-_", b"+/")
_NOTHING = b"(?!)"  # matches nowhere
_BREAKS = (b"\n", b"\r\n", b"\\n")
_LETTER = rb"[A-Za-z0-9+/_-]"
_APART = re.compile(
    rb"[^\x20-\x7e\0\r\n]|(?<!%b)(?<!\r)\n|(?<!%b)\r\n|\n(?!%b|\Z)|\r(?!\n|\Z)"
    % (_LETTER, _LETTER, _LETTER)
)
"""What no spelling of any text goes across: line breaks are between letters of base64 only."""


class Form:
    """One spelling: its positions, and what to write for what was found at each of them."""

    def __init__(
        self,
        elements: Sequence[Element],
        put: Callable[[Sequence[bytes]], bytes],
        *,
        differs: Callable[[bytes], bool] | None = None,
    ) -> None:
        """`differs` says of bytes, as many as a form can have, that they do not begin with it, and
        takes as long for nearly as for not at all: whoever chooses the data would hear a walk."""
        self.elements = tuple(elements)
        self.put = put
        self.differs = differs
        self.longest_bytes = sum(len(one[0]) for one in self.elements)

    def refusing(self, refuse: Callable[[], bytes]) -> Form:
        """The same, but a find is the end: `refuse` raises."""
        made = Form(self.elements, lambda _: refuse())
        made.anchor = self.anchor
        return made

    @cached_property
    def anchor(self) -> Anchor:
        return Anchor(self.elements)


class Anchor:
    """Where a form may begin, found fast: by a few of its positions, the first of them with one
    way to write it if possible, for which regular expressions are many times faster."""

    def __init__(self, elements: Sequence[Element]) -> None:
        simple = [tuple(one for one in element if len(one) == 1) for element in elements]
        several = {one for element in elements for one in element if len(one) > 1}
        broken = bool(several) and all(one.startswith(_BREAKS) for one in several)
        # In base64 a line break may be between the first two characters, and between any later.
        skippable = 2 if broken else min(_FARTHEST, max(1, len(simple) - _HEAD))
        skipped = next((i for i in range(skippable) if len(simple[i]) == 1), 0)
        self._backwards = range(-3 if broken and skipped else -skipped, 1 - skipped)
        after = elements if broken else simple
        self._head = _compiled([simple[skipped], *after[skipped + 1 : skipped + _HEAD]])
        self._first_few = elements[:_HEAD]
        self._escapes = [] if broken else sorted(several)
        longest = sum(len(element[0]) for element in elements[:_HEAD])
        self.reach_bytes = max(skipped + _HEAD, longest)
        """So much of a form makes sure that it is found."""

    def starts(self, data: bytes) -> list[int]:
        found = []
        match = self._head.search(data)
        while match:
            found += [match.start() + back for back in self._backwards]
            # Overlapping ones too: `aaab` begins at the second character of `aaaab`.
            match = self._head.search(data, match.start() + 1)
        # Few texts have any character of the form escaped in them; only those take longer.
        if any(first in data and escape.search(data) for first, escape in self._escaping):
            match = self._escaped.search(data)
            while match:
                found.append(match.start())
                match = self._escaped.search(data, match.start() + 1)
        return found

    @cached_property
    def _escaping(self) -> list[tuple[bytes, re.Pattern[bytes]]]:
        firsts = sorted({one[:1] for one in self._escapes})
        return [
            (first, _compiled([(first,), _element(o[1:] for o in self._escapes if o[:1] == first)]))
            for first in firsts
        ]

    @cached_property
    def _escaped(self) -> re.Pattern[bytes]:
        return _compiled(self._first_few)


class Spellings:
    """Several forms at once. Where more than one begins, the longest is taken, else the first."""

    def __init__(self, forms: Iterable[Form]) -> None:
        self._forms = tuple(forms)
        self._by_first: dict[int, list[Form]] = {}
        for form in self._forms:
            for first in {one[0] for one in form.elements[0]}:
                self._by_first.setdefault(first, []).append(form)
        beginnings = b"|".join(_beginning(form.elements) for form in self._forms)
        self._beginnings = re.compile(b"(?=" + beginnings + b")", re.DOTALL)
        self._reach_bytes = max((form.anchor.reach_bytes for form in self._forms), default=0)
        self._longest_bytes = max((form.longest_bytes for form in self._forms), default=0)

    def replace(self, data: bytes) -> bytes:
        """In something that is whole."""
        return self.advance(data, last=True)[0]

    def occur(self, data: bytes) -> bool:
        starts = self._starts(data, last=True)
        return any(self._judge(data, at, last=True, whole=True)[0] for at in starts)

    def advance(self, data: bytes, *, last: bool, until: int | None = None) -> tuple[bytes, bytes]:
        """What can be passed on, and what must wait for more: nothing if this is the `last`. What
        begins at `until` or later waits in any case."""
        done: list[bytes] = []
        evenly = until is not None
        at, until = 0, len(data) if until is None else until
        for start in self._starts(data, last=last):
            if start >= until:
                break
            if start < at:
                continue
            end, best = self._judge(data, start, last=last, whole=last or evenly)
            if best is not None:
                form, pieces = best
                done += [data[at:start], form.put(pieces)]
                at = end
            elif end:
                done.append(data[at:start])
                return b"".join(done), data[start:]
        until = max(at, until)
        done.append(data[at:until])
        return b"".join(done), data[until:]

    def undecided(self, data: bytes) -> int:
        """From where on a spelling of any text as long as these could go on behind the data."""
        first = max(0, len(data) - self._longest_bytes)
        for apart in _APART.finditer(data, first):
            first = apart.end()
        return first

    def _starts(self, data: bytes, *, last: bool) -> list[int]:
        """Where one may begin, in ascending order."""
        found = {start for form in self._forms for start in form.anchor.starts(data) if start >= 0}
        if not last and self._forms:
            # Near the end there may be too little of one to be found by.
            tail = max(0, len(data) - self._reach_bytes)
            found.update(match.start() for match in self._beginnings.finditer(data, tail))
        return sorted(found)

    def _judge(
        self, data: bytes, start: int, *, last: bool, whole: bool
    ) -> tuple[int, tuple[Form, list[bytes]] | None]:
        """Where it ends, and what it is; (len(data), None): that is not known yet; (0, None).
        `whole`: that will be known, for what begins there does not go on behind the data."""
        best: tuple[int, tuple[Form, list[bytes]] | None] = 0, None
        for form in self._by_first.get(data[start], ()):
            window = data[start : start + form.longest_bytes]
            if whole and form.differs and form.differs(window):
                continue
            end, pieces = _walk(form, data, start, last=last)
            if end and pieces is None:
                return end, None
            if pieces is not None and end > best[0]:
                best = end, (form, pieces)
        return best


class Stream:
    """A replacement in something that comes in pieces. `evenly`: what waits for the next piece says
    nothing about the text that is looked for; else it is only what may be its beginning, and
    whoever can choose the data finds the text out, character by character."""

    def __init__(self, spellings: Spellings, *, evenly: bool = False) -> None:
        self._spellings = spellings
        self._evenly = evenly
        self._waiting = b""

    def feed(self, data: bytes) -> bytes:
        data = self._waiting + data
        until = self._spellings.undecided(data) if self._evenly else None
        done, self._waiting = self._spellings.advance(data, last=False, until=until)
        return done

    def finish(self) -> bytes:
        done, self._waiting = self._spellings.advance(self._waiting, last=True)
        return done


def resizes(text: bytes) -> bool:
    """Whether a find can be replaced by something of another length."""
    return any(byte not in _PLAIN for byte in text)


def spellings(text: bytes, instead: bytes) -> list[Form]:
    """Every usual way to write `text`; in its place `instead`, as long as it, in the same way."""
    assert len(text) == len(instead)
    forms = [exact(text, instead), _mixed(text, instead), _hexadecimal(text, instead)]
    forms += [_base64(text, instead, before) for before in range(3)]
    # Both byte orders: what begins with a byte of zero is the same from the second on.
    forms.append(exact(_wide(text), _wide(instead)))
    return forms


def exact(text: bytes, instead: bytes) -> Form:
    elements = [(bytes([byte]),) for byte in text]
    return Form(elements, lambda _: instead, differs=lambda window: window != text)


def _walk(form: Form, data: bytes, at: int, *, last: bool) -> tuple[int, list[bytes] | None]:
    """As `_judge`, of one form: where it ends, with what stands at each position."""
    pieces = []
    for element in form.elements:
        if not last and len(data) - at < len(element[0]):
            rest = data[at:]
            if any(len(one) > len(rest) and one.startswith(rest) for one in element):
                return len(data), None
        for one in element:
            if data.startswith(one, at):
                pieces.append(one)
                at += len(one)
                break
        else:
            return 0, None
    return at, pieces


def _beginning(elements: Sequence[Element]) -> bytes:
    """The first two positions, or what the end of the data leaves of them."""
    first, second = elements[0], (*elements[1:2], (b"",))[0]
    cut_first, cut_second = (
        b"(?:%s)\\Z" % _alternatives(one[:n] for one in element for n in range(least, len(one)))
        for element, least in ((first, 1), (second, 0))
    )
    return b"%s(?:%s|%s)|%s" % (_pattern(first), _pattern(second), cut_second, cut_first)


def _alternatives(texts: Iterable[bytes]) -> bytes:
    known = _element(texts)
    return b"|".join(re.escape(one) for one in known) if known else _NOTHING


def _compiled(elements: Iterable[Element]) -> re.Pattern[bytes]:
    return re.compile(b"".join(_pattern(element) for element in elements), re.DOTALL)


def _pattern(element: Element) -> bytes:
    if not element:
        return b"(?!)"  # a lease without secrets: never
    if len(element) == 1:
        return re.escape(element[0])
    if all(len(one) == 1 for one in element):
        return b"[" + b"".join(re.escape(one) for one in element) + b"]"
    return b"(?:" + _alternatives(element) + b")"


def _element(ways: Iterable[bytes]) -> Element:
    return tuple(sorted(set(ways), key=lambda one: (-len(one), one)))


def _mixed(text: bytes, instead: bytes) -> Form:
    def put(pieces: Sequence[bytes]) -> bytes:
        return b"".join(_like(piece, byte) for piece, byte in zip(pieces, instead, strict=True))

    folded = text.lower()

    def differs(window: bytes) -> bool:
        return _ESCAPE.sub(_unescaped, window.lower())[: len(text)] != folded

    known = {byte: _element(_ways(bytes([byte]))) for byte in set(text)}
    # A text with these in it can be read in several ways; it is walked along.
    ambiguous = any(byte in text for byte in b"%\\& ")
    return Form([known[byte] for byte in text], put, differs=None if ambiguous else differs)


def _unescaped(escape: re.Match[bytes]) -> bytes:
    number, hexadecimal, decimal, name, character = escape.groups()
    if number or hexadecimal:
        return bytes([int(number or hexadecimal, 16)]).lower()
    if decimal:
        return bytes([int(decimal) & 255]).lower()
    return _NAMED[name] if name else character


def _ways(character: bytes) -> list[bytes]:
    ways = [character, character.lower(), character.upper()]
    code = character.hex().encode()
    for digits in (code, code.upper()):
        ways += [before + digits for before in _BEFORE_DIGITS]
    if character not in _PLAIN:
        number = b"%d" % ord(character)
        ways += [b"&#" + number + b";", b"&#x" + code + b";", b"&#x" + code.upper() + b";"]
    ways += [table[character] for table in (_ENTITIES, _ESCAPED) if character in table]
    if (once := _ESCAPED.get(character, b"")).startswith(b"\\"):  # JSON within JSON
        ways += [b"\\" + once, b"\\\\" + once]
    return ways


def _like(piece: bytes, byte: int) -> bytes:
    """A plain character, written as `piece` is."""
    return piece[:-2] + b"%02X" % byte if piece[:-2] in _BEFORE_DIGITS else bytes([byte])


def _hexadecimal(text: bytes, instead: bytes) -> Form:
    digits = text.hex().encode()
    elements = tuple(
        _element((digits[i : i + 1], digits[i : i + 1].upper())) for i in range(len(digits))
    )
    return Form(
        elements,
        lambda _: instead.hex().encode(),
        differs=lambda window: window.lower() != digits,
    )


def _wide(text: bytes) -> bytes:
    # By hand: the gateway opens no file later on, not even for a codec.
    return b"\0".join(bytes([byte]) for byte in text)


def _base64(text: bytes, instead: bytes, before: int) -> Form:
    """As it is when so many bytes of something else stand before it in a group of three. The
    characters at its ends also have bits of what is around it, which are kept."""
    first_bit, end_bit = 8 * before, 8 * (before + len(text))
    shifted = int.from_bytes(text, "big") << (-end_bit % 6)
    other = int.from_bytes(instead, "big") << (-end_bit % 6)
    start, end = first_bit // 6, -(-end_bit // 6)
    elements: list[Element] = []
    marks: list[tuple[int, int]] = []
    for index in range(start, end):
        shift = 6 * (end - 1 - index)
        foreign = 0
        if index == start:
            foreign |= (0x3F << (6 - first_bit % 6)) & 0x3F if first_bit % 6 else 0
        if index == end - 1:
            foreign |= (1 << (-end_bit % 6)) - 1
        bits = (shifted >> shift) & 0x3F & ~foreign
        marks.append((foreign, (other >> shift) & 0x3F & ~foreign))
        values = range(64) if foreign else [bits]
        letters = [_BASE64[v : v + 1] for v in values if v & ~foreign & 0x3F == bits]
        letters += [letter.translate(_URL_SAFE) for letter in letters]
        if index > start:
            letters += [line + letter for line in _BREAKS for letter in letters]
        elements.append(_element(letters))

    def put(pieces: Sequence[bytes]) -> bytes:
        done = []
        for piece, (foreign, bits) in zip(pieces, marks, strict=True):
            value = _BASE64.index(piece[-1:].translate(_STANDARD)) & foreign | bits
            done.append(piece[:-1] + _BASE64[value : value + 1])
        written = b"".join(done)
        url_safe = any(piece[-1:] in (b"-", b"_") for piece in pieces)
        return written.translate(_URL_SAFE) if url_safe else written

    plain = bytes(_BASE64[(shifted >> 6 * (end - 1 - i)) & 0x3F] for i in range(start, end))
    ends = slice(1 if marks[0][0] else 0, -1 if marks[-1][0] else None)

    def differs(window: bytes) -> bool:
        letters = window.replace(b"\\n", b"").translate(_STANDARD, b"\r\n")
        return letters[: len(plain)][ends] != plain[ends]

    return Form(elements, put, differs=differs)
