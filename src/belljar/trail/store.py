"""Where a trail is: a file of SQLite, or a database of PostgreSQL. Opened, locked, migrated.

SQLite: beside the file lie `…-lock`, which whoever opens the trail holds for a moment, and
`…-owners/`, see `owners`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from belljar import sqlite_files
from belljar.errors import InvalidRequest, TrailError
from belljar.extras import install
from belljar.trail.tables import REVISION, VERSION_TABLE

WRITE = "belljar_write"
"""The execution option of a connection whose transactions write."""
BUSY_S = 15.0
"""How long another process may hold the database before a write fails."""
CONNECT_S = 10
MOST_TOLD = 20
"""Problems of a file."""
RESERVE_BYTES = 64 << 20
"""Of the disk, or a twentieth of a small one: reserved for the ends of what is under way."""
_OPENING = 0x42656C6C  # keys of PostgreSQL's advisory locks
_WRITING = _OPENING + 1


def default_url(home: Path) -> str:
    """The trail of who names none: a file below the data directory."""
    return f"sqlite:///{home.absolute()}/trail/trail.db"


class Store:
    """An engine of SQLAlchemy, and what differs between the two databases."""

    def __init__(self, url: str, *, sync: str = "normal", create: bool = True) -> None:
        self.url = _parsed(url)
        self.file: Path | None = None
        """Of SQLite."""
        if self.url.get_backend_name() == "sqlite":
            self.file = Path(self.url.database or "").absolute()
            _prepare(self.file, create=create)
            self.engine = _sqlite(self.file, full=sync == "full")
        else:
            self.engine = _postgresql(self.url, full=sync == "full")

    def __str__(self) -> str:
        return self.url.render_as_string(hide_password=True)

    def close(self) -> None:
        self.engine.dispose()

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """One process at a time migrates, and judges who is dead."""
        if self.file:
            with _locked(_beside(self.file, "-lock")):
                yield
            return
        with self.engine.connect() as connection:
            connection.exec_driver_sql(f"SELECT pg_advisory_lock({_OPENING})")
            try:
                yield
            finally:
                connection.exec_driver_sql(f"SELECT pg_advisory_unlock({_OPENING})")

    def take_turn(self, connection: sa.Connection) -> None:
        """One process at a time appends. SQLite's transaction itself is the lock."""
        if not self.file:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITING})")

    def short_of_room(self) -> str:
        """Why no attempt should be written, although ends still can be; empty if there is room.
        A database elsewhere has a disk of its own to look after."""
        if self.file is None:
            return ""
        try:
            disk = os.statvfs(self.file.parent)
        except OSError:
            return ""  # writing will say why it fails
        free = disk.f_bavail * disk.f_frsize
        reserve = min(RESERVE_BYTES, disk.f_blocks * disk.f_frsize // 20)
        if free >= reserve:
            return ""
        return f"{free >> 10} KiB of disk are free, and {reserve >> 10} are reserved for what runs"

    def owners_folder(self) -> Path:
        assert self.file is not None
        return _beside(self.file, "-owners")

    def problems(self, connection: sa.Connection) -> tuple[str, ...]:
        """What SQLite finds wrong with its file, indexes above all."""
        if not self.file:
            return ()
        try:
            rows = connection.exec_driver_sql(f"PRAGMA integrity_check({MOST_TOLD})").scalars()
            found = [line for row in rows for line in str(row).splitlines()]
        except exc.SQLAlchemyError as error:
            found = [str(getattr(error, "orig", None) or error)]
        return tuple(line[:300] for line in found if line != "ok")[:MOST_TOLD]

    def revision(self) -> str | None:
        """The newest migration that the database has; None if it has none."""
        with self.engine.connect() as connection:
            if not sa.inspect(connection).has_table(VERSION_TABLE):
                return None
            found = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}")
            return found.scalar_one_or_none()

    def check(self) -> None:
        """For those who only read."""
        if (revision := self.revision()) != REVISION:
            raise TrailError(
                "this trail was made by another version of Belljar"
                if revision
                else f"there is no trail at {self}",
                hint="open it once with this version" if revision else "",
            )

    def migrate(self) -> None:
        """To the newest tables; a newer database than this program is refused."""
        if self.revision() == REVISION:
            return
        from alembic import command
        from alembic.config import Config
        from alembic.util import CommandError

        config = Config()
        config.set_main_option("script_location", "belljar.trail:migrations")
        try:
            with self.engine.connect().execution_options(**{WRITE: True}) as connection:
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
                connection.commit()
        except CommandError as error:
            raise TrailError(
                f"the tables of this trail are newer than this Belljar: {error}",
                hint="use the version of Belljar that made them",
            ) from error


