"""Removing a group whose processes are ending."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from .group import Group

PAUSES_S = (0, 0.001, 0.01, 0.05, 0.2, 1.0)


async def removed(group: Group, *, pauses_s: Sequence[float] = PAUSES_S) -> None:
    """A group can go once its last thread has left the kernel; what is left is swept later."""
    for pause_s in pauses_s:
        await asyncio.sleep(pause_s)
        if group.remove():
            return
        group.kill()
