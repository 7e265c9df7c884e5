"""Sandboxes inside a sandbox: where the branches of a kept one live.

A branch starts as a fork of the parent's interpreter, which has no privilege at all. It can move
into namespaces of its own only if those belong to a user namespace that its own user made, one
level below: whoever made a namespace has every capability in it. So the zygote makes a sandbox in
the name of the parent's user, inside the parent's user and pid namespaces, and the fork walks in.
The parent can therefore see and end its branches; a branch sees neither parent nor siblings. They
share a network namespace, in which there is nothing but loopback. What the parent was given to
read, its branches have too: copies of the parent's mounts, made by who can join its namespaces.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence

from belljar.engines.linux import kernel
from belljar.engines.linux.places import GID, UID

from . import netns

SPAWN_S = 5.0
MOST_ENTRANCES = 8
BUILDERS = 4
"""Processes that make a sandbox inside another one, in its groups for a moment."""


class Parent:
    """What it takes to make a sandbox inside another one."""

    def __init__(
        self, pidfd: int, user: int, pids: int, mounts: int, network: netns.Network
    ) -> None:
        self.pidfd = pidfd
        self.network = network
        self.user = user
        self.pids = pids
        self.mounts = mounts
        self.mover: socket.socket | None = None
        """To a process that can `move` another one into its groups."""

    @classmethod
    def young(cls, pid: int, pidfd: int, network: netns.Network) -> Parent:
        """Before it has changed its ids: afterwards nobody may look at it any more."""
        return cls(pidfd, *_namespaces(f"/proc/{pid}"), network)

    def close(self) -> None:
        os.close(self.user)
        os.close(self.pids)
        os.close(self.mounts)
        if self.mover:
            self.mover.close()


def spawn(
    parent: Parent, flags: int, inherited: Sequence[str], enter: Callable[[], None]
) -> Parent | list[int]:
    """A new process in new namespaces inside the parent's. In that process: copies of the mounts
    that the parent has at the places `inherited`. `enter` takes it into its cgroup, while the
    parent's code cannot see it."""
    ours, theirs = socket.socketpair()
    parent.network.enter()
    pid, _ = kernel.clone3(0)
    if pid:
        theirs.close()
        with ours:
            # The processes in between are for a moment where the code could stop them.
            ours.settimeout(SPAWN_S)
            _, handles, _, _ = socket.recv_fds(ours, 1, 4)
        if len(handles) != 4:
            raise OSError("the kernel refused a sandbox inside this one")
        pidfd, user, pids, mounts = handles
        return Parent(pidfd, user, pids, mounts, parent.network)
    ours.close()
    receiver, giver = socket.socketpair()
    enter()
    try:
        kernel.setns(parent.user)
        kernel.setns(parent.pids)
        if kernel.clone3(0)[0]:  # only the next child is in that pid namespace
            kernel.setns(parent.mounts)
            socket.send_fds(giver, [b"m"], [kernel.detached_copy(place) for place in inherited])
            os._exit(0)
        giver.close()
        os.setresgid(GID, GID, GID)
        os.setresuid(UID, UID, UID)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
        if kernel.clone3(flags)[0]:
            os._exit(0)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{UID} {UID} 1"),
            ("gid_map", f"{GID} {GID} 1"),
        ):
            descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY)
            os.write(descriptor, text.encode())
            os.close(descriptor)
        _, copies, _, _ = socket.recv_fds(receiver, 1, len(inherited))
        if len(copies) != len(inherited):
            os._exit(1)
        receiver.close()
        handles = [os.pidfd_open(os.getpid()), *_namespaces("/proc/self")]
        socket.send_fds(theirs, [b"b"], handles)
    except OSError:
        os._exit(1)
    return copies


def expect_move(sandbox: Parent) -> None:
    """Forks off a process in the sandbox's pid namespace that waits for `move`: a warm zygote takes
    milliseconds to fork, and has them now. It stays in the zygote's user namespace, so the code
    cannot take what it holds."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        if kernel.clone3(0)[0]:
            sandbox.mover = ours
            return
        try:
            ours.close()
            kernel.setns(sandbox.pids)
            if kernel.clone3(0)[0]:  # only the next child is in that pid namespace
                os._exit(0)
            pid, entrances, _, _ = socket.recv_fds(theirs, 100, MOST_ENTRANCES)
            if pid:
                for entrance in entrances:
                    os.write(entrance, pid)
                theirs.send(b"ok")
        except OSError as error:
            theirs.send(str(error).encode())
        finally:
            os._exit(0)


def move(sandbox: Parent, pid: int, entrances: Sequence[int]) -> None:
    """Moves the process that has this pid inside into the sandbox's groups. By that number no
    process outside can be meant, and whoever is in the groups ends with the sandbox."""
    mover, sandbox.mover = sandbox.mover, None
    if mover is None:
        raise OSError("there was no room for a process that moves it")
    with mover:
        mover.settimeout(SPAWN_S)
        socket.send_fds(mover, [b"%d" % pid], entrances)
        told = mover.recv(1000)
    if told != b"ok":
        raise OSError(told.decode() or "the process that moves it ended without a word")


def _namespaces(process: str) -> tuple[int, int, int]:
    flags = os.O_RDONLY | os.O_CLOEXEC
    user, pids, mounts = (os.open(f"{process}/ns/{name}", flags) for name in ("user", "pid", "mnt"))
    return user, pids, mounts
