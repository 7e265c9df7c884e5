"""Whether the lines of a trail are those that were written. Pure.

A line's hash covers the line before, so that none can be changed, moved, taken out or put in
without changing every later one. Who can write the database can do even that: only a hash that was
noted down elsewhere shows it (`head`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from belljar.trail.records import GENESIS, canonical, chained, column

MOST_PROBLEMS = 100


class Line(NamedTuple):
    """As it is stored. `body` is what counts; the others are there to be searched by.

    Of a damaged database any of them may be anything that a column can hold: bytes, a text that is
    not ASCII, a number that is not whole."""

    seq: int
    kind: str
    id: str
    time: str
    tenant: str
    status: str
    body: str
    hash: str


def line(seq: int, previous: str, content: dict[str, Any]) -> Line:
    """The next line, from what it is to say."""
    content = {**content, "seq": seq}
    body = canonical(content)
    return Line(seq, *_searched(content), body, chained(previous, body))


def _searched(content: dict[str, Any]) -> tuple[str, str, str, str, str]:
    kind, id_, time, tenant, status = (
        str(content.get(name) or "") for name in ("kind", "id", "time", "tenant", "status")
    )
    return kind, id_, time, column(tenant), status


class Head(NamedTuple):
    seq: int
    hash: str

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"


class Problem(NamedTuple):
    at: int | None
    """The line it is about; None: the trail as a whole."""
    what: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a walk along the chain found. It goes on behind a damaged place: each line there is
    checked against the one before it as that is now."""

    lines: int
    """What was written, up to the first problem."""
    first: int
    head: Head | None
    open: frozenset[str]
    """Attempts without an end."""
    problems: tuple[Problem, ...] = ()
    """What is not as it was written, in order; the first MOST_PROBLEMS of them."""
    more: int = 0
    """Problems beyond those."""
    after: int = 0
    """Lines behind the first problem that are what was written."""
    file: tuple[str, ...] = ()
    """What the database finds wrong with its own file: what is searched for goes by its indexes,
    which no line's hash covers."""

    @property
    def sound(self) -> bool:
        return not self.problems and not self.file

    @property
    def problem(self) -> str:
        """The first."""
        return self.problems[0].what if self.problems else ""

    @property
    def at(self) -> int | None:
        return self.problems[0].at if self.problems else None


class _Broken(Exception):
    pass


def verify(
    lines: Iterable[Line],
    *,
    head: str = "",
    anchor: tuple[int, str] | None = None,
    allow_pruned: bool = False,
) -> Verdict:
    """Walks along the lines, oldest first, to the end. `head`: a hash, or seq:hash, that was noted
    down and must be met on the way. `anchor`: where the newest pruning cut, if there was one: the
    number of the first line that was left, and the hash before it. `allow_pruned`: a head that is
    exactly where pruning cut will do, although anybody who knows it can invent what follows it."""
    walk = _Walk(anchor, allow_pruned)
    try:
        walk.wanted = _wanted(head)
    except _Broken as broken:
        walk.note(None, str(broken))
        return walk.verdict()
    for item in lines:
        walk.step(item)
    walk.arrive()
    return walk.verdict()


