"""Tenants, keys, CPU seconds."""

from __future__ import annotations

import sqlalchemy as sql
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "belljar_tenants",
        sql.Column("name", sql.String(64), primary_key=True),
        sql.Column("quotas", sql.Text, nullable=False),
    )
    op.create_table(
        "belljar_keys",
        sql.Column("id", sql.String(12), primary_key=True),
        sql.Column("hash", sql.String(64), nullable=False),
        sql.Column(
            "tenant", sql.String(64), sql.ForeignKey("belljar_tenants.name"), nullable=False
        ),
        sql.Column("operator", sql.Boolean, nullable=False),
        sql.Column("created", sql.Float, nullable=False),
    )
    op.create_table(
        "belljar_spent",
        sql.Column("tenant", sql.String(64), primary_key=True),
        sql.Column("day", sql.Integer, primary_key=True, autoincrement=False),
        sql.Column("cpu_s", sql.Float, nullable=False),
    )
