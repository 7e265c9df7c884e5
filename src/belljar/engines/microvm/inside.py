"""Pid 1 of the guest: makes the root a sandbox, warms an interpreter up, and waits to be copied.

    host → guest   what to make ready                          (once, before the snapshot)
    guest → host   READY, or FAULT: the snapshot is taken now
    host → guest   the size of the disk, and whether there is time   (in every copy)
    then the agent's protocol

From the host each message is four bytes of length and one JSON object. Whatever fails before the
agent is up goes to the console as a traceback, and the machine stops.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import socket
import struct
import sys
import time
from typing import Any

from belljar.engines.linux import capabilities, kernel, landlock, places, seccomp
from belljar.runtimes.guest import standalone

from . import group

PORT = "vport0p1"
PRIVATE = "/run/belljar"
"""Closed to the code."""
BOX = f"{PRIVATE}/box"
MODULES = "/usr/lib/belljar/modules"
EMPTY = f"{PRIVATE}/empty"
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
        "sys",
        "thread-self",
        "uptime",
        "version",
    )
)
_PORT_S = 20.0
_HIDDEN = kernel.MS_NOSUID | kernel.MS_NODEV
_FINIT_MODULE = 313
_SIOCSIFFLAGS = 0x8914
_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}
_SETTINGS = {
    "kernel/dmesg_restrict": "1",
    "kernel/kptr_restrict": "2",
    "kernel/modules_disabled": "1",
    "kernel/perf_event_paranoid": "3",
    "kernel/sysrq": "0",
    "kernel/unprivileged_bpf_disabled": "1",
    "net/core/somaxconn": "32",
    "user/max_user_namespaces": "0",
    "vm/panic_on_oom": "0",
}


def main() -> None:
    """Never returns."""
    stream = _start()
    ground = receive(stream)
    _environment(ground)
    kept = ground["kept"]
    _writable_places(ground["disk_bytes"], ground["disk_files"], kept=kept)
    _cover_kernel_information()
    _lock_up(kept=kept)
    names = ("workspace", "input", "output", *(("tmp", "store") if kept else ()))
    configuration = {
        "stream": [stream, stream],
        "roots": {name: f"{BOX}/{name}" for name in names},
        "user": [places.UID, places.GID],
        "package_path": ground["package_path"],
        "preload": ground["preload"],
        "rehearsal": ground["rehearsal"],
        "rehearse": True,
        "snapshot": True,
        "kept": kept,
    }
    standalone.main(json.dumps(configuration), Machine())


class Machine(standalone.Place):
    """What this wall adds inside."""

    watched = group.Counted

    def __init__(self) -> None:
        self._program = seccomp.build()
        self._landlock = landlock.abi()
        self._kept = False
        self._hosts = -1

    def keep(self) -> None:
        self._kept = True
        _files_as(places.UID, places.GID)

    def enter(self) -> None:
        _files_as(0, 0)
        group.enter()
        capabilities.bound()

    def seal(self) -> None:
        capabilities.empty()
        seccomp.install(self._program)
        if self._landlock:
            landlock.restrict(writable=places.WRITABLE)

    def awake(self, stream: int) -> None:
        told = receive(stream)
        options = f"size={told['disk_bytes']},nr_inodes={told['disk_files']},mode=0755"
        kernel.mount(None, BOX, None, kernel.MS_REMOUNT | _HIDDEN, options)

    def name_hosts(self, text: str) -> None:
        _files_as(0, 0)
        try:
            if self._hosts < 0:
                self._hosts = _mount_hosts()
            os.ftruncate(self._hosts, 0)
            os.pwrite(self._hosts, text.encode(), 0)
        finally:
            if self._kept:
                self.keep()

    def own_modules(self) -> list[str]:
        return [name for name in sys.modules if name.partition(".")[0] == "belljar"]


# -- boot ------------------------------------------------------------------------------------------


def _start() -> int:
    """The few things that the stream to the host needs; returns it."""
    kernel.mount("proc", "/proc", "proc", _HIDDEN | kernel.MS_NOEXEC, "hidepid=2")
    kernel.mount("run", "/run", "tmpfs", _HIDDEN, "mode=0755,size=1m")
    os.mkdir(PRIVATE, 0o700)
    for name in sorted(os.listdir(MODULES)):
        _load(f"{MODULES}/{name}")
    os.mkdir(f"{PRIVATE}/dev")
    kernel.mount("dev", f"{PRIVATE}/dev", "devtmpfs", kernel.MS_NOSUID | kernel.MS_NOEXEC)
    return _port(f"{PRIVATE}/dev/{PORT}")


def _load(path: str) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        kernel.syscall(_FINIT_MODULE, file, b"\0", 0)
    finally:
        os.close(file)


def _port(path: str) -> int:
    """The driver finds its devices in its own time."""
    deadline = time.monotonic() + _PORT_S
    while True:
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def _environment(ground: dict[str, Any]) -> None:
    if not ground["file_system"]:
        return
    disk = f"{PRIVATE}/dev/vda"
    os.makedirs(ground["mount"], exist_ok=True)
    kernel.mount(disk, ground["mount"], ground["file_system"], kernel.MS_RDONLY | _HIDDEN)


def _files_as(uid: int, gid: int) -> None:
    """Whose rights count when we do something to files; all other rights stay what they are."""
    libc = ctypes.CDLL(None)
    libc.setfsgid(gid)
    libc.setfsuid(uid)


def _writable_places(disk_bytes: int, disk_files: int, *, kept: bool) -> None:
    """One tmpfs, so one quota (L4), seen at each writable place; /data/input read-only.

    The agent has its own way to all of them, below a folder that is closed to the code."""
    _devices()
    os.mkdir(BOX)
    options = f"size={disk_bytes},nr_inodes={disk_files},mode=0755"
    kernel.mount("belljar", BOX, "tmpfs", _HIDDEN, options)
    for target in (*places.WRITABLE, places.INPUT):
        source = f"{BOX}/{target.rpartition('/')[2]}"
        os.mkdir(source, 0o755)
        if target != places.INPUT or kept:
            os.chown(source, places.UID, places.GID)
        kernel.mount(source, target, None, kernel.MS_BIND)
    for name in ("tmp", "shm"):
        os.chmod(f"{BOX}/{name}", 0o1777)
    if kept:
        os.mkdir(f"{BOX}/store", 0o700)
        os.chown(f"{BOX}/store", places.UID, places.GID)
    read_only = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | _HIDDEN
    kernel.mount(None, places.INPUT, None, read_only)


def _mount_hosts() -> int:
    """A file over /etc/hosts that only root can write; returns it, open."""
    path = f"{BOX}/hosts"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.fchmod(file, 0o644)
    kernel.mount(path, "/etc/hosts", None, kernel.MS_BIND)
    return file


def _devices() -> None:
    """A /dev of harmless ones; the machine's own are below PRIVATE."""
    kernel.mount("dev", "/dev", "tmpfs", kernel.MS_NOSUID | kernel.MS_NOEXEC, "mode=0755,size=64k")
    for name, (major, minor) in _DEVICES.items():
        os.mknod(f"/dev/{name}", 0o020666, os.makedev(major, minor))
        os.chmod(f"/dev/{name}", 0o666)
    for name, to in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{to}", f"/dev/{name}")
    os.symlink("pts/ptmx", "/dev/ptmx")
    for name in ("pts", "shm"):
        os.mkdir(f"/dev/{name}")
    options = "newinstance,ptmxmode=0666,mode=0620,max=64"
    kernel.mount("devpts", "/dev/pts", "devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC, options)
    read_only = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY
    kernel.mount(None, "/dev", None, read_only | kernel.MS_NOSUID | kernel.MS_NOEXEC)


def _lock_up(*, kept: bool) -> None:
    kernel.sethostname("belljar")
    _loopback_up()
    os.mkdir(group.FOLDER)
    kernel.mount("cgroup2", group.FOLDER, "cgroup2", _HIDDEN | kernel.MS_NOEXEC)
    group.make(kept=kept)
    for name, value in _SETTINGS.items():
        try:
            with open(f"/proc/sys/{name}", "w") as file:
                file.write(value)
        except OSError:
            continue  # another kernel may lack one
    os.chmod("/", 0o755)
    read_only = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | _HIDDEN
    for path in ("/", "/run"):
        kernel.mount(None, path, None, read_only)
    for kind, most in (
        (resource.RLIMIT_NOFILE, 65_536),
        (resource.RLIMIT_NPROC, 65_536),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 64 * 1024),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, 1024),
    ):
        resource.setrlimit(kind, (most, most))


def _cover_kernel_information() -> None:
    """What /proc has beside the processes themselves: it is the guest's own, but code that finds
    its way by it need not know what it runs on."""
    os.mkdir(EMPTY)
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() or entry.name in PROC_VISIBLE or entry.is_symlink():
            continue
        if entry.is_dir(follow_symlinks=False):
            kernel.mount(EMPTY, entry.path, None, kernel.MS_BIND)
        else:
            kernel.mount("/dev/null", entry.path, None, kernel.MS_BIND)


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as endpoint:
        fcntl.ioctl(endpoint, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", 1))


# -- messages --------------------------------------------------------------------------------------


def receive(stream: int) -> dict[str, Any]:
    (size,) = struct.unpack(">I", _exactly(stream, 4))
    found: dict[str, Any] = json.loads(_exactly(stream, size))
    return found


def _exactly(stream: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(stream, size - len(data))
        if not more:
            time.sleep(0.001)  # nobody at the other end yet
        data += more
    return data
