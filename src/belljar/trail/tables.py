"""The tables, as the migrations leave them."""

from __future__ import annotations

import sqlalchemy as sa

REVISION = "0002"
"""The newest migration: a database that has it needs no Alembic to be opened."""
VERSION_TABLE = "trail_version"

metadata = sa.MetaData()

lines = sa.Table(
    "trail_lines",
    metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("id", sa.String(64), nullable=False, index=True),
    sa.Column("time", sa.String(32), nullable=False),
    sa.Column("tenant", sa.Text, nullable=False, index=True),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
)
"""Written once, never changed. `body` is canonical JSON and what is hashed; the columns beside it
repeat it, to be searched by."""

EGRESS: sa.ColumnElement[str] = sa.literal_column("'egress'")
"""A literal: with a parameter no database would look into the index below."""
sa.Index(
    "ix_trail_lines_egress",
    lines.c.seq,
    sqlite_where=lines.c.kind == EGRESS,
    postgresql_where=lines.c.kind == EGRESS,
)

under_way = sa.Table(
    "trail_open",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("owner", sa.String(64), nullable=False, index=True),
)
"""Attempts that have no end yet, and whose they are. Not part of the chain: it could be made again
from the lines."""
