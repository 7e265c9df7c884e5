"""A copy of a kept sandbox's state moves into a new one: both keepers' sides of it."""

from __future__ import annotations

import os
import signal
import socket
import struct
from typing import TYPE_CHECKING

from . import protocol
from .files import Refused
from .lines import Broken, Crowded, Lines
from .processes import send_signal
from .snapshots import Snapshots
from .states import State, greeting, settled

if TYPE_CHECKING:
    from .keeper import Keeper

FAMILY_S = 10.0
"""How long the two keepers of a fork wait for each other."""
_NAMESPACES = ("user", "mnt", "ipc", "uts", "cgroup", "pid")
_NO_STORE = -1


class Branches:
    def __init__(self, keeper: Keeper, snapshots: Snapshots, store: int = _NO_STORE) -> None:
        self._keeper = keeper
        self._snapshots = snapshots
        self._store = store
        self._family = -1
        self._newcomer: tuple[int, Lines] | None = None

    def ask_fork(self, ask: dict) -> dict:  # type: ignore[type-arg]
        """Comes with a socket to the keeper of the new sandbox."""
        (family,) = self._keeper.host.take(1)
        passed = [family]
        runs = self._keeper.runs
        try:
            runs.none_under_way()
            run = ask["run"]
            source = runs.state if run is None else self._keeper.checkpoints.get(run)
            if source is None:
                raise Refused("lost" if run is None else "unknown", "there is no such state")
            with socket.socket(fileno=os.dup(family)) as other:
                other.settimeout(FAMILY_S)
                _, namespaces, _, _ = socket.recv_fds(other, 1, len(_NAMESPACES))
                passed += namespaces
                other.settimeout(None)
                content = protocol.json_bytes({"manifest": self._snapshots.manifest(run)})
                head = struct.pack(">I", len(content))
                socket.send_fds(other, [head], [self._store] if self._store >= 0 else [])
                other.sendall(content)
            source.lines.send({"fork": {"namespaces": len(namespaces)}}, (*namespaces, family))
        except Broken:
            raise Refused("lost", "the interpreter does not answer") from None
        except Crowded:
            raise Refused("busy", "too many descriptors of this user are under way") from None
        finally:
            for descriptor in passed:
                os.close(descriptor)
        return {}

    def offer(self, family: int) -> None:
        """In a new sandbox that a branch will move into: tells the parent's keeper where to."""
        self._family = family
        here = [os.open("/proc/self/ns/" + name, os.O_RDONLY) for name in _NAMESPACES]
        with socket.socket(fileno=os.dup(family)) as other:
            socket.send_fds(other, [b"n"], here)
        for descriptor in here:
            os.close(descriptor)

    def ask_adopt(self, ask: dict) -> dict:  # type: ignore[type-arg]
        """Takes the files and then the copied interpreter, which is not our child. It waits until
        the host has put it into this sandbox's groups: `settle`."""
        with socket.socket(fileno=os.dup(self._family)) as other:
            other.settimeout(FAMILY_S)
            head, store, _, _ = socket.recv_fds(other, 4, 1)
            (size,) = struct.unpack(">I", head)
            content = b""
            while len(content) < size:
                piece = other.recv(size - len(content))
                if not piece:
                    raise Refused("lost", "the parent went away")
                content += piece
        if store:
            self._snapshots.lay_out(protocol.unpack(content)["manifest"], store[0])
            os.close(store[0])
        lines = Lines(self._family)
        try:
            pid = greeting(lines)
        except Broken:
            raise Refused("lost", "the interpreter could not be copied") from None
        if not _without_capabilities(pid):
            send_signal(pid, signal.SIGKILL, group=False)
            raise Refused("lost", "the copy kept privileges that it must not have")
        self._newcomer = (pid, lines)
        self._keeper.set_up = ask["set_up"]
        self._keeper.meter.set_up(ask["set_up"])
        self._keeper.checkpoints.most = ask["checkpoints"]
        return {"files": bool(store), "pid": pid}

    def ask_settle(self, ask: dict) -> dict:  # type: ignore[type-arg]
        """The copied interpreter goes on from here."""
        assert self._newcomer is not None
        (pid, lines), self._newcomer = self._newcomer, None
        stdout_in, stdout_out = os.pipe2(os.O_CLOEXEC)
        stderr_in, stderr_out = os.pipe2(os.O_CLOEXEC)
        try:
            lines.send({"streams": 2}, (stdout_out, stderr_out))
        except Crowded:
            raise Refused("busy", "too many descriptors of this user are under way") from None
        for descriptor in (stdout_out, stderr_out):
            os.close(descriptor)
        try:
            why = settled(lines)
        except Broken:
            why = "the copy ended"
        if why:
            raise Refused("lost", "what the parent has open could not be copied: %s" % why)
        for descriptor in (stdout_in, stderr_in):
            os.set_blocking(descriptor, False)
        self._keeper.runs.attend(State(pid, lines, stdout_in, stderr_in))
        self._keeper.found.tell()
        self._watch(pid)
        self._keeper.checkpoints.leave(1)
        self._keeper.reap()  # who helped the copy in: the code is to find nobody but itself
        return {}

    def _watch(self, pid: int) -> None:
        """The end of a process that is not our child, of which we learn no more than that."""
        pidfd = os.pidfd_open(pid)

        def gone() -> None:
            self._keeper.ignore(pidfd)
            os.close(pidfd)
            state = self._keeper.runs.state
            if state and state.pid == pid:  # a rollback may have put another in its place
                self._keeper.runs.ended(None)

        self._keeper.listen(pidfd, gone)


def _without_capabilities(pid: int) -> bool:
    with open("/proc/%d/status" % pid) as file:
        sets = [line.split()[1] for line in file if line.startswith(("CapPrm", "CapEff", "CapBnd"))]
    return len(sets) == 3 and all(int(found, 16) == 0 for found in sets)
