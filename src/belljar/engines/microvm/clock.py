"""How fast this processor's time stamp counter runs, which an emulated guest sees as it is."""

from __future__ import annotations

import ctypes
import mmap
import time

_READ = bytes.fromhex("0f31 48c1e220 4809d0 c3")  # rdtsc; shl rdx,32; or rax,rdx; ret
_MEASURE_S = 0.05


def tsc_khz() -> int:
    """0 where it cannot be measured: the guest then has to find out by itself.

    The smallest of several errors counts: whoever is interrupted between two readings is wrong."""
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except (OSError, PermissionError):
        return 0
    page.write(_READ)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(address)

    def look() -> tuple[int, int]:
        best = (1 << 62, 0, 0)
        for _ in range(20):
            before = time.monotonic_ns()
            ticks = read()
            after = time.monotonic_ns()
            best = min(best, (after - before, (before + after) // 2, ticks))
        return best[1], best[2]

    then_ns, then = look()
    time.sleep(_MEASURE_S)
    now_ns, now = look()
    return round((now - then) * 1e6 / (now_ns - then_ns))
