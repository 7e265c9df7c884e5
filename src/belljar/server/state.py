"""What the server keeps on disk: keys, quotas, CPU seconds. SQLite, or PostgreSQL by its URL.

Its migrations are its own, in `migrations/`: it may lie in another database than the trail, and
one of them can be restored without the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from belljar.errors import InvalidRequest, Unavailable
from belljar.server.keys import Key
from belljar.server.tenants import Quotas

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
        try:
            address = sql.make_url(url)
        except SQLAlchemyError as error:
            raise InvalidRequest(
                f"state: {url!r} is no database URL", hint="for example sqlite:////var/lib/x.db"
            ) from error
        if address.get_backend_name() == "sqlite" and address.database:
            _private(Path(address.database))
        self._engine = sql.create_engine(address, pool_pre_ping=True)
        if address.get_backend_name() == "sqlite":
            sql.event.listen(self._engine, "connect", _pragmas)
        try:
            self._migrate()
        except SQLAlchemyError as error:
            raise Unavailable(
                f"the server's state cannot be opened: {error.__class__.__name__}",
                hint=f"is {address.render_as_string(hide_password=True)} right, and writable?",
            ) from error

    def close(self) -> None:
        self._engine.dispose()

    def all_keys(self) -> list[Key]:
        with self._engine.connect() as connection:
            rows = connection.execute(sql.select(KEYS).order_by(KEYS.c.created)).all()
        return [
            Key(
                id=row.id,
                hash=bytes.fromhex(row.hash),
                tenant=row.tenant,
                operator=bool(row.operator),
                created=row.created,
            )
            for row in rows
        ]

    def add(self, key: Key, quotas: Quotas | None = None) -> None:
        """Stores a key; its tenant is made, with these quotas, if there is none."""
        with self._engine.begin() as connection:
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
        with self._engine.begin() as connection:
            done = connection.execute(KEYS.delete().where(KEYS.c.id == identity))
        return bool(done.rowcount)

    def tenants(self) -> dict[str, Quotas]:
        with self._engine.connect() as connection:
            rows = connection.execute(sql.select(TENANTS)).all()
        return {row.name: Quotas.model_validate_json(row.quotas) for row in rows}

    def set_quotas(self, tenant: str, quotas: Quotas) -> None:
        with self._engine.begin() as connection:
            self._put(connection, tenant, quotas)

    def spent(self, day: int) -> dict[str, float]:
        with self._engine.connect() as connection:
            rows = connection.execute(sql.select(SPENT).where(SPENT.c.day == day)).all()
        return {row.tenant: row.cpu_s for row in rows}

    def spend(self, day: int, amounts: Iterable[tuple[str, float]]) -> None:
        with self._engine.begin() as connection:
            connection.execute(SPENT.delete().where(SPENT.c.day < day - 31))
            for tenant, cpu_s in amounts:
                here = (SPENT.c.tenant == tenant) & (SPENT.c.day == day)
                connection.execute(SPENT.delete().where(here))
                connection.execute(SPENT.insert().values(tenant=tenant, day=day, cpu_s=cpu_s))

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

    def _migrate(self) -> None:
        if self._version() == NEWEST:
            return  # loading Alembic takes longer than all the rest of it
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", "belljar.server:migrations")
        with self._engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    def _version(self) -> str | None:
        with self._engine.connect() as connection:
            if not sql.inspect(connection).has_table(VERSION_TABLE):
                return None
            found = connection.execute(sql.text(f"SELECT version_num FROM {VERSION_TABLE}"))
            return str(found.scalar())


def _private(path: Path) -> None:
    """Hashes of keys are nobody else's business."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise Unavailable(
            f"the server's state cannot be opened: {error}", hint="is the folder writable?"
        ) from error


def _pragmas(connection: object, _: object) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "busy_timeout=5000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
