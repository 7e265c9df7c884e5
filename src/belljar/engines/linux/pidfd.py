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


def pid_of(pidfd: int) -> int:
    """As /proc shows it here; -1 if it has ended."""
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        return int(next(line.split()[1] for line in file if line.startswith("Pid:")))


async def exited(pidfd: int) -> None:
    """Of a pid namespace's first process: the kernel lets it exit only after everything else."""
    await readable(pidfd)
