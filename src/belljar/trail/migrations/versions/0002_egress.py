"""Lines about the network are found without reading all others."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    about_the_network = sa.text("kind = 'egress'")
    op.create_index(
        "ix_trail_lines_egress",
        "trail_lines",
        ["seq"],
        sqlite_where=about_the_network,
        postgresql_where=about_the_network,
    )
