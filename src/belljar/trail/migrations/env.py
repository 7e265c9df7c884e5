"""What Alembic runs. The connection comes from `store`, which holds the lock."""

from __future__ import annotations

from alembic import context

from belljar.trail.tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
