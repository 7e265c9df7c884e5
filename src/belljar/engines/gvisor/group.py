"""The host's limits on one sandbox: gVisor's own processes and all that they hold."""

from __future__ import annotations

import dataclasses
import os
import secrets

from belljar.engines.linux import cgroups
from belljar.model import MIB, Limits

OVERHEAD_BYTES = 192 * MIB
"""gVisor's kernel, its file server, and a warm interpreter, until it is known what they hold."""
SLACK = 0.08
"""What the code may have is counted inside, so that it is stopped before the host's kernel takes
the whole sandbox away; but what it costs the host may not be much more."""
HOST_TASKS = 128
TASKS_PER_PROCESS = 12
"""A process inside is two tasks outside with systrap, and up to nine with ptrace."""
PAUSES_S = (0, 0.001, 0.005, 0.02, 0.05, 0.2, 1.0)
"""Between attempts to remove a group."""


def create(hierarchy: cgroups.Hierarchy, limits: Limits) -> cgroups.Group:
    outside, reserve = _outside(limits, held_bytes=0)
    return cgroups.limited(hierarchy, outside, reserve=reserve)


def apply(group: cgroups.Group, limits: Limits, *, held_bytes: int) -> None:
    """`held_bytes`: what the sandbox holds while it waits, if that is known."""
    outside, reserve = _outside(limits, held_bytes=held_bytes)
    group.apply(outside, reserve=reserve)


def _outside(limits: Limits, *, held_bytes: int) -> tuple[Limits, int]:
    """What the host lets gVisor have for a sandbox with these limits, and how many tasks more."""
    own = held_bytes + int(SLACK * limits.memory_bytes) if held_bytes else OVERHEAD_BYTES
    outside = dataclasses.replace(limits, memory_bytes=limits.memory_bytes + own)
    return outside, HOST_TASKS + (TASKS_PER_PROCESS - 1) * limits.processes


def cores(cpus: float) -> list[int]:
    """Without a group the share becomes a number of cores, chosen at random to spread the load."""
    allowed = sorted(os.sched_getaffinity(0))
    count = min(len(allowed), max(1, round(cpus)))
    return sorted(secrets.SystemRandom().sample(allowed, count))
