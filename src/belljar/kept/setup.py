"""What a kept sandbox is told before its first run: limits, variables, how many states to keep."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from typing import Any

from belljar.engines.base import Branch, Inside
from belljar.holding import Held
from belljar.kept.options import Options
from belljar.kept.telling import whole

WORKSPACE = "/workspace"
CHECKPOINTS = 8


def first(held: Held, options: Options) -> dict[str, Any]:
    inside = _apply(held, options)
    return {
        **_common(held, inside),
        "woken": inside.wake_up() if inside.woken else None,
        "checkpoints": _states(held, options),
    }


async def move_in(
    held: Held, other: Held, branch: Branch, options: Options, *, at: int | None
) -> None:
    """A copy of `held`'s interpreter, as it is now or was before the run `at`, moves in behind the
    wall of `other`. Takes the descriptor of `branch`."""
    adopting = asyncio.ensure_future(_adopt(other, options))
    try:
        await held.ask("fork", run=at, descriptors=(branch.family,))
    except BaseException:
        adopting.cancel()
        raise
    finally:
        os.close(branch.family)
    await adopting


async def _adopt(held: Held, options: Options) -> None:
    given = {**_common(held, _apply(held, options)), "reseed": False}
    moved = await held.ask("adopt", set_up=given, checkpoints=_states(held, options))
    await held.admit(whole(moved.get("pid")))
    await held.ask("settle")


def _common(held: Held, inside: Inside) -> dict[str, Any]:
    return {
        "env": dict(held.env),
        "rlimits": dict(inside.rlimits),
        "folder": WORKSPACE,
        "package_path": held.packages.path,
        "watch_memory_bytes": inside.watch_memory_bytes,
        "cpus": inside.cpus,
        "driver": held.driver,
    }


def _states(held: Held, options: Options) -> int:
    """How many checkpoints there are to be."""
    if options.checkpoints:
        held.check_copies()
    if options.checkpoints is None:
        return 0 if held.driver else CHECKPOINTS
    return options.checkpoints


def _apply(held: Held, options: Options) -> Inside:
    """Checkpoints are processes, too, but not the code's."""
    limits = held.request.limits
    processes = limits.processes + _states(held, options) + 3
    return held.conversation.wall.apply(dataclasses.replace(limits, processes=processes))
