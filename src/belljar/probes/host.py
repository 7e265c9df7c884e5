"""What the host sees of a run: its processes, by the name they gave themselves, and memory."""

from __future__ import annotations

import ctypes
import os
import secrets
import struct
import time
from contextlib import suppress
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CACHESTAT = 451


def new_mark() -> str:
    """A process name that is nobody else's; the kernel keeps fifteen bytes of it."""
    return "bj" + secrets.token_hex(6)


def named(mark: str) -> list[int]:
    """The processes of that name, in every pid namespace below this one. Zombies count."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                if Path(entry.path, "comm").read_text().strip() == mark:
                    found.append(int(entry.name))
    return found


def eventually_named(mark: str, *, within_s: float = 30.0) -> list[int]:
    """The processes of that name, as soon as there is one."""
    deadline = time.monotonic() + within_s
    while not (found := named(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def mentioning(text: str) -> set[int]:
    """The processes in whose command line `text` stands: some are nobody's children."""
    found = set[int]()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                if text in Path(entry.path, "cmdline").read_text(errors="replace"):
                    found.add(int(entry.name))
    return found


def left_over(mark: str, *, within_s: float = 5.0) -> list[int]:
    """The processes of that name that are still there after so long."""
    deadline = time.monotonic() + within_s
    while (found := named(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def descendants(pid: int) -> set[int]:
    """All processes below `pid`."""
    parents: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                parents[int(entry.name)] = _parent(int(entry.name))
    found, new = set[int](), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def ancestors(pid: int) -> set[int]:
    """The parents of `pid`, up to but without pid 1."""
    found = set[int]()
    with suppress(OSError):
        while (pid := _parent(pid)) > 1:
            found.add(pid)
    return found


def still_alive(pids: set[int], *, within_s: float) -> set[int]:
    """Those of `pids` that have not ended after so long. A zombie has ended."""
    deadline = time.monotonic() + within_s
    while True:
        alive = {pid for pid in pids if _runs(pid)}
        if not alive or time.monotonic() > deadline:
            return alive
        time.sleep(0.05)


def resident_bytes() -> int:
    """The memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def kernel_bytes() -> int:
    """What the kernel holds and cannot give back, and what waits in all sockets of TCP."""
    with open("/proc/vmstat") as vmstat:
        pages = next(int(line.split()[1]) for line in vmstat if "slab_unreclaimable" in line)
    with open("/proc/net/sockstat") as sockets:
        pages += next(int(line.split()[-1]) for line in sockets if line.startswith("TCP:"))
    return pages * PAGE_BYTES


def pages_in_memory(path: Path) -> int | None:
    """How many pages of a file the kernel has in memory; None where it does not say (cachestat,
    Linux 6.5)."""
    libc = ctypes.CDLL(None, use_errno=True)
    answer = ctypes.create_string_buffer(40)
    asked = struct.pack("=QQ", 0, path.stat().st_size)
    with path.open("rb") as file:
        refused = libc.syscall(ctypes.c_long(_CACHESTAT), file.fileno(), asked, answer, 0)
    return None if refused else int(struct.unpack("=5Q", answer.raw)[0])


def _runs(pid: int) -> bool:
    try:
        return _stat(pid)[0] not in "ZX"
    except OSError:
        return False


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _stat(pid: int) -> list[str]:
    """State, parent and so on: what follows the name, which may hold spaces and brackets."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
