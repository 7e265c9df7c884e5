"""Alembic runs this file; the connection is given by `state.py`."""

from __future__ import annotations

from alembic import context

from belljar.server.state import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table="belljar_server_version",
)
with context.begin_transaction():
    context.run_migrations()
