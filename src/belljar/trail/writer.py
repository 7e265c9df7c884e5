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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from belljar.errors import TrailError
from belljar.trail import chain, prune, records
from belljar.trail.crowd import COUNTED_S, Crowd
from belljar.trail.entry import Content, Entry, Said
from belljar.trail.owed import Owed
from belljar.trail.owners import Owner
from belljar.trail.statements import Statements
from belljar.trail.store import WRITE, Store
from belljar.trail.tables import under_way

MOST_LINES = 1000
"""In one transaction."""
RETRY_S = 1.0
"""How often a trail that could not be written is tried again, with what it is owed."""
LOOK_S = 0.2
"""How often the disk is looked at, and whether we are taken for dead."""
_RETAIN_EVERY_S = 3600.0


@dataclass(eq=False, slots=True)
class Item:
    kind: str
    entry: Entry
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None]
    said: Said
    asked: Said | None = None
    """Of an end: its attempt, which has no line yet."""
    others: list[Item] = field(default_factory=list)
    """Those that its line tells of, too."""
    time: str = field(default_factory=records.now)

    @property
    def content(self) -> Content:
        assert isinstance(self.said, dict)
        return self.said

    @property
    def begins(self) -> bool:
        """It is, or brings, an attempt: nothing of it has run."""
        return self.kind == "attempt" or self.asked is not None

    def make(self) -> None:
        """What the lines say, if that is still to be made. They must be written in any case: the
        end of an attempt above all."""
        if self.asked is not None:
            self.asked = self._made("attempt", self.asked)
        self.said = self._made(self.kind, self.said)

    def _made(self, kind: str, said: Said) -> Content:
        if not isinstance(said, dict):
            try:
                said = said()
            except Exception as error:
                said = records.ended("failed", error=type(error).__name__)
        return {**said, "kind": kind, "id": self.entry.id, "time": self.time}


