"""File locks: how many a sandbox holds.

The kernel counts a lock in no cgroup and obeys no limit of their number (RLIMIT_LOCKS means nothing
since Linux 2.4), so one process could fill the machine with them, 184 bytes at a time. SQLite and
many others need them, so they are not refused but counted, from outside.

To ask who holds locks is dear: /proc/locks stops all locking on the machine for some milliseconds.
To ask how much memory the kernel holds that it cannot give back costs microseconds. So that is what
is watched, and only when it has grown are the locks looked at.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection

MOST_LOCKS = 8192
"""In one sandbox; no program that we know of comes near."""
GROWN_BYTES = 16 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CHUNK = 65_536
_MOST_READS = 256
"""The kernel hands out a page at a time, the newest locks first: 19,000 of them in 0.1 s."""


class Growth:
    """Whether the kernel's memory has grown enough to be worth a look."""

    def __init__(self) -> None:
        self._file = os.open("/proc/vmstat", os.O_RDONLY | os.O_CLOEXEC)
        self._least = self._now()

    def seen(self) -> bool:
        now = self._now()
        if now - self._least > GROWN_BYTES:
            self._least = now
            return True
        self._least = min(self._least, now)
        return False

    def _now(self) -> int:
        text = os.pread(self._file, 8192, 0)
        _, _, rest = text.partition(b"nr_slab_unreclaimable ")
        return int(rest.split(None, 1)[0]) * _PAGE

    def close(self) -> None:
        os.close(self._file)


def hoarders(sandboxes: Collection[int]) -> set[int]:
    """Which of these hold too many locks, each given by the pid of its first process."""
    held: Counter[int] = Counter()
    owners: dict[int, int] = {}
    found: set[int] = set()
    file = os.open("/proc/locks", os.O_RDONLY | os.O_CLOEXEC)
    try:
        left = b""
        for _ in range(_MOST_READS):
            chunk = os.read(file, _CHUNK)
            if not chunk:
                break
            *lines, left = (left + chunk).split(b"\n")
            for line in lines:
                fields = line.split()
                # "7: -> POSIX …" is one that waits for number 7.
                pid = int(fields[5 if fields[1] == b"->" else 4])
                owner = owners.get(pid)
                if owner is None:
                    owner = owners[pid] = _owner(pid, sandboxes)
                held[owner] += 1
            found = {owner for owner, count in held.items() if owner and count > MOST_LOCKS}
            if found:
                break
    finally:
        os.close(file)
    return found


def _owner(pid: int, sandboxes: Collection[int]) -> int:
    """The sandbox that a process is in, or 0: all in it descend from its first."""
    while pid > 1 and pid not in sandboxes:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:  # it has ended, and with it its locks
            return 0
    return pid if pid > 1 else 0
