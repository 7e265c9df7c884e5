"""Finding forms of a text in a stream, and putting something else in their place.

A stream may come in any pieces, the outcome is the same. The work for each byte is bounded,
whatever the text: a few of its bytes are searched for, in a time that depends on the length of the
data alone (`steady`), and where they are found the whole is compared at once: whoever chooses the
data would hear a walk. For the same reason what waits for more data says nothing about the text.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import cached_property
from heapq import heappop, heappush
from typing import NamedTuple

from belljar.egress import steady
from belljar.egress.escapes import ESCAPE, LONGEST_ESCAPE, Reading, Spans
from belljar.egress.surroundings import AFTER_BYTES, SEEN_BYTES

READINGS = 3
"""The data as it is, with its escapes undone, and with the escapes undone that are in that."""
BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_ANCHOR = steady.LONGEST
"""Bytes of a form that are searched for; the whole is compared where they are. Whoever chooses the
data can hear whether they occur: they are too many to be guessed, eight characters at least."""
_MOST_ANCHORS = 24
_LEAST_DIFFERENT = 4
_SMALL_WINDOW = 1024
_OVERLAPPING = b"0"
"""In place of each further byte of a find that begins within another: good text, hexadecimal and
base64. A letter for a letter would be slow where many overlap."""
_MOST_INDENTED = 16
_LETTER_ENDS = (
    rb"[A-Za-z0-9+/_;-]",  # also of an entity
    rb"\\u\{[2-7][0-9A-Fa-f]\}",
    rb"\\u\{00[2-7][0-9A-Fa-f]\}",
)
_LETTER_FOLLOWS = rb"[ \t]{0,%d}(?:[A-Za-z0-9+/_%%\\&-]|\Z)" % _MOST_INDENTED


def _not_after_letter(line_break: bytes) -> bytes:
    return b"".join(rb"(?<!%b%b)" % (end, line_break) for end in _LETTER_ENDS)


_APART = re.compile(
    # One set of first bytes, as in escapes.ESCAPE.
    rb"[^\t\x20-\x7e\0](?:(?<![\r\n])|(?<=\r)(?!\n|\Z)(?:%b|(?!%b))"
    rb"|(?<=\n)(?:(?<!\r\n)%b|(?<=\r\n)%b|(?!%b)))"
    % (
        _not_after_letter(rb"\r"),
        _LETTER_FOLLOWS,
        _not_after_letter(rb"\n"),
        _not_after_letter(rb"\r\n"),
        _LETTER_FOLLOWS,
    )
)
"""What no spelling of any text goes across: line breaks are between letters of base64 only,
of which each may be escaped."""


class Unit(NamedTuple):
    """What one byte of a reading was read from."""

    gap: bytes
    """In front of it, not read."""
    piece: bytes


NONE = Unit(b"", b"")
Put = Callable[[Sequence[Unit]], bytes] | bytes
Check = Callable[[bytes, bytes], None]
"""Is told what stands before a find, and what follows: as much of both as it needs."""


class Form:
    """One spelling in one reading, and what to write instead of what it was read from."""

    def __init__(
        self,
        needle: bytes,
        put: Put,
        *,
        view: str = "text",
        reading: int = 0,
        lead: bool = False,
        trail: bool = False,
        swallowed: bytes = b"",
        joined: Sequence[bytes] = (),
    ) -> None:
        """`view`: as in Reading.seen. `lead` and `trail`: a letter at each end that has bits
        of something else in it, too. `swallowed`: what must stand in the data before the find,
        where it is read as the end of an escape. `joined`: how the data may write, behind the
        find, what is read there as the beginning of an escape."""
        self.needle = needle
        self.put = put
        self.view = view
        self.reading = reading
        self.lead = lead
        self.trail = trail
        self.swallowed = swallowed
        self.joined = joined
        self.longest_bytes = len(needle)
        self.check: Check | None = None
        """Asked before a find is replaced; in something that is whole."""
        self._offset = _anchor(needle)
        self._anchor = needle[self._offset : self._offset + _ANCHOR]
        self.sought = steady.Needle(self._anchor)
        if len(set(self._anchor)) < _LEAST_DIFFERENT:  # data like it would match at every byte
            self._offset, self._anchor = 0, needle

    @property
    def found_by(self) -> tuple[object, ...]:
        ends = self.lead, self.trail, self.swallowed, tuple(self.joined)
        return self.needle, self.view, self.reading, *ends

    def refusing(self, refuse: Callable[[], bytes]) -> Form:
        """The same, but a find is the end: `refuse` raises."""
        made = copy(self)
        made.put = lambda _: refuse()
        return made

    def find(self, text: bytes, at: int) -> int:
        while (found := text.find(self._anchor, at + self._offset)) >= 0:
            at = found - self._offset
            if text.startswith(self.needle, at):
                return at
            at += 1
        return -1


class _Hit(NamedTuple):
    """In the order in which they count: of those that begin at one place the longest, then the
    first."""

    start: int
    negative_end: int
    order: int
    core: int
    """Where in its reading the needle is; a letter of `lead` is in front of that."""
    units: range


class _Scan:
    """One piece of data, all of whose readings are searched."""

    def __init__(self, spellings: Spellings, data: bytes) -> None:
        self._forms = spellings.forms
        self._groups = spellings.groups
        self._data = data
        self._window_bytes = spellings.window_bytes
        self._texts: dict[tuple[int, str], bytes] = {}
        self._readings = [Reading(data)]
        while len(self._readings) < READINGS:
            further = self._readings[-1].undone
            if further is self._readings[-1]:
                break
            self._readings.append(further)

    def first_hits(self) -> Iterator[_Hit]:
        for place, anchors in self._groups.items():
            reading, view = place
            if reading < len(self._readings):
                text = self._texts[place] = self._readings[reading].seen(view)
                for order, sought in anchors:
                    # Of nearly all data this is all that is asked.
                    if sought.occurs(text) and (hit := self.hit(order)):
                        yield hit

    def hit(self, order: int) -> _Hit | None:
        """The first one of a form."""
        form = self._forms[order]
        text = self._texts[form.reading, form.view]
        return self._next(order, text, form.find(text, 0), 0)

    def further(self, hit: _Hit, at: int) -> _Hit | None:
        """The next one of the same form of which something is behind `at`, in the data. Of those
        that overlap it the last: all between are within these two."""
        form = self._forms[hit.order]
        text, length = self._texts[form.reading, form.view], len(form.needle)
        behind = hit.core + 1
        if not (form.trail or form.joined):  # which are behind the needle
            behind = max(behind, bisect_right(self._spans(form)[1], at) - length + 1)
        until = hit.core + 2 * length - 1
        while (found := text.rfind(form.needle, behind, until)) >= 0:
            if other := self._judged(hit.order, text, self._spans(form), found, at):
                return other
            until = found + length - 1
        index = form.find(text, max(behind, hit.core + length))
        return self._next(hit.order, text, index, at)

    def _next(self, order: int, text: bytes, index: int, at: int) -> _Hit | None:
        form = self._forms[order]
        while index >= 0:  # positions are dear, and finds are rare
            if hit := self._judged(order, text, self._spans(form), index, at):
                return hit
            index = form.find(text, index + 1)
        return None

    def units(self, hit: _Hit) -> list[Unit]:
        """One for each letter of the form; where one at an end is missing, an empty one."""
        form = self._forms[hit.order]
        starts, ends = self._spans(form)
        data, before = self._data, starts[hit.units.start]
        units = [NONE] if form.lead and hit.units.start == hit.core else []
        for index in hit.units:
            units.append(Unit(data[before : starts[index]], data[starts[index] : ends[index]]))
            before = ends[index]
        if form.trail and hit.units.stop == hit.core + len(form.needle):
            units.append(NONE)
        return units

    def _judged(self, order: int, text: bytes, spans: Spans, index: int, at: int) -> _Hit | None:
        form, (starts, ends) = self._forms[order], spans
        first, last = index, index + len(form.needle) - 1
        if form.lead and index and text[index - 1] in BASE64 and starts[index - 1] >= at:
            first = index - 1
        start, end = starts[first], ends[last]
        if form.swallowed:
            before, start = start, start - len(form.swallowed)
            if start < 0 or self._data[start:before].lower() != form.swallowed:
                return None
        further = last + 1
        if form.joined:
            if further == len(text) or ends[further] - starts[further] == 1:
                return None  # no escape, so nothing is missing there
            end += self._joined_bytes(form, end)
        if not self._is_one(start, end):
            return None
        has_trail = form.trail and further < len(text) and text[further] in BASE64
        if has_trail and self._is_one(start, ends[further]):
            last, end = further, ends[further]
        return _Hit(start, -end, order, index, range(first, last + 1))

    def _joined_bytes(self, form: Form, end: int) -> int:
        most = max(map(len, form.joined))
        behind = self._data[end : end + most].lower()
        return max((len(one) for one in form.joined if behind.startswith(one)), default=0)

    def _is_one(self, start: int, end: int) -> bool:
        """Whether a stream would never have been cut in it."""
        if end - start > self._window_bytes:
            return False
        return bisect_right(self._apart, start) == bisect_left(self._apart, end)

    @cached_property
    def _apart(self) -> list[int]:
        return [apart.end() for apart in _APART.finditer(self._data)]

    def _spans(self, form: Form) -> Spans:
        reading = self._readings[form.reading]
        return reading.letter_spans if form.view == "letters" else reading.spans


class Advance(NamedTuple):
    done: bytes
    """Can be passed on."""
    waiting: bytes
    covered: int
    """So many bytes of what waits were passed on already, as something else."""
    finds: int


class Spellings:
    """Several forms at once."""

    def __init__(self, forms: Iterable[Form]) -> None:
        # Of those that are found at the same places the first counts: the others are only work.
        different: dict[tuple[object, ...], Form] = {}
        for form in forms:
            different.setdefault(form.found_by, form)
        self.forms = tuple(different.values())
        self.groups: dict[tuple[int, str], list[tuple[int, steady.Needle]]] = {}
        """Where to look, and for what of which form."""
        for order, form in enumerate(self.forms):
            self.groups.setdefault((form.reading, form.view), []).append((order, form.sought))
        self.window_bytes = max((form.longest_bytes for form in self.forms), default=0)
        """No spelling is longer."""
        self._shortest = min((len(form.needle) for form in self.forms), default=0)

    def replace(self, data: bytes) -> bytes:
        """In something that is whole."""
        return self.advance(data, until=len(data)).done

    def first(self, data: bytes) -> tuple[Form, int] | None:
        """Which is found first, and where."""
        if not self._is_possible(data):
            return None
        hit = min(_Scan(self, data).first_hits(), default=None)
        return (self.forms[hit.order], hit.start) if hit else None

    def occur(self, data: bytes) -> bool:
        return self._is_possible(data) and any(_Scan(self, data).first_hits())

    def advance(self, data: bytes, *, until: int, covered: int = 0) -> Advance:
        """What begins at `until` or later must wait. In place of the first `covered` bytes
        something was passed on already; others may begin in them."""
        at, finds = covered, 0
        done: list[bytes] = []
        if self._is_possible(data):
            scan = _Scan(self, data)
            hits = sorted(scan.first_hits())
            while hits and hits[0].start < until:
                hit = heappop(hits)
                finds += 1
                if (end := -hit.negative_end) > at:
                    if hit.start < at:
                        done.append(_OVERLAPPING * (end - at))
                    else:
                        form = self.forms[hit.order]
                        if form.check:
                            near = data[max(0, hit.start - SEEN_BYTES) : hit.start]
                            form.check(near, data[end : end + AFTER_BYTES])
                        put = form.put
                        written = put if isinstance(put, bytes) else put(scan.units(hit))
                        done += [data[at : hit.start], written]
                    at = end
                if further := scan.further(hit, at):
                    heappush(hits, further)
        done.append(data[at:until])
        return Advance(b"".join(done), data[until:], max(0, at - until), finds)

    def _is_possible(self, data: bytes) -> bool:
        return bool(self.forms) and len(data) >= self._shortest


class Stream:
    """A replacement in something that comes in pieces."""

    def __init__(self, spellings: Spellings) -> None:
        self._spellings = spellings
        self._waiting = b""
        self._covered = 0
        self.finds = 0
        """In what was fed last."""

    def feed(self, data: bytes) -> bytes:
        if not self._spellings.window_bytes:
            return data
        known, data = len(self._waiting), self._waiting + data
        self._waiting, self.finds = data, 0
        until = self._decided(data, known)
        return self._advance(until) if until else b""

    def finish(self) -> bytes:
        return self._advance(len(self._waiting))

    def _advance(self, until: int) -> bytes:
        data = self._waiting
        done, self._waiting, self._covered, self.finds = self._spellings.advance(
            data, until=until, covered=self._covered
        )
        return done

    def _decided(self, data: bytes, known: int) -> int:
        """Until where no spelling of any text as long as these goes on behind the data. Of it
        `known` bytes were looked at before."""
        window = self._spellings.window_bytes
        cut = 0
        for apart in _APART.finditer(data, max(0, known - _MOST_INDENTED - 2, len(data) - window)):
            cut = apart.end()
        # A long window is not gone through again for each byte that comes.
        quantum = 1 if window <= _SMALL_WINDOW else window // 2
        if len(data) - window < cut + quantum:
            return cut
        until = len(data) - window
        near = max(0, until - LONGEST_ESCAPE), until + LONGEST_ESCAPE
        for escape in ESCAPE.finditer(data, *near):
            if escape.start() < until < escape.end():
                return escape.start()
        return until


def _anchor(needle: bytes) -> int:
    """Where the few bytes begin that are searched for: the more of them differ, the fewer places
    look like it; of equally good ones the last, since keys of one kind begin alike."""
    last = max(0, len(needle) - _ANCHOR)
    near = range(max(0, last - _MOST_ANCHORS), last + 1)
    return max(near, key=lambda at: (len(set(needle[at : at + _ANCHOR])), at))
