"""A trail as those see it who read it, prune it, or have lines written to it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy import exc

from belljar.errors import TrailError
from belljar.settings import Settings
from belljar.trail import chain, records
from belljar.trail import prune as pruning
from belljar.trail.store import WRITE, Store, default_url
from belljar.trail.tables import EGRESS, lines
from belljar.trail.writer import Writer

__all__ = ["Recorded", "Trail", "default_url", "open_writer"]

_AT_ONCE = 500
_FEW = 50
"""Lines that can be large."""


def open_writer(settings: Settings) -> Writer:
    """See `opening`."""
    store = Store(settings.trail, sync=settings.trail_sync)
    try:
        return Writer(store, keep_days=settings.trail_keep_days)
    except exc.SQLAlchemyError as error:
        store.close()
        raise _translated(store, error) from error


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """An attempt, and its end if there is one."""

    attempt: dict[str, Any]
    """Empty if it was pruned."""
    end: dict[str, Any] | None

    @property
    def status(self) -> str:
        return str(self.end.get("status", "")) if self.end else "open"

    def to_dict(self) -> dict[str, Any]:
        return {"status": self.status, "attempt": self.attempt or None, "end": self.end}


class Trail:
    """For reading, beside those who write. Every method blocks, and any thread may call it."""

    def __init__(self, url: str) -> None:
        self._store = Store(url, create=False)
        try:
            self._store.check()
        except exc.SQLAlchemyError as error:
            self._store.close()
            raise _translated(self._store, error) from error

    def __str__(self) -> str:
        return str(self._store)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._store.close()

    def recent(
        self,
        *,
        tenant: str | None = None,
        status: str | None = None,
        since: str = "",
        before_seq: int | None = None,
        limit: int = 50,
        most_bytes: int | None = None,
        after_each: Callable[[], object] = lambda: None,
    ) -> list[Recorded]:
        """The newest attempts first. `status`: "open" for those without an end. `before_seq`: older
        than that line, to go on where an earlier list ended. `most_bytes`: it ends with the line
        that reaches so many. `after_each`: called after each line, for those who must rest."""
        attempts = lines.alias("attempts")
        ends = lines.alias("ends")
        joined = attempts.outerjoin(
            ends, sa.and_(ends.c.id == attempts.c.id, ends.c.kind.in_(("end", "lost")))
        )
        query = (
            sa.select(*_columns(attempts), *_columns(ends, "end_"))
            .select_from(joined)
            .where(attempts.c.kind == "attempt")
            .order_by(attempts.c.seq.desc())
            .limit(limit)
        )
        if tenant is not None:
            query = query.where(attempts.c.tenant == records.column(records.text(tenant) or ""))
        if status == "open":
            query = query.where(ends.c.seq.is_(None))
        elif status is not None:
            query = query.where(ends.c.status == records.column(status))
        if since:
            query = query.where(attempts.c.time >= since)
        if before_seq is not None:
            query = query.where(attempts.c.seq < before_seq)
        with self._reading() as connection:
            found, size = [], 0
            for row in connection.execution_options(yield_per=_FEW).execute(query):
                end = None if row.end_seq is None else _content(row, "end_")
                found.append(Recorded(attempt=_content(row), end=end))
                size += len(row.body) + len(row.end_body or "")
                if most_bytes is not None and size >= most_bytes:
                    break
                after_each()
            return found

    def find(self, id_: str, *, tenant: str | None = None) -> Recorded | None:
        """By its execution id, or the beginning of it; None if there is none, or several."""
        wanted = id_.strip().lower()
        if not wanted or not set(wanted) <= set("0123456789abcdef") or len(wanted) > 64:
            return None
        query = (
            sa.select(*_columns(lines))
            .where(lines.c.id >= wanted, lines.c.id < wanted + "g")
            .where(lines.c.kind.in_(("attempt", "end", "lost")))
            .limit(3)
        )
        with self._reading() as connection:
            rows = connection.execute(query).all()
        if len({row.id for row in rows}) != 1:
            return None
        bodies = {row.kind: _content(row) for row in rows}
        attempt = bodies.get("attempt", {})
        if tenant is not None and attempt.get("tenant") != records.text(tenant):
            return None
        return Recorded(attempt=attempt, end=bodies.get("end") or bodies.get("lost"))

    def egress(
        self,
        *,
        id_: str = "",
        tenant: str | None = None,
        verdict: str | None = None,
        since: str = "",
        before_seq: int | None = None,
        limit: int = 50,
        after_each: Callable[[], object] = lambda: None,
    ) -> list[dict[str, Any]]:
        """What was tried to be reached (N1), the newest first. `id_`: of one attempt, by its whole
        execution id, or of a kept sandbox by that of its own attempt. `after_each`: as above."""
        query = (
            sa.select(*_columns(lines))
            .where(lines.c.kind == EGRESS)
            .order_by(lines.c.seq.desc())
            .limit(limit)
        )
        if id_:
            query = query.where(lines.c.id == id_)
        if tenant is not None:
            query = query.where(lines.c.tenant == records.column(records.text(tenant) or ""))
        if verdict is not None:
            query = query.where(lines.c.status == records.column(verdict))
        if since:
            query = query.where(lines.c.time >= since)
        if before_seq is not None:
            query = query.where(lines.c.seq < before_seq)
        with self._reading() as connection:
            found = []
            for row in connection.execution_options(yield_per=_FEW).execute(query):
                found.append(_content(row))
                after_each()
            return found

    def lines(self, *, after: int = 0) -> Iterator[chain.Line]:
        """All of them, oldest first, as they are stored."""
        query = sa.select(*_columns(lines)).order_by(lines.c.seq).limit(_AT_ONCE)
        while True:
            # Each piece a transaction of its own: a long one would keep SQLite's log growing.
            with self._reading() as connection:
                try:
                    rows: Sequence[Any] = connection.execute(query.where(lines.c.seq > after)).all()
                except exc.DatabaseError:
                    rows = self._one_by_one(connection, after)
            for row in rows:
                yield chain.Line(*row)
            if len(rows) < _AT_ONCE:
                return
            after = rows[-1][0]

    def _one_by_one(self, connection: sa.Connection, after: int) -> list[chain.Line]:
        """A page of the file is damaged: their numbers are in an index, too, and what cannot be
        read is a line that says nothing."""
        found = []
        numbers = sa.select(lines.c.seq).where(lines.c.seq > after).order_by(lines.c.seq)
        for seq in connection.scalars(numbers.limit(_AT_ONCE)).all():
            try:
                row = connection.execute(
                    sa.select(*_columns(lines)).where(lines.c.seq == seq)
                ).one()
                found.append(chain.Line(*row))
            except (exc.DatabaseError, exc.NoResultFound):
                found.append(chain.Line(seq, "", "", "", "", "", "", ""))
        return found

    def verify(self, *, head: str = "", allow_pruned: bool = False) -> chain.Verdict:
        """Reads the whole trail; see `chain.verify`."""
        while True:
            anchor = self._anchor()
            verdict = chain.verify(
                self.lines(), head=head, anchor=anchor, allow_pruned=allow_pruned
            )
            if verdict.sound or self._anchor() == anchor:  # else it was pruned meanwhile
                with self._reading() as connection:
                    return dataclasses.replace(verdict, file=self._store.problems(connection))

    def _anchor(self) -> tuple[int, str] | None:
        query = sa.select(lines.c.body).where(lines.c.kind == "pruned")
        with self._reading() as connection:
            try:
                return chain.anchor_of(connection.scalars(query))
            except exc.DatabaseError:  # a damaged page: those that can be read
                return chain.anchor_of(line.body for line in self.lines() if line.kind == "pruned")

    def prune(self, *, before: str, by: str) -> int:
        """Takes out what is older than that time; how many lines that were."""
        removed, more = 0, True
        while more:
            with self._reading(write=True) as connection, connection.begin():
                self._store.take_turn(connection)
                count, more = pruning.prune(connection, before=before, by=by)
            removed += count
        return removed

    @contextlib.contextmanager
    def _reading(self, *, write: bool = False) -> Iterator[sa.Connection]:
        try:
            with self._store.engine.connect().execution_options(**{WRITE: write}) as connection:
                yield connection
        except exc.SQLAlchemyError as error:
            raise _translated(self._store, error) from error


def _columns(table: Any, prefix: str = "") -> list[sa.ColumnElement[Any]]:
    return [table.c[name].label(prefix + name) for name in chain.Line._fields]


def _content(row: Any, prefix: str = "") -> dict[str, Any]:
    """What a line says; of a damaged one what can be said of it."""
    stored = chain.Line(*(getattr(row, prefix + name) for name in chain.Line._fields))
    try:
        content = json.loads(stored.body, parse_constant=_no_number)
        if isinstance(content, dict) and all(
            isinstance(content.get(name), kind) for name, kind in _EVERY.items()
        ):
            return content
    except (TypeError, ValueError, RecursionError):
        pass
    known = {name: chain.shown(getattr(stored, name)) for name in chain.Line._fields[1:6]}
    seq = stored.seq if type(stored.seq) is int else 0
    return {**known, "seq": seq, "damaged": "this line is not what was written: see trail verify"}


_EVERY: dict[str, type] = {"seq": int, "kind": str, "id": str, "time": str}


def _no_number(name: str) -> None:
    raise ValueError(name)


def _translated(store: Store, error: exc.SQLAlchemyError) -> TrailError:
    cause = getattr(error, "orig", None) or error
    told = str(cause).strip().splitlines()
    return TrailError(
        f"the trail {store} cannot be opened: {told[0][:300] if told else type(cause).__name__}",
        hint="nothing was run; is its database there, and ours to write?",
    )
