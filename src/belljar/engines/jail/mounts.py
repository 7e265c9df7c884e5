"""The mounts of the jail, done in the zygote and in each new sandbox.

The *template* root is built once per zygote from a plan (see root.py) and is read-only. Each
sandbox gets a copy of it with its own writable places, /proc and terminals on top.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence

from belljar.engines.linux import kernel
from belljar.engines.linux.places import BOX, EMPTY, GID, INPUT, PROC_SYS, UID, WRITABLE

from .given import Given, make_points

HOSTS_FILE = "/etc/hosts"
_HIDDEN = kernel.MS_NOSUID | kernel.MS_NODEV

# What of /proc stays visible beside the processes themselves; everything else there is covered.
PROC_VISIBLE = frozenset(
    (
        "cpuinfo",
        "filesystems",
        "loadavg",
        "meminfo",
        "mounts",
        "net",
        "self",
        "stat",
        "thread-self",
        "uptime",
        "version",
    )
)


def build_root(steps: Iterable[Sequence[str]]) -> None:
    """Executes the plan in a mount namespace of our own and makes the result the root."""
    steps = list(steps)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE, None)
    # Opened before the new root covers /tmp, where a source may lie.
    sources = {s[2]: os.open(s[2], os.O_PATH) for s in steps if s[0] in ("bind", "device")}
    new = "/tmp"
    kernel.mount("belljar", new, "tmpfs", _HIDDEN, "mode=0755,size=4m")
    covers = []
    for kind, place, *what in steps:
        target = new + place
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if kind == "folder":
            os.makedirs(target, exist_ok=True)
        elif kind == "file":
            with open(target, "w") as file:
                file.write(what[0])
        elif kind == "link":
            os.symlink(what[0], target)
        elif kind == "cover":
            covers.append(target)
        else:
            _bind(sources[what[0]], target, device=kind == "device")
    for target in covers:
        if os.path.isdir(target):
            kernel.mount(new + EMPTY, target, None, kernel.MS_BIND, None)
            kernel.mount_setattr(target, attr_set=kernel.MOUNT_ATTR_RDONLY)
    # Packages that are imported ahead may want to write a cache; sandboxes cover this with theirs.
    for place in ("/tmp", "/dev/shm"):
        kernel.mount("belljar", new + place, "tmpfs", _HIDDEN, "mode=1777,size=64m")
    # A procfs has to be visible here for sandboxes to be allowed theirs; it shows the zygote alone.
    kernel.mount("proc", new + "/proc", "proc", _HIDDEN | kernel.MS_NOEXEC, None)
    for source in sources.values():
        os.close(source)
    os.chdir(new)
    kernel.pivot_root(".", ".")
    kernel.umount2(".", kernel.MNT_DETACH)
    os.chdir("/")
    read_only = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | _HIDDEN
    kernel.mount(None, "/", None, read_only, None)


def _bind(source: int, target: str, *, device: bool) -> None:
    path = f"/proc/self/fd/{source}"
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        open(target, "w").close()
    # Recursive, because in a user namespace the mounts below a folder cannot be left behind.
    kernel.mount(path, target, None, kernel.MS_BIND | kernel.MS_REC, None)
    # Read-only also for devices: they can be written to all the same, but not dated or owned.
    flags = kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_RDONLY
    flags |= kernel.MOUNT_ATTR_NOEXEC if device else kernel.MOUNT_ATTR_NODEV
    kernel.mount_setattr(target, attr_set=flags)


def proc_covers() -> tuple[list[str], list[str]]:
    """The files and folders of /proc to hide, from the zygote's own view of it."""
    files: list[str] = []
    folders: list[str] = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() or entry.name in PROC_VISIBLE or entry.name == "sys":
            continue
        # What only the host's root may read is closed already: that user does not exist inside.
        if entry.is_symlink() or not entry.stat(follow_symlinks=False).st_mode & 0o004:
            continue
        (folders if entry.is_dir(follow_symlinks=False) else files).append(entry.path)
    return files, folders


def writable_places(
    *, disk_bytes: int, disk_files: int, kept: bool, given: Sequence[Given] = ()
) -> dict[str, int]:
    """One tmpfs, so one quota (L4), seen at each writable place. Returns the agent's descriptors.

    /data/input lies on the same tmpfs but is mounted read-only; the agent keeps the only writable
    way to it, a descriptor of a mount that is then detached.
    """
    options = f"size={disk_bytes},nr_inodes={disk_files},mode=0755,uid={UID},gid={GID}"
    kernel.mount("belljar", BOX, "tmpfs", _HIDDEN, options)
    for target in (*WRITABLE, INPUT):
        source = BOX + "/" + target.rpartition("/")[2]
        os.mkdir(source, 0o755)
        kernel.mount(source, target, None, kernel.MS_BIND, None)
    make_points(f"{BOX}/input", given)
    for name in ("tmp", "shm"):
        os.chmod(f"{BOX}/{name}", 0o1777)
    read_only = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | _HIDDEN
    kernel.mount(None, INPUT, None, read_only, None)
    roots = {}
    names = ["workspace", "input", "output"]
    if kept:
        os.mkdir(f"{BOX}/store", 0o700)
        names += ["tmp", "shm", "store"]
    for name in names:
        roots[name] = os.open(f"{BOX}/{name}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    kernel.umount2(BOX, kernel.MNT_DETACH)
    return roots


class HostsFile:
    """/etc/hosts of one sandbox. It lies on a tmpfs that is seen nowhere else, so the code can
    neither write to it nor fill it up."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._mount = -1

    def make(self) -> None:
        """In a mount namespace that no code is in. Before Linux 6.15 or so a mount cannot be copied
        while it is attached nowhere, so the tmpfs is attached for a moment."""
        hidden = _HIDDEN | kernel.MS_NOEXEC
        kernel.mount("belljar", BOX, "tmpfs", hidden, "size=64k,nr_inodes=8,mode=0755")
        try:
            opener = os.open(f"{BOX}/hosts", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
            with open(opener, "w") as file:
                file.write(self._text)
            self._mount = kernel.detached_copy(f"{BOX}/hosts")
        finally:
            kernel.umount2(BOX, kernel.MNT_DETACH)
        kernel.change_detached(self._mount, attr_set=kernel.MOUNT_ATTR_RDONLY)

    def attach(self) -> None:
        """In the sandbox's mount namespace, when it is built or while it lives."""
        with contextlib.suppress(OSError):  # if there is an earlier one
            kernel.umount2(HOSTS_FILE, kernel.MNT_DETACH)
        kernel.attach(self._mount, HOSTS_FILE)
        os.close(self._mount)


def own_proc() -> None:
    kernel.mount("proc", "/proc", "proc", _HIDDEN | kernel.MS_NOEXEC, None)


def cover_proc(files: Iterable[str], folders: Iterable[str]) -> None:
    for path in files:
        kernel.mount("/dev/null", path, None, kernel.MS_BIND, None)
    for path in folders:
        kernel.mount(EMPTY, path, None, kernel.MS_BIND, None)
    kernel.mount(PROC_SYS, "/proc/sys", None, kernel.MS_BIND, None)


def own_terminals() -> None:
    options = "newinstance,ptmxmode=0666,mode=0620,max=64"
    kernel.mount("devpts", "/dev/pts", "devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC, options)
