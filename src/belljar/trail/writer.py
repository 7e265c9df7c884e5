"""Takes lines down: one thread, one connection, and one transaction for whatever has gathered.

While a transaction is on its way to the disk, the next lines gather; so fifty callers pay for
about as many commits as one. Each is woken when its own line is durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
import weakref
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from belljar.errors import TrailError
from belljar.trail import chain, prune, records
from belljar.trail.entry import Entry
from belljar.trail.owners import Owner
from belljar.trail.statements import Statements
from belljar.trail.store import WRITE, Store
from belljar.trail.tables import under_way

MOST_LINES = 1000
"""In one transaction."""
_RETAIN_EVERY_S = 3600.0


@dataclass(eq=False, slots=True)
class _Item:
    kind: str
    entry: Entry
    content: dict[str, Any]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None]


class Writer:
    """The book of one process; see `open_trail`."""

    def __init__(self, store: Store, *, keep_days: float = 0.0) -> None:
        self._store = store
        self._statements = Statements(store.engine.dialect)
        self._keep_days = keep_days
        self._retain_at = time.monotonic()
        self._pid = os.getpid()
        self._gathered: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._doubtful: set[str] = set()
        """Attempts whose callers were told that they are not in the trail, or their end is not."""
        self._closed = False
        self._connection: sa.Connection | None = None
        with store.opening():
            store.migrate()
            self._owner = Owner(store)
            try:
                self._begin()
            except BaseException:
                self._disconnect()
                self._owner.close()
                raise
        _open.add(self)
        self._thread = threading.Thread(target=self._main, name="belljar-trail", daemon=True)
        self._thread.start()

    # -- for the loop ------------------------------------------------------------------------------

    def put(self, kind: str, entry: Entry, content: dict[str, Any]) -> Awaitable[None]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        if self._closed or self._pid != os.getpid():
            why = "it is closed" if self._closed else "it belongs to the process before the fork"
            done.set_exception(_failed(why, ran=kind != "attempt"))
            done.exception()  # seen, also if nobody waits
            return done
        content = {**content, "kind": kind, "id": entry.id, "time": records.now()}
        self._gathered.put(_Item(kind, entry, content, loop, done))
        return done

    def close(self) -> None:
        """Writes what has gathered, then lets go. Blocks; not for the loop's thread."""
        if self._closed:
            return
        self._closed = True
        self._gathered.put(None)
        self._thread.join()
        _open.discard(self)
        self._owner.close()
        self._disconnect()
        self._store.close()

    # -- the thread --------------------------------------------------------------------------------

    def _main(self) -> None:
        more = True
        while more:
            batch, more = self._gather()
            try:
                refused = self._write(batch)
            except Exception as error:
                self._disconnect()  # the next batch finds out whether the database is back
                self._doubtful.update(item.entry.id for item in batch)
                _wake(batch, {item: _failed(error, ran=item.kind != "attempt") for item in batch})
            else:
                _wake(batch, refused)
            if more and self._keep_days and time.monotonic() > self._retain_at:
                self._retain()
        with contextlib.suppress(Exception):  # then the next who opens it calls them lost
            self._leave()

    def _gather(self) -> tuple[list[_Item], bool]:
        """Waits for one line and takes whatever else is there; False with the last ones."""
        batch: list[_Item] = []
        while not batch or (len(batch) < MOST_LINES and not self._gathered.empty()):
            item = self._gathered.get()
            if item is None:
                return batch, False
            batch.append(item)
        return batch, True

    def _write(self, batch: list[_Item]) -> dict[_Item, TrailError]:
        """One transaction; those whose line cannot follow, and why."""
        if not batch:
            return {}
        try:
            refused, page = self._transact(batch, careful=False)
        except _Stale:
            refused, page = self._transact(batch, careful=True)
        self._doubtful.clear()
        for item in batch:
            if item.kind == "attempt":
                item.entry.seq = page.seqs[item.entry.id]
        return refused

    def _transact(
        self, batch: list[_Item], *, careful: bool
    ) -> tuple[dict[_Item, TrailError], _Page]:
        connection = self._connected()
        with connection.begin():
            self._store.take_turn(connection)
            page = _Page(connection, self._statements, self._owner.id)
            refused = page.add(batch, careful=careful)
            if self._doubtful:
                page.lose(sorted(self._doubtful))
            page.write()
        return refused, page

    def _leave(self) -> None:
        """What nobody has ended, such as a kept sandbox, ends with its Belljar."""
        connection = self._connected()
        with connection.begin():
            self._store.take_turn(connection)
            page = _Page(connection, self._statements, self._owner.id)
            mine = sa.select(under_way.c.id).where(under_way.c.owner == self._owner.id)
            page.lose(connection.scalars(mine).all(), kind="end", status="closed")
            page.write()

    def _retain(self) -> None:
        self._retain_at = time.monotonic() + _RETAIN_EVERY_S
        try:
            before = prune.days_ago(self._keep_days)
            with self._connected().begin():
                self._store.take_turn(self._connected())
                _, more = prune.prune(self._connected(), before=before, by="retention")
            if more:  # a piece at a time, so that nobody waits for long
                self._retain_at = time.monotonic() + 1.0
        except Exception:
            self._disconnect()

    # -- the connection ----------------------------------------------------------------------------

    def _begin(self) -> None:
        """The first transaction: a trail has a beginning, and what the dead left open is lost."""
        connection = self._connected()
        with connection.begin():
            self._store.take_turn(connection)
            page = _Page(connection, self._statements, self._owner.id)
            if self._statements.last(connection) is None:
                page.append(_beginning())
            owners = connection.scalars(sa.select(under_way.c.owner).distinct()).all()
            if dead := self._owner.dead(owners, connection):
                whose = sa.select(under_way.c.id).where(under_way.c.owner.in_(dead))
                page.lose(connection.scalars(whose).all())
            page.write()
        self._owner.sweep()

    def _connected(self) -> sa.Connection:
        if self._connection is None:
            connection = self._store.engine.connect().execution_options(**{WRITE: True})
            try:
                self._owner.attach(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.invalidate()
            with contextlib.suppress(Exception):
                connection.close()

    def in_child(self) -> None:
        """After a fork: the connection is the parent's. Closing it here would tell the server that
        the parent has left, so its socket is exchanged for nothing."""
        if self._connection is None or self._store.file:
            return
        with contextlib.suppress(Exception):
            raw: Any = self._connection.connection.driver_connection
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(nothing, raw.fileno(), inheritable=False)
            os.close(nothing)


_open: weakref.WeakSet[Writer] = weakref.WeakSet()


def _after_fork() -> None:
    for writer in list(_open):
        writer.in_child()


os.register_at_fork(after_in_child=_after_fork)


# -- pages -----------------------------------------------------------------------------------------


class _Stale(Exception):
    """An attempt of ours is not open any more: somebody took us for dead."""


class _Page:
    """The lines of one transaction, in order, and what they change in the list of open attempts."""

    def __init__(self, connection: sa.Connection, statements: Statements, owner: str) -> None:
        self._connection = connection
        self._statements = statements
        self._owner = owner
        self._head = statements.last(connection) or chain.Head(0, records.GENESIS)
        self._lines: list[chain.Line] = []
        self._opened: dict[str, int] = {}
        self._closed: list[str] = []
        self.seqs: dict[str, int] = {}
        """Attempt → its line."""

    def add(self, batch: Sequence[_Item], *, careful: bool) -> dict[_Item, TrailError]:
        """Those whose line cannot follow, and why. `careful`: looks whether attempts are open;
        those of a living process always are, but for a mistake about its life."""
        refused: dict[_Item, TrailError] = {}
        still = self._open_of([item.entry.id for item in batch]) if careful else {}
        for item in batch:
            id_ = item.entry.id
            if item.kind == "attempt":
                seq = self.append({**item.content, "owner": self._owner})
                self._opened[id_] = self.seqs[id_] = seq
            elif id_ in self._opened:
                self.append({**item.content, "attempt": self._opened[id_]})
                if item.kind == "end":
                    del self._opened[id_]
            elif item.entry.seq and (id_ in still or not careful):
                self.append({**item.content, "attempt": item.entry.seq})
                if item.kind == "end":
                    self._closed.append(id_)
            else:
                refused[item] = _failed(
                    "its attempt is not there, or was given up for lost", ran=True
                )
        return refused

    def lose(self, ids: Sequence[str], *, kind: str = "lost", status: str = "lost") -> None:
        """Those of them that are still open."""
        for id_, seq in self._open_of(ids).items():
            if id_ not in self._closed:
                told = {"kind": kind, "id": id_, "time": records.now(), "status": status}
                self.append({**told, "attempt": seq})
                self._closed.append(id_)

    def write(self) -> None:
        if self._lines:
            rows = [item._asdict() for item in self._lines]
            self._statements.write_line.many(self._connection, rows)
        if self._opened:
            rows = [{"id": i, "seq": s, "owner": self._owner} for i, s in self._opened.items()]
            self._statements.open.many(self._connection, rows)
        if self._closed:
            gone = [{"id": id_} for id_ in self._closed]
            if self._statements.close.many(self._connection, gone) != len(gone):
                raise _Stale

    def append(self, content: dict[str, Any]) -> int:
        item = chain.line(self._head.seq + 1, self._head.hash, content)
        self._lines.append(item)
        self._head = chain.Head(item.seq, item.hash)
        return item.seq

    def _open_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Attempt → its line, in order."""
        found: dict[str, int] = {}
        columns = sa.select(under_way.c.id, under_way.c.seq)
        for start in range(0, len(ids), MOST_LINES):
            among = columns.where(under_way.c.id.in_(ids[start : start + MOST_LINES]))
            found |= {row.id: row.seq for row in self._connection.execute(among)}
        return dict(sorted(found.items(), key=lambda item: item[1]))


def _beginning() -> dict[str, Any]:
    """Of its own for each trail, so that no line of one fits into another."""
    return {"kind": "began", "id": os.urandom(16).hex(), "time": records.now(), "format": 1}


def _failed(why: object, *, ran: bool) -> TrailError:
    cause = getattr(why, "orig", None) or why  # the database's own words, without the statement
    told = str(cause).strip().splitlines()
    return TrailError(
        ("the run ended, but that" if ran else "the attempt")
        + f" could not be written to the trail: {told[0][:300] if told else type(cause).__name__}",
        hint="its result is withheld, and the trail will call it lost; run it again"
        if ran
        else "nothing was run; try again when the trail's database is back",
        ran=ran,
    )


def _wake(batch: Iterable[_Item], errors: Mapping[_Item, TrailError]) -> None:
    """One call into each loop, however many wait there."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Item, TrailError | None]]] = {}
    for item in batch:
        by_loop.setdefault(item.loop, []).append((item, errors.get(item)))
    for loop, woken in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_set, woken)


def _set(woken: list[tuple[_Item, TrailError | None]]) -> None:
    for item, error in woken:
        if item.done.done():
            continue
        if error is None:
            item.done.set_result(None)
        else:
            item.done.set_exception(error)
            item.done.exception()  # seen, also if nobody waits
