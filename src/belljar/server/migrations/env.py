"""Alembic runs this file; the connection is given by `state.py`."""

from __future__ import annotations

from alembic import context

from belljar.server.state import METADATA, VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
