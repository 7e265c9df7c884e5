"""Taking the oldest lines out, so that the rest still verifies: a new line says where the trail was
cut, and with which hash the first line that is left goes on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from belljar.errors import TrailError
from belljar.trail import chain, records
from belljar.trail.tables import lines, under_way

PIECE = 20_000
"""The most lines that one transaction takes out."""


def days_ago(days: float) -> str:
    return records.stamp(datetime.now(UTC) - timedelta(days=days))


def prune(connection: sa.Connection, *, before: str, by: str) -> tuple[int, bool]:
    """Within a transaction that has the turn. How many lines were taken out, and whether there are
    more to take out.

    Never past an attempt that is under way, and never the newest line."""
    first, last = connection.execute(
        sa.select(sa.func.min(lines.c.seq), sa.func.max(lines.c.seq))
    ).one()
    if first is None:
        return 0, False
    kept = sa.select(lines.c.seq).where(lines.c.time >= before).order_by(lines.c.seq).limit(1)
    busy = sa.select(sa.func.min(under_way.c.seq))
    bounds = (connection.execute(kept).scalar(), connection.execute(busy).scalar(), last)
    wanted = min(bound for bound in bounds if bound is not None)
    cut = min(wanted, first + PIECE)
    if cut <= first:
        return 0, False
    after = connection.execute(sa.select(lines.c.hash).where(lines.c.seq == cut - 1)).scalar_one()
    newest = connection.execute(sa.select(lines.c.hash).where(lines.c.seq == last)).scalar_one()
    if not (chain.is_hash(after) and chain.is_hash(newest)):
        raise TrailError(
            f"the trail cannot be pruned at line {cut}: it is damaged there",
            hint="belljar trail verify",
        )
    told = {
        "kind": "pruned",
        "time": records.now(),
        "by": records.text(by),
        "before": before,
        "first": cut,
        "after": after,
        "count": cut - first,
    }
    connection.execute(lines.insert(), [chain.line(last + 1, newest, told)._asdict()])
    connection.execute(lines.delete().where(lines.c.seq < cut))
    return cut - first, cut < wanted
