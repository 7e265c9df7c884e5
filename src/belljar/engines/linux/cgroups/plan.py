"""The writes that put limits in force: a pure function, so that their order can be tested."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Literal, NamedTuple

from belljar.model import Limits

Version = Literal[1, 2]

PERIOD_US = 100_000
SMALLEST_QUOTA_US = 1_000


class Write(NamedTuple):
    controller: str
    file: str
    text: str


WEIGHT_PER_CORE = 2
_WEIGHTS = {1: ("cpu.shares", 1024, 262_144), 2: ("cpu.weight", 100, 10_000)}
"""The file, the weight of one process, and the largest weight that the kernel takes."""


def weight(busy: int, version: Version, *, cores: int = os.cpu_count() or 1) -> Write:
    """What this many sandboxes in use weigh together: each as much as a process, up to a number per
    core, since a few hundred would leave a process of the host next to nothing."""
    file, one, most = _WEIGHTS[version]
    processes = max(1, min(busy, WEIGHT_PER_CORE * cores))
    return Write("cpu", file, str(min(processes * one, most)))


def plan(
    limits: Limits,
    version: Version,
    *,
    reserve: int = 1,
    files: Collection[str] = (),
    previous: Limits | None = None,
    cpu: bool = True,
) -> list[Write]:
    """The writes that put limits in force, in order.

    `reserve`: processes of ours in the group, on top of what the code may have. `files`: what this
    kernel offers, for the optional ones. `previous`: the limits in force, None for a new group.
    `cpu`: whether the share of the processor can be limited here.
    """
    memory = str(limits.memory_bytes)
    processes = Write("pids", "pids.max", str(limits.processes + reserve))
    quota = str(max(SMALLEST_QUOTA_US, round(limits.cpus * PERIOD_US)))
    if version == 2:
        # memory.oom.group stays 0: 1 would kill the agent too, and what it knows about the run.
        no_swap = Write("memory", "memory.swap.max", "0")
        return [
            Write("memory", "memory.max", memory),
            *([no_swap] if no_swap.file in files else []),
            processes,
            *([Write("cpu", "cpu.max", f"{quota} {PERIOD_US}")] if cpu else []),
        ]
    both = [Write("memory", "memory.limit_in_bytes", memory)]
    if "memory.memsw.limit_in_bytes" in files:
        both.append(Write("memory", "memory.memsw.limit_in_bytes", memory))
        # The kernel refuses a memory limit above memory plus swap at any moment between.
        if previous is not None and limits.memory_bytes > previous.memory_bytes:
            both.reverse()
    else:
        both.append(Write("memory", "memory.swappiness", "0"))
    sockets = "memory.kmem.tcp.limit_in_bytes"  # v1 counts socket buffers only when asked to
    return [
        *both,
        *([Write("memory", sockets, memory)] if sockets in files else []),
        processes,
        Write("cpu", "cpu.cfs_period_us", str(PERIOD_US)),
        Write("cpu", "cpu.cfs_quota_us", quota),
    ]