def _parsed(text: str) -> sa.URL:
    """Never repeats the text: it may hold a password."""
    hint = "sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE"
    try:
        url = sa.make_url(text)
        backend = url.get_backend_name()
    except (exc.ArgumentError, ValueError, TypeError):
        raise InvalidRequest("trail: this is not a URL of a database", hint=hint) from None
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise InvalidRequest(f"trail: {backend[:40]!r} is no database for a trail", hint=hint)
    if backend == "sqlite" and url.database in (None, "", ":memory:"):
        raise InvalidRequest("trail: a trail in memory would be lost", hint="sqlite:///FILE")
    if backend == "sqlite" and url.query:
        raise InvalidRequest("trail: a file's URL has no part after a ?", hint="sqlite:///FILE")
    return url


# -- SQLite ----------------------------------------------------------------------------------------


def _beside(file: Path, suffix: str) -> Path:
    return file.with_name(file.name + suffix)


def _prepare(file: Path, *, create: bool) -> None:
    """Nobody else may read the trail, or put anything in its place."""
    try:
        if create:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = file.parent.stat()
        if folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise TrailError(
                f"the trail cannot be in {file.parent}: others can write there",
                hint="put it into a folder that only you can write",
            )
        sqlite_files.make_private(file, create=create)
        if not os.access(file, os.R_OK | os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except FileNotFoundError as error:
        raise TrailError(f"there is no trail at {file}") from error
    except sqlite_files.NotAFile as error:
        raise TrailError(f"the trail {file} is not a file") from error
    except OSError as error:
        raise TrailError(f"the trail {file} cannot be opened: {error.strerror}") from error


def _sqlite(file: Path, *, full: bool) -> sa.Engine:
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=os.fspath(file)),
        connect_args={"timeout": BUSY_S, "check_same_thread": False},
        poolclass=sa.pool.NullPool,
    )

    @sa.event.listens_for(engine, "connect")
    def connected(connection: Any, _: object) -> None:
        connection.isolation_level = None  # transactions begin where we say
        # A damaged byte must not keep anybody from what stands behind it.
        connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        # WAL and NORMAL: a commit survives the end of any process, not the loss of power.
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={'FULL' if full else 'NORMAL'}")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        writing = connection.get_execution_options().get(WRITE)
        # A transaction that reads first and writes later could find another one in between.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    return engine


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise TrailError(f"{path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# -- PostgreSQL ------------------------------------------------------------------------------------


def _postgresql(url: sa.URL, *, full: bool) -> sa.Engine:
    try:
        engine = sa.create_engine(
            url,
            connect_args={"connect_timeout": CONNECT_S, "application_name": "belljar"},
            poolclass=sa.pool.NullPool,
        )
    except ImportError:
        raise TrailError(
            "a trail in PostgreSQL needs psycopg, which is not installed",
            hint=install("postgres"),
        ) from None

    @sa.event.listens_for(engine, "connect")
    def connected(connection: Any, _: object) -> None:
        with connection.cursor() as cursor:
            # A database that hangs must not hang its callers: they are refused.
            cursor.execute(f"SET lock_timeout = '{BUSY_S:g}s'")
            cursor.execute(f"SET statement_timeout = '{4 * BUSY_S:g}s'")
            if full:
                cursor.execute("SET synchronous_commit = on")
        connection.commit()

    return engine