class _Walk:
    wanted: tuple[int | None, str] | None = None

    def __init__(self, anchor: tuple[int, str] | None, allow_pruned: bool) -> None:
        self._anchor = anchor
        self._allow_pruned = allow_pruned
        self._anchored = anchor is None
        self._first = 0
        self._good = 0
        self._before_problem: int | None = None
        self._last: Head | None = None
        self._open: dict[str, int] = {}
        self._lost: dict[str, int] = {}
        """Attempts that were given up, and their lines."""
        self._unread: list[range] = []
        """Lines that are missing or damaged: what they said is not known."""
        self._met = False
        self._problems: list[Problem] = []
        self._more = 0

    def note(self, at: int | None, what: str) -> None:
        if self._before_problem is None:
            self._before_problem = self._good
        if len(self._problems) < MOST_PROBLEMS:
            self._problems.append(Problem(at, what))
        else:
            self._more += 1

    def step(self, item: Line) -> None:
        if type(item.seq) is not int:
            self.note(None, f"a line has {shown(item.seq)} for its number")
            return
        if self._last and item.seq <= self._last.seq:
            self.note(item.seq, f"line {item.seq} is out of place")
            return
        previous = self._previous(item)
        try:
            content = _read(item, previous)
        except _Broken as broken:
            self.note(item.seq, str(broken))
            self._skip(range(item.seq, item.seq + 1))
            self._last = Head(item.seq, item.hash)
            return
        self._last = Head(item.seq, item.hash)
        if self.wanted and self.wanted[1] == item.hash and self.wanted[0] in (None, item.seq):
            self._met = True
        if wrong := self._follow(item, content):
            self.note(item.seq, wrong)
        else:
            self._good += 1

    def _previous(self, item: Line) -> str | None:
        """The hash before it; None if that cannot be known."""
        if self._last is None:
            self._first = item.seq
            cut, hash_ = self._anchor or (1, GENESIS)
            if item.seq == cut:
                return hash_
            self.note(
                item.seq,
                f"the first line is {item.seq}, but "
                + (f"pruning left {cut} as the first" if self._anchor else "nothing was pruned"),
            )
            return None
        if item.seq == self._last.seq + 1:
            return self._last.hash if is_hash(self._last.hash) else None
        missing = range(self._last.seq + 1, item.seq)
        told = (
            f"lines {missing[0]} to {missing[-1]} are" if missing[1:] else f"line {missing[0]} is"
        )
        self.note(item.seq, f"{told} missing, or {item.seq} is out of place")
        self._skip(missing)
        return None

    def _skip(self, lines: range) -> None:
        if self._unread and self._unread[-1].stop == lines.start:
            lines = range(self._unread.pop().start, lines.stop)
        self._unread.append(lines)

    def _follow(self, item: Line, content: dict[str, Any]) -> str:
        """What makes no sense after what stands before; empty if all does."""
        began = content.get("attempt")
        if item.seq == 1 and item.kind != "began":
            return "the first line is not the beginning of a trail"
        if item.kind == "attempt":
            self._open[item.id] = item.seq
        elif item.kind in ("end", "lost"):
            known = self._open.pop(item.id, None)
            if known != began and not (known is None and self._unknown(began)):
                return f"line {item.seq} ends what was not under way"
            if item.kind == "lost" and type(began) is int:
                self._lost[item.id] = began
        elif item.kind == "egress":
            # A process that was taken for dead, or whose trail could not be written for a while,
            # may live on: what it still tells is no sign of tampering.
            known = self._open.get(item.id, self._lost.get(item.id))
            if known != began and not (known is None and self._unknown(began)):
                return f"line {item.seq} tells of what was not under way"
        elif item.kind == "pruned" and (content.get("first"), content.get("after")) == self._anchor:
            self._anchored = True
        return ""

    def _unknown(self, began: object) -> bool:
        """Whether that line was pruned, is missing or cannot be read."""
        return type(began) is int and (
            began < self._first or any(began in lines for lines in self._unread)
        )

    def arrive(self) -> None:
        if self._last is None:
            self.note(None, "there is no line")
            return
        if not self._anchored:
            self.note(None, "nothing in the trail says that its beginning was pruned")
        wanted = self.wanted
        if wanted is None or self._met:
            return
        if self._anchor and wanted in (
            (self._anchor[0] - 1, self._anchor[1]),
            (None, self._anchor[1]),
        ):
            if not self._allow_pruned:
                self.note(None, "pruned up to the given head: nothing before or after it is proved")
        elif wanted[0] is not None and wanted[0] < self._first:
            self.note(None, f"line {wanted[0]}, the head that was given, has been pruned since")
        else:
            self.note(
                None,
                "the head that was given is not in the trail: lines were changed or taken away",
            )

    def verdict(self) -> Verdict:
        before = self._good if self._before_problem is None else self._before_problem
        return Verdict(
            lines=before,
            first=self._first,
            head=self._last,
            open=frozenset(self._open),
            problems=tuple(self._problems),
            more=self._more,
            after=self._good - before,
        )


