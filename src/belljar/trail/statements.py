"""The few statements of every run, compiled once and handed to the database's driver: SQLAlchemy's
own way of executing one takes longer than SQLite takes to do it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from belljar.errors import TrailError
from belljar.trail.chain import Head, is_hash
from belljar.trail.tables import lines, under_way


class Statement:
    def __init__(self, statement: sa.sql.ClauseElement, dialect: sa.Dialect) -> None:
        compiled: Any = statement.compile(
            dialect=dialect, compile_kwargs={"render_postcompile": True, "literal_binds": False}
        )
        self._text = str(compiled)
        self._order: Sequence[str] | None = compiled.positiontup
        self._fixed: dict[str, Any] = {k: v for k, v in compiled.params.items() if v is not None}

    def many(self, connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> int:
        """For each row; how many were changed."""
        cursor = connection.connection.cursor()
        try:
            cursor.executemany(self._text, [self._given(row) for row in rows])
            return int(cursor.rowcount)
        finally:
            cursor.close()

    def one(self, connection: sa.Connection) -> Any:
        """The first row there is, or None."""
        cursor = connection.connection.cursor()
        try:
            cursor.execute(self._text, self._given({}))
            return cursor.fetchone()
        finally:
            cursor.close()

    def _given(self, row: Mapping[str, Any]) -> Any:
        if self._fixed:
            row = {**self._fixed, **row}
        return row if self._order is None else tuple(row[name] for name in self._order)


class Statements:
    def __init__(self, dialect: sa.Dialect) -> None:
        self.write_line = Statement(lines.insert(), dialect)
        self.open = Statement(under_way.insert(), dialect)
        self.close = Statement(
            under_way.delete().where(under_way.c.id == sa.bindparam("id")), dialect
        )
        self._last = Statement(
            sa.select(lines.c.seq, lines.c.hash).order_by(lines.c.seq.desc()).limit(1), dialect
        )

    def last(self, connection: sa.Connection) -> Head | None:
        row = self._last.one(connection)
        if row and not is_hash(row[1]):
            raise TrailError(
                f"the newest line of the trail, {row[0]}, is damaged, and none can follow it",
                hint="belljar trail verify",
            )
        return Head(*row) if row else None
