"""What the server keeps on disk: keys, quotas, CPU seconds. SQLite, or PostgreSQL by its URL.

Its migrations are its own, in `migrations/`: it may lie in another database than the trail, and
one of them can be restored without the other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from belljar import sqlite_files
from belljar.errors import InvalidRequest, Unavailable
from belljar.extras import install
from belljar.server.keys import Key
from belljar.server.tenants import Quotas

BUSY_S, CONNECT_S = 5, 10
KEPT_DAYS = 32
"""Of each tenant's sums of CPU seconds."""
_OPENING = 0x42656C70  # keys of PostgreSQL's advisory locks, beside those of the trail
_WRITING = _OPENING + 1
NEWEST = "0001"
VERSION_TABLE = "belljar_server_version"

METADATA = sql.MetaData()
TENANTS = sql.Table(
    "belljar_tenants",
    METADATA,
    sql.Column("name", sql.String(64), primary_key=True),
    sql.Column("quotas", sql.Text, nullable=False),
)
KEYS = sql.Table(
    "belljar_keys",
    METADATA,
    sql.Column("id", sql.String(12), primary_key=True),
    sql.Column("hash", sql.String(64), nullable=False),
    sql.Column("tenant", sql.String(64), sql.ForeignKey("belljar_tenants.name"), nullable=False),
    sql.Column("operator", sql.Boolean, nullable=False),
    sql.Column("created", sql.Float, nullable=False),
)
SPENT = sql.Table(
    "belljar_spent",
    METADATA,
    sql.Column("tenant", sql.String(64), primary_key=True),
    sql.Column("day", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("cpu_s", sql.Float, nullable=False),
)


class State:
    """Synchronous; the server calls it in a thread."""

    def __init__(self, url: str) -> None:
        self._url = _parsed(url)
        self._file: Path | None = None
        """Of SQLite."""
        if self._url.get_backend_name() == "sqlite":
            self._file = Path(self._url.database or "").absolute()
            _private(self._file)
        self._engine = _engine(self._url)
        with self._told("opened"), self._alone():
            self._migrate()

    def close(self) -> None:
        self._engine.dispose()

    def all_keys(self) -> list[Key]:
        """Those that can be read: one that is damaged is no key, and costs no other."""
        with self._reading() as connection:
            rows = connection.execute(sql.select(KEYS).order_by(KEYS.c.created)).all()
        found = []
        for row in rows:
            with contextlib.suppress(ValueError, TypeError):
                found.append(
                    Key(
                        id=row.id,
                        hash=bytes.fromhex(row.hash),
                        tenant=row.tenant,
                        operator=bool(row.operator),
                        created=row.created,
                    )
                )
        return found

    def add(self, key: Key, quotas: Quotas | None = None) -> None:
        """Stores a key; its tenant is made, with these quotas, if there is none."""
        with self._writing() as connection:
            if quotas is not None or not self._has(connection, key.tenant):
                self._put(connection, key.tenant, quotas or Quotas())
            connection.execute(
                KEYS.insert().values(
                    id=key.id,
                    hash=key.hash.hex(),
                    tenant=key.tenant,
                    operator=key.operator,
                    created=key.created,
                )
            )

    def remove(self, identity: str) -> bool:
        with self._writing() as connection:
            done = connection.execute(KEYS.delete().where(KEYS.c.id == identity))
        return bool(done.rowcount)

    def tenants(self) -> dict[str, Quotas | None]:
        """None: its quotas are of a newer version, or damaged."""
        with self._reading() as connection:
            rows = connection.execute(sql.select(TENANTS)).all()
        found: dict[str, Quotas | None] = {}
        for row in rows:
            try:
                found[row.name] = Quotas.model_validate_json(row.quotas)
            except (ValueError, TypeError):
                found[row.name] = None
        return found

    def set_quotas(self, tenant: str, quotas: Quotas) -> None:
        with self._writing() as connection:
            self._put(connection, tenant, quotas)

    def spent(self, day: int) -> dict[str, float]:
        with self._reading() as connection:
            rows = connection.execute(sql.select(SPENT).where(SPENT.c.day == day)).all()
        return {row.tenant: row.cpu_s for row in rows}

    def spend(self, day: int, amounts: Iterable[tuple[str, float]]) -> None:
        """Adds to what the day's sums are: several servers may share this state."""
        with self._writing() as connection:
            for tenant, cpu_s in amounts:
                here = (SPENT.c.tenant == tenant) & (SPENT.c.day == day)
                added = SPENT.update().where(here).values(cpu_s=SPENT.c.cpu_s + cpu_s)
                done = connection.execute(added)
                if not done.rowcount:
                    connection.execute(SPENT.insert().values(tenant=tenant, day=day, cpu_s=cpu_s))
                    self._prune(connection, tenant)

    def _prune(self, connection: sql.Connection, tenant: str) -> None:
        """By number and not by date: a clock that jumps ahead for once would delete today's."""
        own = SPENT.c.tenant == tenant
        kept = sql.select(SPENT.c.day).where(own).order_by(SPENT.c.day.desc()).limit(KEPT_DAYS)
        connection.execute(SPENT.delete().where(own & SPENT.c.day.not_in(kept)))

    def _has(self, connection: sql.Connection, tenant: str) -> bool:
        found = connection.execute(sql.select(TENANTS.c.name).where(TENANTS.c.name == tenant))
        return found.first() is not None

    def _put(self, connection: sql.Connection, tenant: str, quotas: Quotas) -> None:
        text = quotas.model_dump_json(exclude_unset=True)
        if self._has(connection, tenant):
            here = TENANTS.c.name == tenant
            connection.execute(TENANTS.update().where(here).values(quotas=text))
        else:
            connection.execute(TENANTS.insert().values(name=tenant, quotas=text))

    # -- the database ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sql.Connection]:
        with self._told("read"), self._engine.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sql.Connection]:
        """One at a time: nothing changes between a look and a write."""
        with self._told("written"), self._engine.begin() as connection:
            lock = f"SELECT pg_advisory_xact_lock({_WRITING})"
            connection.exec_driver_sql("BEGIN IMMEDIATE" if self._file else lock)
            yield connection

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            place = self._url.render_as_string(hide_password=True)
            raise Unavailable(
                f"the server's state cannot be {what}: {error.__class__.__name__}",
                hint=f"is {place} right, there, and writable?",
            ) from error

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time migrates: a server and `belljar keys` may be started together."""
        if self._file:
            lock = self._file.with_name(f"{self._file.name}-lock")
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                os.close(descriptor)
            return
        with self._engine.connect() as connection:
            connection.exec_driver_sql(f"SELECT pg_advisory_lock({_OPENING})")
            try:
                yield
            finally:
                connection.exec_driver_sql(f"SELECT pg_advisory_unlock({_OPENING})")

    def _migrate(self) -> None:
        if self._version() == NEWEST:
            return  # loading Alembic takes longer than all the rest of it
        from alembic import command
        from alembic.config import Config
        from alembic.util import CommandError

        config = Config()
        config.set_main_option("script_location", "belljar.server:migrations")
        try:
            with self._engine.begin() as connection:
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        except CommandError as error:
            raise Unavailable(
                "the tables of the server's state are newer than this Belljar",
                hint="use the version of Belljar that made them",
            ) from error

    def _version(self) -> str | None:
        with self._engine.connect() as connection:
            if not sql.inspect(connection).has_table(VERSION_TABLE):
                return None
            found = connection.execute(sql.text(f"SELECT version_num FROM {VERSION_TABLE}"))
            return str(found.scalar())


def _parsed(text: str) -> sql.URL:
    """Never repeats the text: it may hold a password."""
    hint = "sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE"
    try:
        url = sql.make_url(text)
    except (SQLAlchemyError, ValueError, TypeError):
        raise InvalidRequest("state: this is not a URL of a database", hint=hint) from None
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise InvalidRequest("state: no such database is supported", hint=hint)
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise InvalidRequest("state: keys in memory would be lost", hint="sqlite:///FILE")
    return url


def _engine(url: sql.URL) -> sql.Engine:
    if url.get_backend_name() == "sqlite":
        engine = sql.create_engine(url, connect_args={"timeout": BUSY_S})
        sql.event.listen(engine, "connect", _pragmas)
        return engine
    # A database that hangs must not hang who waits for it.
    limits = f"-c lock_timeout={BUSY_S}s -c statement_timeout={4 * BUSY_S}s"
    asked = {"connect_timeout": CONNECT_S, "application_name": "belljar", "options": limits}
    try:
        return sql.create_engine(url, pool_pre_ping=True, connect_args=asked)
    except ImportError:
        raise Unavailable(
            "a server's state in PostgreSQL needs psycopg, which is not installed",
            hint=install("server", "postgres"),
        ) from None


def _private(path: Path) -> None:
    """Hashes of keys are nobody else's business, also in a file that was there before."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        sqlite_files.make_private(path, create=True)
        for end in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                sqlite_files.make_private(path.with_name(path.name + end), create=False)
    except OSError as error:
        raise Unavailable(
            f"the server's state cannot be opened: {error}", hint="is the folder writable?"
        ) from error


def _pragmas(connection: object, _: object) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
