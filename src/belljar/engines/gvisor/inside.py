"""Pid 1 inside gVisor: makes the writable places, warms an interpreter up, and waits to be copied.

The agent is gVisor's root, the code is not: unlike Linux, gVisor lets a process kill pid 1 and look
at it if only the user is the same. What the agent does to files it does as the code's user.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys

from belljar.engines.linux import kernel, places, seccomp
from belljar.runtimes.guest import standalone, watch

GROUND = "/opt/belljar/lib/ground.json"
SIZE = struct.Struct(">Q")
"""The first word to each copy: how many bytes its disk has."""
_HIDDEN = kernel.MS_NOSUID | kernel.MS_NODEV


def main() -> None:
    """Never returns."""
    for stream in (0, 1):
        os.set_blocking(stream, True)  # what comes from the host is not, in gVisor
    with open(GROUND) as file:
        ground = json.load(file)
    store = make_places(ground["disk_bytes"], kept=ground["kept"])
    kernel.mount(places.EMPTY, "/proc/1", None, kernel.MS_BIND)
    for path in ("/dev/fuse", "/dev/net/tun"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir("/dev/net")
    roots: dict[str, str | int] = {
        "workspace": places.WORKSPACE,
        "input": places.INPUT,
        "output": places.OUTPUT,
    }
    if ground["kept"]:
        from belljar.runtimes.guest import resident  # noqa: F401 - later it cannot be read any more

        roots.update(tmp="/tmp", store=store)
    configuration = {
        "stream": [0, 1],
        "roots": roots,
        "user": [places.UID, places.GID],
        "package_path": ground["package_path"],
        "preload": ground["preload"],
        "rehearsal": ground["rehearsal"],
        "rehearse": True,
        "snapshot": True,
        "kept": ground["kept"],
    }
    sentry = Sentry(ground["disk_bytes"], store)
    as_code()
    standalone.main(json.dumps(configuration), sentry)


class Sentry(standalone.Place):
    """What this wall adds inside."""

    def __init__(self, disk_bytes: int, store: int = -1) -> None:
        self.watched = Metered
        self._disk_bytes = disk_bytes
        self._store = store
        """Where the files of checkpoints are, if the sandbox is kept."""
        self._program = seccomp.build()
        self._hosts = -1

    def enter(self) -> None:
        as_root()

    def seal(self) -> None:
        seccomp.install(self._program)

    def awake(self, stream: int) -> None:
        (disk_bytes,) = SIZE.unpack(_exactly(stream, SIZE.size))
        if disk_bytes == self._disk_bytes:
            return
        # gVisor cannot change the size of a tmpfs: a new one goes over it.
        names = (places.WORKSPACE, places.OUTPUT, "/tmp")
        before = {_identity(os.stat(name)): name for name in names}
        as_root()
        store = make_places(disk_bytes, kept=self._store >= 0)
        as_code()
        if store >= 0:
            os.dup2(store, self._store, inheritable=False)
            os.close(store)
        for descriptor in range(3, 64):
            try:
                name = before.get(_identity(os.fstat(descriptor)))
            except OSError:
                continue
            if name:
                opened = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                os.dup2(opened, descriptor, inheritable=False)
                os.close(opened)

    def name_hosts(self, text: str) -> None:
        as_root()
        try:
            if self._hosts < 0:
                self._hosts = mount_hosts()
            os.ftruncate(self._hosts, 0)
            os.pwrite(self._hosts, text.encode(), 0)
        finally:
            as_code()

    def own_modules(self) -> list[str]:
        return [name for name in sys.modules if name.partition(".")[0] == "belljar"]


class Metered(watch.Watched):
    """gVisor counts the memory of everything in it, each page once. What its kernel holds on the
    code's behalf belongs to the code too: files without content, sockets, mappings."""

    def __init__(self, memory_bytes: int, disk: int) -> None:
        super().__init__(memory_bytes, disk)
        self._kernel_before = self._kernel_now = _kernel_bytes()
        self._next_kernel = 0.0

    def _look(self, now: float) -> int:
        pids = sum(name.isdigit() for name in os.listdir("/proc")) - 1
        self._peak_processes = max(self._peak_processes, pids)
        if now >= self._next_kernel:  # it stops the whole kernel for a moment
            self._kernel_now = _kernel_bytes()
            self._next_kernel = now + watch.TELL_MS / 1000
        kernel_bytes = max(0, self._kernel_now - self._kernel_before)
        return sum(_sizes("/proc/meminfo", b"AnonPages:", b"Shmem:")) + kernel_bytes


def _kernel_bytes() -> int:
    return sum(_sizes("/proc/sentry-meminfo", b"HeapAlloc:"))


def _sizes(path: str, *keys: bytes) -> list[int]:
    with open(path, "rb") as file:
        lines = [line.split() for line in file]
    return [int(line[1]) * 1024 for line in lines if line and line[0] in keys]


def make_places(disk_bytes: int, *, kept: bool) -> int:
    """One tmpfs, so one quota (L4), seen at each writable place. Returns the only way to the files
    of checkpoints, if the sandbox is `kept`."""
    kernel.mount("belljar", places.BOX, "tmpfs", _HIDDEN, f"size={disk_bytes},mode=0777")
    sources = {target: f"{places.BOX}/{target.rpartition('/')[2]}" for target in places.WRITABLE}
    as_code()
    for target, source in sources.items():
        os.mkdir(source)
        os.chmod(source, 0o1777 if target in ("/tmp", "/dev/shm") else 0o755)
    store = -1
    if kept:
        os.mkdir(f"{places.BOX}/store", 0o700)
        store = os.open(f"{places.BOX}/store", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    as_root()
    for target, source in sources.items():
        os.makedirs(target, exist_ok=True)
        kernel.mount(source, target, None, kernel.MS_BIND | _HIDDEN)
    kernel.mount(places.EMPTY, places.BOX, None, kernel.MS_BIND)
    return store


def mount_hosts() -> int:
    """A file over /etc/hosts that only gVisor's root can write; returns it, open."""
    kernel.mount("belljar", places.BOX, "tmpfs", _HIDDEN, "size=64k,mode=0755")
    path = f"{places.BOX}/hosts"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.fchmod(file, 0o644)
    kernel.mount(path, "/etc/hosts", None, kernel.MS_BIND | _HIDDEN)
    kernel.mount(places.EMPTY, places.BOX, None, kernel.MS_BIND)
    return file


def as_code() -> None:
    os.setegid(places.GID)
    os.seteuid(places.UID)


def as_root() -> None:
    os.seteuid(0)
    os.setegid(0)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _exactly(stream: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(stream, size - len(data))
        if not more:
            os._exit(0)  # the host went away
        data += more
    return data
