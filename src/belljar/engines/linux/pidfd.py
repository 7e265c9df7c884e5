"""A process known by a descriptor: no other one can be hit by mistake, even after its end."""

from __future__ import annotations

import signal

from .wait import readable


def kill(pidfd: int) -> None:
    """Also if it has ended, or the descriptor has been closed and is -1."""
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        pass


async def exited(pidfd: int) -> None:
    """Of a pid namespace's first process: the kernel lets it exit only after everything else."""
    await readable(pidfd)
