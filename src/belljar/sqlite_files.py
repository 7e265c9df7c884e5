"""Files of SQLite that nobody else may read.

SQLite's locks are of the kind that a process loses when it closes any descriptor of the file.
Another process then takes the database for unused and deletes its write-ahead log, with all that is
written there from then on. So a file that is there is never opened here, but for its name alone
(O_PATH).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


class NotAFile(OSError):
    pass


def make_private(file: Path, *, create: bool) -> None:
    """Made if it is missing and `create` says so; a link is not followed. Raises OSError."""
    if create:
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            os.close(os.open(file, flags, 0o600))  # nobody has it open: it was not there
            return
        except FileExistsError:
            pass
    name = os.open(file, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        mode = os.fstat(name).st_mode
        if not stat.S_ISREG(mode):
            raise NotAFile("not a file")
        if mode & 0o077:
            os.chmod(f"/proc/self/fd/{name}", stat.S_IMODE(mode) & 0o700)
    finally:
        os.close(name)
