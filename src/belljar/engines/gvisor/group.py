"""The host's limits on one sandbox: gVisor's own processes and all that they hold."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import secrets

from belljar.engines.linux import cgroups
from belljar.errors import EngineError
from belljar.model import MIB, Limits

OVERHEAD_BYTES = 192 * MIB
"""gVisor's kernel, its file server, and a warm interpreter, until it is known what they hold."""
SLACK = 0.08
"""What the code may have is counted inside, so that it is stopped before the host's kernel takes
the whole sandbox away; but what it costs the host may not be much more."""
HOST_TASKS = 128
TASKS_PER_PROCESS = 12
"""A process inside is two tasks outside with systrap, and up to nine with ptrace."""


def claim() -> cgroups.Hierarchy | None:
    """A place for groups, cleared of what a dead Belljar left; None if there is none here."""
    found = cgroups.detect()
    if isinstance(found, cgroups.Absent):
        return None
    try:
        found.claim()
    except EngineError:
        return None
    cgroups.sweep(found)
    return found


def create(hierarchy: cgroups.Hierarchy, limits: Limits) -> cgroups.Group:
    group = cgroups.Group.create(hierarchy, secrets.token_hex(8))
    try:
        apply(group, limits)
    except BaseException:
        group.remove()
        raise
    return group


def apply(group: cgroups.Group, limits: Limits, *, held_bytes: int = 0) -> None:
    """`held_bytes`: what the sandbox holds while it waits, if that is known."""
    own = held_bytes + int(SLACK * limits.memory_bytes) if held_bytes else OVERHEAD_BYTES
    outside = dataclasses.replace(limits, memory_bytes=limits.memory_bytes + own)
    group.apply(outside, reserve=HOST_TASKS + (TASKS_PER_PROCESS - 1) * limits.processes)


async def removed(group: cgroups.Group) -> None:
    """A group can go once its last process has left the kernel; what is left is swept later."""
    for pause_s in (0, 0.001, 0.005, 0.02, 0.05, 0.2, 1.0):
        await asyncio.sleep(pause_s)
        if group.remove():
            return
        group.kill()


def cores(cpus: float) -> list[int]:
    """Without a group the share becomes a number of cores, chosen at random to spread the load."""
    allowed = sorted(os.sched_getaffinity(0))
    count = min(len(allowed), max(1, round(cpus)))
    return sorted(secrets.SystemRandom().sample(allowed, count))
