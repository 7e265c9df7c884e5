"""The tables of the trail, step by step (Alembic), the same for SQLite and PostgreSQL."""
