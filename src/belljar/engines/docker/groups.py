"""A container's control group, read directly where the daemon is on this machine.

The kernel's own counters are better than what the daemon tells: they are there at once, and they
know of every process that was killed for lack of memory, not only of the first one.
"""

from __future__ import annotations

import os
import posixpath

from belljar.engines.linux.cgroups import Group, Hierarchy
from belljar.engines.linux.cgroups.find import Mount, parse_membership, parse_mounts
from belljar.engines.linux.cgroups.hierarchy import CONTROLLERS
from belljar.model import Limits


class ContainerGroup(Group):
    """A group that somebody else made and will remove."""

    __slots__ = ()

    def assume(self, limits: Limits) -> None:
        """These limits are in force already."""
        self._limits = limits

    def memory(self) -> int:
        """Bytes in use now."""
        return self._read_memory()

    def _reset_peak(self) -> bool:
        try:
            return super()._reset_peak()
        except OSError:  # only root may
            return False


class Groups:
    """Containers share their parent groups, so that those are opened once."""

    def __init__(self) -> None:
        self._parents: dict[tuple[str, ...], Hierarchy] = {}

    def of(self, pid: int, container: str) -> ContainerGroup | None:
        """The group of a container whose first process is `pid`; None where we cannot see it."""
        try:
            with open(f"/proc/{pid}/cgroup") as file:
                membership = parse_membership(file.read())
            with open("/proc/self/mountinfo") as file:
                mounted = parse_mounts(file.read())
        except OSError:
            return None
        found = _folders(membership, mounted)
        if found is None or not all(
            container in posixpath.basename(at) for at in found[1].values()
        ):
            return None  # another machine's pid, or a group that is not the container's alone
        version, folders = found
        names = {posixpath.basename(at) for at in folders.values()}
        if len(names) != 1:
            return None
        try:
            return ContainerGroup(self._parent(version, folders), names.pop())
        except OSError:
            return None

    def close(self) -> None:
        for hierarchy in self._parents.values():
            for descriptor in set(hierarchy.fds.values()):
                os.close(descriptor)
        self._parents.clear()

    def _parent(self, version: int, folders: dict[str, str]) -> Hierarchy:
        above = {name: posixpath.dirname(at) for name, at in folders.items()}
        key = tuple(above.values())
        hierarchy = self._parents.get(key)
        if hierarchy is None:
            hierarchy = Hierarchy(2 if version == 2 else 1, above)
            opened = {
                place: os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                for place in hierarchy.places
            }
            hierarchy.fds = {name: opened[place] for name, place in above.items()}
            hierarchy.files = frozenset(
                name for place in set(folders.values()) for name in os.listdir(place)
            )
            self._parents[key] = hierarchy
        return hierarchy


def _folders(membership: dict[str, str], mounted: list[Mount]) -> tuple[int, dict[str, str]] | None:
    """The version, and controller → the container's folder."""
    first = {
        name: at
        for name in CONTROLLERS
        for mount in mounted
        if mount.kind == "cgroup"
        and name in mount.options
        and (at := _visible(mount, membership.get(name, "")))
    }
    if len(first) == len(CONTROLLERS):
        return 1, first
    for mount in mounted:
        if mount.kind == "cgroup2" and (at := _visible(mount, membership.get("", ""))):
            return 2, dict.fromkeys(CONTROLLERS, at)
    return None


def _visible(mount: Mount, path: str) -> str:
    relative = posixpath.relpath(path, mount.root) if path else ".."
    if path.startswith("/..") or relative.startswith(".."):
        return ""
    return posixpath.normpath(posixpath.join(mount.point, relative))