def _read(item: Line, previous: str | None) -> dict[str, Any]:
    """What it says. `previous`: None if its place in the chain cannot be checked."""
    if not all(isinstance(value, str) for value in item[1:]):
        raise _Broken(f"line {item.seq} is not a line: it is not text")
    try:
        body = item.body.encode("ascii")
        chained_here = previous is None or chained(previous, item.body) == item.hash
        if not is_hash(item.hash) or not chained_here:
            raise _Broken(f"line {item.seq} is not what was written, or not what stood here")
        content = json.loads(body)
        if not isinstance(content, dict) or content.get("seq") != item.seq:
            raise _Broken(f"line {item.seq} says that it is another one")
    except (ValueError, RecursionError):
        raise _Broken(f"line {item.seq} is not a line") from None
    if _searched(content) != tuple(item[1:6]):
        raise _Broken(f"line {item.seq} is found by other words than it says")
    return content


def is_hash(text: object) -> bool:
    return isinstance(text, str) and len(text) == 64 and set(text) <= set("0123456789abcdef")


def _wanted(head: str) -> tuple[int | None, str] | None:
    if not head:
        return None
    seq, colon, hash_ = head.strip().lower().rpartition(":")
    if not is_hash(hash_) or (colon and not (seq.isascii() and seq.isdecimal() and len(seq) < 20)):
        raise _Broken("the head that was given is none: it is a hash, or a line's number:hash")
    return (int(seq) if colon else None), hash_


# -- exports ---------------------------------------------------------------------------------------


def is_legible(item: Line) -> bool:
    """Whether it can be told as it is stored; not whether that is what was written."""
    try:
        body = item.body
        content = json.loads(body.encode("ascii"))
        return (
            is_hash(item.hash)
            and "\n" not in body
            and isinstance(content, dict)
            and content.get("seq") == item.seq
        )
    except (AttributeError, ValueError, RecursionError):
        return False


def exported(item: Line) -> str:
    """One line of JSON, in which the body stands as it was hashed; one that is not legible has its
    number and what is stored in its place, and the hash of nothing."""
    if is_legible(item):
        return f'{{"hash":"{item.hash}","line":{item.body}}}'
    body: object = item.body
    stored = body if isinstance(body, bytes) else str(body).encode("utf-8", "surrogateescape")
    seq = item.seq if type(item.seq) is int else 0
    told = {"damaged": base64.b64encode(stored).decode(), "seq": seq}
    return f'{{"hash":"{GENESIS}","line":{canonical(told)}}}'


def shown(value: object) -> str:
    """What a damaged column holds, as text."""
    data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
    return data.decode("ascii", "backslashreplace")[:100]


def read_export(rows: Iterable[str]) -> Iterator[Line]:
    """What `exported` wrote; ValueError for anything else."""
    for number, row in enumerate(rows, start=1):
        try:
            told = json.loads(row)
            content, hash_ = told["line"], told["hash"]
            seq = content["seq"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ValueError(f"line {number} of the file is not a line of a trail") from None
        if type(seq) is not int or not isinstance(hash_, str) or not isinstance(content, dict):
            raise ValueError(f"line {number} of the file is not a line of a trail")
        body = row.strip()[len('{"hash":"') + len(hash_) + len('","line":') : -1]
        yield Line(seq, *_searched(content), body, hash_)


def anchor_of(bodies: Iterable[str]) -> tuple[int, str] | None:
    """Where the newest of these `pruned` lines says that the trail begins."""
    found: tuple[int, str] | None = None
    for body in bodies:
        try:
            content = json.loads(body)
            first, after = content["first"], content["after"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if type(first) is int and isinstance(after, str) and len(after) == 64:
            found = max(found or (0, ""), (first, after))
    return found
