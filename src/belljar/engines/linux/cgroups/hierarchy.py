"""A place for groups, and this process's folder in it."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Collection, Mapping

from . import files
from .kill import clear
from .owner import is_mine, new_owner
from .plan import Version, weight
from .scope import HOST_LEAF, Scope

PREFIX = "belljar-"
"""Of our folders' names: they lie beside groups that are not ours."""
CLOSE_S = 3.0
# pids comes first everywhere: who is in any group of a sandbox is in that one, so that killing by
# its list misses nobody, even when the host died between two of the moves.
CONTROLLERS = ("pids", "memory", "cpu", "cpuacct")
CONTROLLERS_V2 = ("memory", "pids", "cpu")
NEEDED_V2 = ("memory", "pids")
"""Some distributions do not hand cpu to users; there a sandbox is pinned to cores instead."""


class Hierarchy:
    """A place for groups. Claiming it makes this process's folder there, closing removes it."""

    def __init__(
        self,
        version: Version,
        folders: Mapping[str, str],
        *,
        step_aside: bool = False,
        enable: Collection[str] = CONTROLLERS_V2,
        limits_cpu: bool = True,
        scope: Scope | None = None,
    ) -> None:
        self.version: Version = version
        self.folders = dict(folders)
        """Controller → the group that holds our folder; on v2 the same for all."""
        self.step_aside = step_aside
        """v2: this process must first move into a leaf, because it sits in that group alone."""
        self.enable = tuple(enable) if version == 2 else ()
        self.limits_cpu = limits_cpu
        self.scope = scope
        """v2: the scope that systemd gave us, closed with this."""
        # v1 controllers may be mounted together, and v2 has them all in one: one name per folder.
        self.roots = tuple({folder: name for name, folder in self.folders.items()}.values())
        self.owner = ""
        self.files: frozenset[str] = frozenset()
        self.fds: dict[str, int] = {}
        self._busy = 0
        self._weighs = 1
        self._weight = weight(1, version)

    def describe(self) -> dict[str, str]:
        """Control → mechanism, for a result's `isolation`."""
        mechanism = f"cgroup-v{self.version}"
        cpu = mechanism if self.limits_cpu else "affinity"
        return {"memory": mechanism, "processes": mechanism, "cpu": cpu}

    def admit(self, pid: int) -> None:
        """To be called before one of our processes, or its child, enters a group. The groups of a
        scope can be entered only from inside it, so the process is moved there first."""
        if self.scope:
            self.scope.admit(pid)

    def busy(self, change: int) -> None:
        """Counts one more (1) or one fewer (-1) sandbox in use. Together they weigh as much as that
        many processes; otherwise a busy host would leave them the share of one (ADR 15)."""
        self._busy += change
        # The kernel takes a lock and goes through all cores: not at every start and end of a run.
        if not self._weighs // 2 <= self._busy <= self._weighs:
            self._weighs = max(1, self._busy)
            now = weight(self._weighs, self.version)
            if self.fds and self.limits_cpu and now != self._weight:
                self._weight = now
                files.attempt(self.fds["cpu"], now.file, now.text)

    @property
    def places(self) -> list[str]:
        return [self.folders[root] for root in self.roots]

    def claim(self) -> None:
        """Make this process's folder; idempotent. Before any child is started: see `step_aside`."""
        if self.fds:
            return
        self.owner = f"{PREFIX}{new_owner()}"
        made: dict[str, int] = {}
        try:
            if self.step_aside:
                self._step_aside(os.getpid())
            for place in self.places:
                files.enable(place, self.enable)
                made[place] = self._claim(place)
        except OSError as error:
            for place, fd in made.items():
                files.rmdir(f"{place}/{self.owner}")
                os.close(fd)
            raise files.engine_error("claim", error) from error
        self.fds = {controller: made[place] for controller, place in self.folders.items()}
        self.files = frozenset(
            name for place in self.places for name in os.listdir(f"{place}/{self.owner}")
        )

    def close(self) -> None:
        """Give the folder up. What is still in it is ended, and waited for as long as it takes on a
        busy machine; else it stays, for `sweep`."""
        fds, self.fds = set(self.fds.values()), {}
        # A forked copy of this process has the descriptors too, but the folder is not its own.
        mine = bool(fds) and is_mine(self.owner.removeprefix(PREFIX))
        deadline = time.monotonic() + CLOSE_S
        for place in self.places if mine else ():
            own = f"{place}/{self.owner}"
            for name in files.folders(own):
                clear(f"{own}/{name}", deadline=deadline)
            files.rmdir(own)
        for fd in fds:
            os.close(fd)
        if self.scope and mine:
            self.scope.close()

    def _step_aside(self, pid: int) -> None:
        (place,) = self.places
        if files.members(None, place) - {pid}:
            raise OSError(errno.EBUSY, "other processes came into the group", place)
        leaf = f"{place}/{HOST_LEAF}"
        files.mkdir(leaf)
        files.write(None, f"{leaf}/cgroup.procs", str(pid))

    def _claim(self, place: str) -> int:
        own = f"{place}/{self.owner}"
        for _ in range(100):
            try:
                files.mkdir(own)
                files.enable(own, self.enable)
                fd = os.open(own, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # another Belljar, which cannot see our pid, took us for dead and swept it
            # The lock says "alive" also to a Belljar that cannot see our pid (another namespace).
            fcntl.flock(fd, fcntl.LOCK_SH)
            if files.inode(own) == os.fstat(fd).st_ino:
                return fd
            os.close(fd)
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), own)
