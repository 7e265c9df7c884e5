"""Whose folder it is: `<pid>-<starttime>-<n>`, a name that no later process can have."""

from __future__ import annotations

import itertools
import os
import re

from . import files

_OWNER = re.compile(r"(\d+)-(\d+)-\d+")
_serial = itertools.count()


def new_owner() -> str:
    """A name for a folder of this process; another one at every call."""
    pid = os.getpid()
    return f"{pid}-{started(pid)}-{next(_serial)}"


def is_mine(owner: str) -> bool:
    """Whether this process made it; False in a forked copy of the one that did."""
    return owner.startswith(f"{os.getpid()}-")


def looks_dead(owner: str) -> bool:
    """Whether we see no such process; False also for a name that is no owner's."""
    match = _OWNER.fullmatch(owner)
    return match is not None and started(int(match[1])) != match[2]


def started(pid: int) -> str | None:
    """A process's start time in clock ticks; with the pid it names a process for good."""
    try:
        stat = files.read(None, f"/proc/{pid}/stat")
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()
