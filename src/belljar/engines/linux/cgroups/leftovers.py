"""What a dead Belljar left behind, and its removal."""

from __future__ import annotations

import fcntl
import os
import time

from . import files
from .hierarchy import PREFIX, Hierarchy
from .kill import clear
from .owner import looks_dead


def sweep(hierarchy: Hierarchy, *, wait_s: float = 2.0) -> int:
    """Remove the groups of dead owners, killing what still runs there; how many sandboxes it was.

    Waits for processes to die, up to `wait_s`: for the start, not for an event loop.
    """
    deadline = time.monotonic() + wait_s
    removed: set[str] = set()
    for place in hierarchy.places:
        for owner in files.folders(place):
            path = f"{place}/{owner}"
            lock = _lock_of_dead(owner, path)
            if lock < 0:
                continue
            try:
                for name in files.folders(path):
                    if clear(f"{path}/{name}", deadline=deadline):
                        removed.add(f"{owner}/{name}")
                files.rmdir(path)
            finally:
                os.close(lock)
    return len(removed)


def _lock_of_dead(owner: str, path: str) -> int:
    """A descriptor that locks a dead owner's folder, or -1.

    Dead takes two witnesses. The pid with its start time: the folder is older than its lock. The
    lock: the owner's pid may mean nothing in our namespace, or be hidden from us.
    """
    if not (owner.startswith(PREFIX) and looks_dead(owner.removeprefix(PREFIX))):
        return -1
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return -1
    return fd
