"""Removing a group whose processes are ending."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from belljar.errors import EngineError

from .group import Group

PAUSES_S = (0, 0.001, 0.01, 0.05, 0.2, 1.0)
LAST_PAUSES_S = (2.0, 5.0)
"""As long as processes are left: on a busy machine the end of a large one takes time."""


async def removed(group: Group, *, pauses_s: Sequence[float] = PAUSES_S) -> None:
    """A group can go once its last thread has left the kernel; what is left is swept later. Raises
    EngineError if processes are left: they stay limited."""
    for pause_s in pauses_s:
        await asyncio.sleep(pause_s)
        if group.remove():
            return
        group.kill()
    for pause_s in LAST_PAUSES_S:
        if not group.members():
            break
        await asyncio.sleep(pause_s)
        group.kill()
    if group.remove():
        return
    group.hold()
    if left := group.members():
        raise EngineError(
            f"{len(left)} processes of a destroyed sandbox were killed and have not ended: "
            f"{', '.join(map(str, sorted(left)[:10]))}",
            hint="they wait in the kernel, and hold their memory until it lets them go",
        )