class Writer:
    """The book of one process; see `open_trail`."""

    def __init__(self, store: Store, *, keep_days: float = 0.0) -> None:
        self._store = store
        self._statements = Statements(store.engine.dialect)
        self._keep_days = keep_days
        self._retain_at = time.monotonic()
        self._pid = os.getpid()
        self._gathered: queue.SimpleQueue[Item | str | None] = queue.SimpleQueue()
        """A text: there is something to look at."""
        self._slow: ThreadPoolExecutor | None = None
        """One thread, which makes long lines in their order."""
        self._owed = Owed()
        self._crowd = Crowd(lambda: self._gathered.put("counted"))
        self._trouble = ""
        self._down = False
        """The last transaction failed."""
        self._short = ""
        """Why nothing new may be begun."""
        self._look_at = 0.0
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

    def counted(self, entry: Entry, ended: Content) -> bool:
        closed = self._closed or self._pid != os.getpid()
        return not closed and self._crowd.counted(entry, ended)

    def put(
        self, kind: str, entry: Entry, said: Said, *, asked: Said | None = None
    ) -> Awaitable[None]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        if self._closed or self._pid != os.getpid():
            why = "it is closed" if self._closed else "it belongs to the process before the fork"
            done.set_exception(_failed(why, ran=kind != "attempt" and asked is None))
            done.exception()  # seen, also if nobody waits
            return done
        item = Item(kind, entry, loop, done, said, asked)
        if entry.slow or not isinstance(said, dict) or not isinstance(asked, dict | None):
            entry.slow = True  # what follows must not overtake it
            if self._slow is None:
                self._slow = ThreadPoolExecutor(1, thread_name_prefix="belljar-trail-hash")
            self._slow.submit(self._make, item)
        else:
            self._make(item)
        return done

    def _make(self, item: Item) -> None:
        item.make()
        self._gathered.put(item)

    def trouble(self) -> str:
        return self._trouble or self._store.short_of_room()

    def close(self) -> None:
        """Writes what has gathered, then lets go. Blocks; not for the loop's thread."""
        if self._closed:
            return
        self._closed = True
        if self._slow:
            self._slow.shutdown()
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
            batch = self._crowd.sift(batch, all_=not more)
            for kind, count in self._crowd.refused(all_=not more):
                self._owed.count(*kind, count)
            try:
                refused = self._write(batch)
            except Exception as error:
                self._disconnect()  # the next batch finds out whether the database is back
                self._trouble, self._look_at = _words(error), 0.0
                self._owed.failed(batch, tried=not self._down)
                self._down = True
                _wake(batch, {item: _failed(error, ran=not item.begins) for item in batch})
            else:
                _wake(batch, refused)
            if more and self._keep_days and time.monotonic() > self._retain_at:
                self._retain()
        with contextlib.suppress(Exception):  # then the next who opens it calls them lost
            self._leave()

    def _gather(self) -> tuple[list[Item], bool]:
        """Waits for one line and takes whatever else is there; False with the last ones. None at
        all if the trail is to be tried again."""
        batch: list[Item] = []
        patience_s = RETRY_S if self._trouble or self._owed or self._crowd else None
        while not batch or (len(batch) < MOST_LINES and not self._gathered.empty()):
            try:
                item = self._gathered.get(timeout=patience_s)
            except queue.Empty:
                break
            if item is None:
                return batch, False
            if isinstance(item, str):
                patience_s = COUNTED_S
            else:
                batch.append(item)
        return batch, True

    def _write(self, batch: list[Item]) -> dict[Item, TrailError]:
        """One transaction; those whose line cannot follow, and why. The last of the disk is for
        what is under way: nothing new is begun there."""
        self._look_around()
        short = self._short
        refused: dict[Item, TrailError] = {}
        if short:
            refused = {i: _failed(short, ran=False) for i in batch if i.begins}
            batch = [item for item in batch if item not in refused]
        if self._down:
            # First what is owed, and the ends of what ran. While that fails nothing new is handed
            # to the database, so of nothing new it is in doubt whether it got there.
            new = {item.entry.id for item in batch if item.begins}
            ends = [item for item in batch if item.entry.id not in new]
            if ends or not short:
                refused |= self._commit(ends)
                self._down = False
            batch = [item for item in batch if item.entry.id in new]
        if batch or (self._owed and not short):
            refused |= self._commit(batch)
        for item in refused:
            self._owed.turned_away(item)
        self._trouble = short
        return refused

    def _commit(self, batch: list[Item]) -> dict[Item, TrailError]:
        try:
            late, page = self._transact(batch, careful=False)
        except _Stale:
            late, page = self._transact(batch, careful=True)
        self._owed.paid()
        for item in batch:
            if item.kind == "attempt":
                item.entry.seq = page.seqs[item.entry.id]
        return late

    def _look_around(self) -> None:
        """At what the kernel knows; not for every transaction."""
        if (now := time.monotonic()) < self._look_at:
            return
        self._look_at = now + LOOK_S
        self._short = self._store.short_of_room()
        self._owner.renew()

    def _transact(
        self, batch: list[Item], *, careful: bool
    ) -> tuple[dict[Item, TrailError], _Page]:
        connection = self._connected()
        with connection.begin():
            self._store.take_turn(connection)
            page = _Page(connection, self._statements, self._owner.id, self._crowd)
            if self._owed:
                page.settle(self._owed)
            refused = page.add(batch, careful=careful)
            if self._owed.doubtful:
                page.lose(sorted(self._owed.doubtful))
            page.write()
        return refused, page

    def _leave(self) -> None:
        """What nobody has ended, such as a kept sandbox, ends with its Belljar."""
        connection = self._connected()
        with connection.begin():
            self._store.take_turn(connection)
            page = _Page(connection, self._statements, self._owner.id, self._crowd)
            page.settle(self._owed)
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
            page = _Page(connection, self._statements, self._owner.id, self._crowd)
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

    def __init__(
        self, connection: sa.Connection, statements: Statements, owner: str, crowd: Crowd
    ) -> None:
        self._connection = connection
        self._statements = statements
        self._owner = owner
        self._crowd = crowd
        self._head = statements.last(connection) or chain.Head(0, records.GENESIS)
        self._lines: list[chain.Line] = []
        self._opened: dict[str, int] = {}
        self._closed: list[str] = []
        self.seqs: dict[str, int] = {}
        """Attempt → its line."""

    def add(self, batch: Sequence[Item], *, careful: bool) -> dict[Item, TrailError]:
        """Those whose line cannot follow, and why. `careful`: looks whether attempts are open;
        those of a living process always are, but for a mistake about its life."""
        refused: dict[Item, TrailError] = {}
        still = self._open_of([item.entry.id for item in batch]) if careful else {}
        for item in batch:
            id_, tenant = item.entry.id, item.entry.tenant
            if item.asked is not None:
                assert isinstance(item.asked, dict)
                seq = self.append({**item.asked, "owner": self._owner}, tenant, whole=item.content)
                self.append({**item.content, "attempt": seq}, tenant)
            elif item.kind == "attempt":
                seq = self.append({**item.content, "owner": self._owner}, tenant)
                self._opened[id_] = self.seqs[id_] = seq
            elif id_ in self._opened:
                self.append({**item.content, "attempt": self._opened[id_]}, tenant)
                if item.kind == "end":
                    del self._opened[id_]
            elif item.entry.seq and (item.kind == "egress" or id_ in still or not careful):
                # What was tried is told also of an attempt that was given up for lost.
                self.append({**item.content, "attempt": item.entry.seq}, tenant)
                if item.kind == "end":
                    self._closed.append(id_)
            else:
                refused[item] = _failed(
                    "its attempt is not there, or was given up for lost", ran=True
                )
        return refused

    def settle(self, owed: Owed) -> None:
        """What could not be written when it was time, but for attempts to be given up."""
        for item, content in owed.late_contents():
            if item.entry.seq:
                self.append({**content, "attempt": item.entry.seq}, item.entry.tenant)
        for tenant, what, why, count in owed.refused():
            told = {"id": os.urandom(16).hex(), "time": records.now()}
            asked = {"kind": "attempt", "action": "refusals", "tenant": tenant}
            if what:
                asked["refused"] = what
            seq = self.append({**told, **asked, "owner": self._owner})
            ended = records.ended("refused", error=why, count=count)
            self.append({**told, "kind": "end", **ended, "attempt": seq})

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

    def append(
        self, content: Content, tenant: str | None = None, *, whole: Content | None = None
    ) -> int:
        """`tenant`: whose account it is on. `whole`: the end of an attempt that is refused."""
        item = chain.line(self._head.seq + 1, self._head.hash, content)
        free = content["kind"] == "egress" or (whole or content).get("status") == "refused"
        if tenant is not None and not self._crowd.allows(tenant, len(item.body), free=free):
            item = chain.line(item.seq, self._head.hash, records.cut(content))
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


def _words(why: object) -> str:
    cause = getattr(why, "orig", None) or why  # the database's own words, without the statement
    told = str(cause).strip().splitlines()
    return told[0][:300] if told else type(cause).__name__


def _failed(why: object, *, ran: bool) -> TrailError:
    return TrailError(
        ("the run ended, but that" if ran else "the attempt")
        + f" could not be written to the trail: {_words(why)}",
        hint="its result is withheld, and the trail will call it lost; run it again only if it is "
        "safe to run twice"
        if ran
        else "nothing was run; try again when the trail's database is back",
        ran=ran,
    )


def _wake(batch: Iterable[Item], errors: Mapping[Item, TrailError]) -> None:
    """One call into each loop, however many wait there."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Item, TrailError | None]]] = {}
    for item in batch:
        for one in (item, *item.others):
            by_loop.setdefault(one.loop, []).append((one, errors.get(item)))
    for loop, woken in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_set, woken)


def _set(woken: list[tuple[Item, TrailError | None]]) -> None:
    for item, error in woken:
        if item.done.done():
            continue
        if error is None:
            item.done.set_result(None)
        else:
            item.done.set_exception(error)
            item.done.exception()  # seen, also if nobody waits
