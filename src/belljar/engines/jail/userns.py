"""User namespaces: which ids the zygote and its sandboxes have on the host.

As root, the zygote owns a range of ids that no account uses, and each sandbox one id of that range.
An ordinary user has one id; every sandbox then has it too, told apart by its own namespace. No
sandbox has root's: RLIMIT_NPROC does not bind root, and root may read files in /proc that others
may not.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import NamedTuple

from belljar.engines.linux import places

RANGE = 65_536
RANGE_OF_FEW = 1024
"""In a container that has few ids."""
_FIRST = 0x4000_0000
_SLOTS = 8192
_TRIES = 256
_SYS_ADMIN = 1 << 21
_MAPS_OTHERS = 1 << 6 | 1 << 7
"""CAP_SETGID and CAP_SETUID: to map ids that are not one's own, and to change to them."""


class IdMap:
    """Ids 0 … count-1 inside the zygote are uid … uid+count-1 outside (gid likewise)."""

    def __init__(self, uid: int, gid: int, count: int, *, mounts_first: bool = False) -> None:
        self.uid = uid
        self.gid = gid
        self.count = count
        self.mounts_first = mounts_first
        """The zygote may mount without a user namespace. A container's root may not."""

    @property
    def has_range(self) -> bool:
        return self.count > 1


def effective_capabilities() -> int:
    """This process's, as a bit mask."""
    with open("/proc/self/status") as status:
        return int(next(line.split()[1] for line in status if line.startswith("CapEff:")), 16)


def is_privileged(euid: int, capabilities: int) -> bool:
    """True for root with the capabilities that the zygote uses; a container's may lack one."""
    wanted = _SYS_ADMIN | _MAPS_OTHERS
    return euid == 0 and capabilities & wanted == wanted


def is_stuck(euid: int, capabilities: int) -> bool:
    """True for root that cannot give sandboxes any id but its own."""
    return euid == 0 and capabilities & _MAPS_OTHERS != _MAPS_OTHERS


class _Claim(NamedTuple):
    pid: int
    ids: IdMap
    name: socket.socket | None


_claim: _Claim | None = None


def ours() -> IdMap:
    """What the zygotes of this process get, as long as it lives; PermissionError if that could only
    be root's id.

    A range is chosen at random, since other containers may share our ids and nothing else, and
    claimed by a name that the kernel gives to one socket at a time, and takes back by itself."""
    global _claim
    if _claim is None or _claim.pid != os.getpid():  # a fork has its own
        _claim = _claimed()
    return _claim.ids


def _claimed() -> _Claim:
    with open("/proc/self/uid_map") as file:
        extents = file.read()
    capabilities = effective_capabilities()
    for _ in range(_TRIES):
        ids = choose(
            extents,
            euid=os.geteuid(),
            egid=os.getegid(),
            slot=_any_slot(),
            capabilities=capabilities,
        )
        if not ids.has_range:
            return _Claim(os.getpid(), ids, None)
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            name.bind(f"\0belljar-ids-{ids.uid}")
            return _Claim(os.getpid(), ids, name)
        except OSError as error:
            name.close()
            if error.errno != errno.EADDRINUSE:
                raise
    raise PermissionError(f"{_TRIES} ranges of ids were tried, and other programs claim them all")


def _any_slot() -> int:
    return int.from_bytes(os.urandom(4), "little")


def choose(extents: str, *, euid: int, egid: int, slot: int, capabilities: int) -> IdMap:
    """`extents`: our own /proc/self/uid_map, which says which ids exist for us at all. `slot`: any
    number; which of the ranges there are."""
    if euid != 0:
        return IdMap(euid, egid, 1)
    if is_stuck(euid, capabilities):
        raise PermissionError("root lacks CAP_SETUID and CAP_SETGID, and no sandbox may be root")
    able = is_privileged(euid, capabilities)
    first = _FIRST + (slot % _SLOTS) * RANGE
    root_is_root = False
    for line in extents.splitlines():
        start, outside, count = (int(field) for field in line.split())
        if start <= first and first + RANGE <= start + count:
            return IdMap(first, first, RANGE, mounts_first=able)
        # Inside a container only few ids may exist; the upper part is the least likely to be used.
        if count >= 4096:
            half = count // 2
            first = start + half + slot % (half // RANGE_OF_FEW) * RANGE_OF_FEW
            return IdMap(first, first, RANGE_OF_FEW, mounts_first=able)
        root_is_root = root_is_root or (start, outside) == (0, 0)
    if root_is_root:
        raise PermissionError("root's own id is the only one here, and no sandbox may be root")
    return IdMap(euid, egid, 1)


def write_zygote_map(pid: int, ids: IdMap) -> None:
    if not ids.has_range:
        _write(pid, "setgroups", "deny")
    _write(pid, "uid_map", f"0 {ids.uid} {ids.count}")
    _write(pid, "gid_map", f"0 {ids.gid} {ids.count}")


def write_sandbox_map(pid: int, index: int) -> None:
    """`index`: the sandbox's id in the zygote's range; 0 when there is only the user's own."""
    _write(pid, "uid_map", f"{places.UID} {index} 1")
    _write(pid, "gid_map", f"{places.GID} {index} 1")


def _write(pid: int, name: str, text: str) -> None:
    descriptor = os.open(f"/proc/{pid}/{name}", os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
