"""Everyone in the sandbox but pid 1, which is the one that asks."""

from __future__ import annotations

import os
import signal


def kill_all() -> None:
    """In one call that no fork can outrun."""
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass


def reap_all() -> None:
    """Returns when nobody is left."""
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


def newest_pid() -> int:
    """The last process id that was given out in this pid namespace; 0 if that cannot be known."""
    try:
        file = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    text = os.read(file, 100)
    os.close(file)
    last = text.rpartition(b" ")[2].strip()
    return int(last) if last.isdigit() else 0
