"""Mounts of the host's files that a sandbox is given: when it is made, from the sandbox that it is
a branch of, and while it lives.

They arrive as descriptors of detached mounts (lender.py), read-only already. Where they go is a
place that no code can change: the sandbox's root is read-only, and what lies below /data/input is
made here, before any code runs.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterable, Sequence

from belljar.engines.linux import kernel
from belljar.engines.linux.places import GID, INPUT, PACKAGES, UID

from . import family

INHERITED = (INPUT, PACKAGES)
"""What a branch has from its parent, with everything that is mounted below."""
JOIN_S = 10.0
_FIRST_HELD = 16
_LAST_DESCRIPTOR = 1 << 20


class Given:
    def __init__(self, mount: int, place: str, *, folder: bool) -> None:
        self.mount = mount
        self.place = place
        self.folder = folder


def hold(mounts: Sequence[int], described: Sequence[dict]) -> list[Given]:  # type: ignore[type-arg]
    """For a new sandbox, under numbers that nothing else in it has."""
    return [
        Given(
            fcntl.fcntl(mount, fcntl.F_DUPFD_CLOEXEC, _FIRST_HELD),
            what["place"],
            folder=what["folder"],
        )
        for mount, what in zip(mounts, described, strict=True)
    ]


def close_others(first: int, given: Iterable[Given]) -> None:
    """Closes every descriptor from `first` on but these."""
    for mount in sorted(one.mount for one in given):
        os.closerange(first, mount)
        first = mount + 1
    os.closerange(first, _LAST_DESCRIPTOR)


def make_points(folder: str, given: Iterable[Given]) -> None:
    """Something to mount on for what goes below /data/input, in the `folder` that it will be."""
    for one in given:
        if one.place.startswith(INPUT + "/"):
            point = folder + one.place[len(INPUT) :]
            os.makedirs(point if one.folder else os.path.dirname(point), exist_ok=True)
            if not one.folder:
                os.close(os.open(point, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444))


def attach(given: Iterable[Given]) -> None:
    for one in given:
        kernel.attach(one.mount, one.place)
        os.close(one.mount)


def attach_to(sandbox: family.Parent, given: Iterable[Given]) -> None:
    """In a sandbox that lives."""
    join(sandbox, lambda: attach(given))


def join(
    sandbox: family.Parent,
    work: Callable[[], None],
    *,
    before: Callable[[], None] | None = None,
) -> None:
    """Does something to the mounts of a sandbox that lives. The process that does it is in none of
    the sandbox's pid namespaces: the code can neither see nor touch it. `before`: what it
    does first, in a mount namespace that only it is in."""
    ours, theirs = socket.socketpair()
    pid, _ = kernel.clone3(0)
    if pid == 0:
        try:
            if before:
                kernel.unshare(kernel.CLONE_NEWNS)
                before()
            kernel.setns(sandbox.user)
            kernel.setns(sandbox.mounts)
            os.setresgid(GID, GID, GID)
            os.setresuid(UID, UID, UID)
            work()
            theirs.send(b"ok")
        except OSError as error:
            theirs.send(str(error).encode())
        finally:
            os._exit(0)
    theirs.close()
    with ours:
        ours.settimeout(JOIN_S)
        told = ours.recv(1000)
    if told != b"ok":
        raise OSError(told.decode() or "the process that mounts ended without a word")
