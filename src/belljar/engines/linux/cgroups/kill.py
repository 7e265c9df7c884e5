"""Killing everyone in a group, and nobody else."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

from . import files

_ROUNDS = 50
_BATCH = 64


def kill_all(members: Callable[[], set[int]]) -> bool:
    """SIGKILL until no process is left that was not yet signalled; False if one may be."""
    spared = {os.getpid()}
    signalled = set[int]()
    for _ in range(_ROUNDS):
        inside = members()
        fresh = sorted(inside - signalled - spared)
        if not fresh:
            return not inside & spared
        for start in range(0, len(fresh), _BATCH):
            _kill_batch(fresh[start : start + _BATCH], members)
        signalled.update(fresh)
    return False


def _kill_batch(pids: list[int], members: Callable[[], set[int]]) -> None:
    # A pid read from a list may belong to a stranger by now. A pidfd cannot change its process, so
    # a pid that is still a member after its pidfd was opened is the right one.
    opened: dict[int, int] = {}
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                opened[pid] = os.pidfd_open(pid)
        inside = members()
        for pid, fd in opened.items():
            if pid in inside:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
    finally:
        for fd in opened.values():
            os.close(fd)


def clear(path: str, *, deadline: float) -> bool:
    """Ends what is in a group and removes it; False when that takes too long."""
    while not files.rmdir(path):
        for file, text in (("cgroup.kill", "1"), ("pids.max", "0")):
            files.attempt(None, f"{path}/{file}", text)
        kill_all(lambda: files.members(None, path))
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True
