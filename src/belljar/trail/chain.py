"""Whether the lines of a trail are those that were written. Pure.

A line's hash covers the line before, so that none can be changed, moved, taken out or put in
without changing every later one. Who can write the database can do even that: only a hash that was
noted down elsewhere shows it (`head`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from belljar.trail.records import GENESIS, canonical, chained, column


class Line(NamedTuple):
    """As it is stored. `body` is what counts; the others are there to be searched by."""

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


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a walk along the chain found. `problem`: the first thing that is not as it was written,
    empty if all is; `at` is the line it is about."""

    lines: int
    first: int
    head: Head | None
    open: frozenset[str]
    """Attempts without an end."""
    problem: str = ""
    at: int | None = None

    @property
    def sound(self) -> bool:
        return not self.problem


class _Broken(Exception):
    pass


def verify(
    lines: Iterable[Line],
    *,
    head: str = "",
    anchor: tuple[int, str] | None = None,
    allow_pruned: bool = False,
) -> Verdict:
    """Walks along the lines, oldest first. `head`: a hash, or seq:hash, that was noted down and
    must be met on the way. `anchor`: where the newest pruning cut, if there was one: the number of
    the first line that was left, and the hash before it. `allow_pruned`: a head that is exactly
    where pruning cut will do, although anybody who knows it can invent what follows it."""
    walk = _Walk(anchor, allow_pruned)
    try:
        wanted = _wanted(head)
        for item in lines:
            walk.step(item, wanted)
        walk.arrive(wanted)
    except _Broken as broken:
        return walk.verdict(problem=str(broken))
    return walk.verdict()


class _Walk:
    def __init__(self, anchor: tuple[int, str] | None, allow_pruned: bool) -> None:
        self._anchor = anchor
        self._allow_pruned = allow_pruned
        self._anchored = anchor is None
        self._first = 0
        self._count = 0
        self._last: Head | None = None
        self._at: int | None = None
        self._open: dict[str, int] = {}
        self._met = False

    def step(self, item: Line, wanted: tuple[int | None, str] | None) -> None:
        self._at = item.seq
        previous = self._before(item)
        try:
            body = item.body.encode("ascii")
            if len(item.hash) != 64 or chained(previous, item.body) != item.hash:
                raise _Broken(f"line {item.seq} is not what was written, or not what stood here")
            content = json.loads(body)
            if not isinstance(content, dict) or content.get("seq") != item.seq:
                raise _Broken(f"line {item.seq} says that it is another one")
        except (ValueError, RecursionError):
            raise _Broken(f"line {item.seq} is not a line") from None
        if _searched(content) != tuple(item[1:6]):
            raise _Broken(f"line {item.seq} is found by other words than it says")
        self._follow(item, content)
        self._count += 1
        self._last = Head(item.seq, item.hash)
        if wanted and wanted[1] == item.hash and wanted[0] in (None, item.seq):
            self._met = True

    def _before(self, item: Line) -> str:
        if self._last:
            if item.seq != self._last.seq + 1:
                raise _Broken(
                    f"line {self._last.seq + 1} is missing, or {item.seq} is out of place"
                )
            return self._last.hash
        self._first = item.seq
        cut, hash_ = self._anchor or (1, GENESIS)
        if item.seq != cut:
            raise _Broken(
                f"the first line is {item.seq}, but "
                + (f"pruning left {cut} as the first" if self._anchor else "nothing was pruned")
            )
        return hash_

    def _follow(self, item: Line, content: dict[str, Any]) -> None:
        """Does it make sense after what stands before?"""
        if item.seq == 1 and item.kind != "began":
            raise _Broken("the first line is not the beginning of a trail")
        if item.kind == "attempt":
            self._open[item.id] = item.seq
        elif item.kind in ("end", "lost"):
            began = content.get("attempt")
            known = self._open.pop(item.id, None)
            if known != began and not (known is None and _before(began, self._first)):
                raise _Broken(f"line {item.seq} ends what was not under way")
        elif item.kind == "egress":
            known, began = self._open.get(item.id), content.get("attempt")
            if known != began and not (known is None and _before(began, self._first)):
                raise _Broken(f"line {item.seq} tells of what was not under way")
        elif item.kind == "pruned" and (content.get("first"), content.get("after")) == self._anchor:
            self._anchored = True

    def arrive(self, wanted: tuple[int | None, str] | None) -> None:
        self._at = None
        if not self._count:
            raise _Broken("there is no line")
        if not self._anchored:
            raise _Broken("nothing in the trail says that its beginning was pruned")
        if wanted is None or self._met:
            return
        if self._anchor and wanted in (
            (self._anchor[0] - 1, self._anchor[1]),
            (None, self._anchor[1]),
        ):
            if self._allow_pruned:
                return
            raise _Broken("pruned up to the given head: nothing before or after it is proved")
        if wanted[0] is not None and wanted[0] < self._first:
            raise _Broken(f"line {wanted[0]}, the head that was given, has been pruned since")
        raise _Broken(
            "the head that was given is not in the trail: lines were changed or taken away"
        )

    def verdict(self, *, problem: str = "") -> Verdict:
        return Verdict(
            lines=self._count,
            first=self._first,
            head=self._last,
            open=frozenset(self._open),
            problem=problem,
            at=self._at if problem else None,
        )


def _before(began: object, first: int) -> bool:
    return type(began) is int and began < first


def _wanted(head: str) -> tuple[int | None, str] | None:
    if not head:
        return None
    seq, colon, hash_ = head.strip().lower().rpartition(":")
    digits = len(hash_) == 64 and set(hash_) <= set("0123456789abcdef")
    if not digits or (colon and not (seq.isascii() and seq.isdecimal() and len(seq) < 20)):
        raise _Broken("the head that was given is none: it is a hash, or a line's number:hash")
    return (int(seq) if colon else None), hash_


# -- exports ---------------------------------------------------------------------------------------


def exported(item: Line) -> str:
    """One line of JSON, in which the body stands as it was hashed."""
    return f'{{"hash":"{item.hash}","line":{item.body}}}'


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
