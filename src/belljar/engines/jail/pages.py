"""Huge pages under the warm interpreter's heap.

A fork copies the parent's page tables and an exit takes them down again; with pandas loaded that is
most of what a sandbox costs. One huge page has one entry where 512 small ones have 512.
"""

from __future__ import annotations

from belljar.engines.linux import kernel

HUGE = 2 << 20
MADV_COLLAPSE = 25


def collapse() -> None:
    """Gathers this process' own memory into huge pages. An older kernel (before 6.1) refuses, which
    costs speed and nothing else."""
    with open("/proc/self/maps") as maps:
        lines = maps.readlines()
    for line in lines:
        span, permissions, _, _, inode, *name = line.split()
        if inode != "0" or permissions != "rw-p" or name not in ([], ["[heap]"]):
            continue
        first, last = (int(address, 16) for address in span.split("-"))
        start, end = -(-first // HUGE) * HUGE, last // HUGE * HUGE
        for address in range(start, end, HUGE):
            try:
                kernel.syscall(kernel.NUMBERS["madvise"], address, HUGE, MADV_COLLAPSE)
            except OSError:
                continue
