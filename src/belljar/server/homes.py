"""One server at a time in a BELLJAR_HOME: it removes what uploads of an earlier one have left, and
knows its datasets without asking the disk."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import BinaryIO

from belljar.errors import Unavailable


def take(folder: Path) -> BinaryIO:
    """The folder is this server's until what this returns is closed, or the process has ended."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.fdopen(os.open(folder / "lock", flags, 0o600), "rb")
    except OSError as error:
        raise Unavailable(
            "the server's folder cannot be opened",
            hint="is BELLJAR_HOME writable?",
            detail=str(error),
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise Unavailable(
            "another server uses this BELLJAR_HOME",
            hint="give each server a home of its own; servers may share keys and CPU seconds by "
            "state=URL",
            detail=str(folder),
        ) from error
    return lock
