"""A small process that makes mounts of the host's files for sandboxes to have.

Each is *detached*: no path leads to it, only the descriptor that is handed to the host, which hands
it on to a sandbox. It is read-only and private before anybody sees it. Root may make such mounts
where it is; anybody else needs a mount namespace of their own for it, so this is a process of its
own, which dies with the host.

    control socket (SOCK_SEQPACKET), one JSON object per message:
      host → lender   {} + the host's pidfd
      host → lender   {path, identity, executable, reader}, and again …
      lender → host   {folder} + the mount, or {error, stale}
"""

from __future__ import annotations

import os
import select
import signal
import socket
import stat
from collections.abc import Callable

from belljar.engines.linux import kernel
from belljar.engines.linux.control import receive, send

_LENT = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV

Reader = tuple[int, int]
"""The uid and gid that a sandbox has on the host."""


class Refused(Exception):
    def __init__(self, why: str, *, stale: bool = False) -> None:
        super().__init__(why)
        self.stale = stale


def live(descriptor: int) -> None:
    """Never returns."""
    control = socket.socket(fileno=descriptor)
    _, (owner,) = receive(control)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _allow_mounts()
    except OSError as error:
        refusal = f"{error}"
    else:
        refusal = ""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(owner, select.POLLIN)
    while True:
        if owner in (ready for ready, _ in poll.poll()):
            os._exit(0)
        order, _ = receive(control)
        if refusal:
            send(control, {"error": refusal, "stale": False})
        else:
            _answer(control, order)


def _allow_mounts() -> None:
    """Without the privilege here, in namespaces where we have it: the same files are in them."""
    try:
        os.close(kernel.detached_copy("/dev/null"))
        return
    except PermissionError:
        uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        _have_ids_mapped(lambda: kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS))
        return
    kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        _write(f"/proc/self/{name}", text)


def _have_ids_mapped(leave: Callable[[], None]) -> None:
    """For a container's root: a process that stays behind maps all ids but root's, which takes no
    further capability, so that we can ask as a sandbox what it may read."""
    maps = {name: _all_but_root(name) for name in ("uid_map", "gid_map")}
    ours, left = os.getpid(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(left[1])
            if os.read(left[0], 1):
                for name, text in maps.items():
                    _write(f"/proc/{ours}/{name}", text)
                os._exit(0)
        finally:
            os._exit(1)
    try:
        leave()
        os.write(left[1], b"l")
    finally:
        os.close(left[0])
        os.close(left[1])
        _, ended = os.waitpid(pid, 0)
    if ended:
        raise PermissionError("no ids could be mapped")


def _all_but_root(name: str) -> str:
    lines = []
    with open(f"/proc/self/{name}") as file:
        for line in file:
            start, _, count = map(int, line.split())
            first = max(start, 1)
            if first < start + count:
                lines.append(f"{first} {first} {start + count - first}")
    return "\n".join(lines)


def _answer(control: socket.socket, order: dict) -> None:  # type: ignore[type-arg]
    try:
        reader = order["reader"] and tuple(order["reader"])
        folder, mount = lend(
            order["path"],
            identity=tuple(order["identity"]),
            executable=order["executable"],
            reader=reader,
        )
    except Refused as refused:
        send(control, {"error": str(refused), "stale": refused.stale})
    except OSError as error:
        send(control, {"error": f"{error}", "stale": False})
    else:
        send(control, {"folder": folder}, [mount])
        os.close(mount)


def lend(
    path: str, *, identity: tuple[int, int], executable: bool, reader: Reader | None
) -> tuple[bool, int]:
    """Whether it is a folder, and a mount of it. `identity`: its device and inode as the host saw
    them: what was put in its place since is not lent. `reader`: somebody else who must be able to
    read it; None where sandboxes are the user that we are."""
    source = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        status = os.fstat(source)
        if (status.st_dev, status.st_ino) != identity:
            raise Refused("it is not what it was a moment ago", stale=True)
        folder = stat.S_ISDIR(status.st_mode)
        if not folder and not stat.S_ISREG(status.st_mode):
            raise Refused("it is neither a file nor a folder")
        mount = _copy(source, executable=executable)
        # In a folder any file may be its owner's alone.
        if reader and (folder or not _readable(mount, reader, folder=folder)) and not executable:
            os.close(mount)
            mount = _owned_by(source, status, reader)
            if not _readable(mount, reader, folder=folder):
                os.close(mount)
                raise Refused("its permissions let nobody but its owner read it")
        return folder, mount
    finally:
        os.close(source)


def _copy(source: int, *, executable: bool) -> int:
    mount = kernel.detached_copy("", directory=source)
    attributes = _LENT if executable else _LENT | kernel.MOUNT_ATTR_NOEXEC
    try:
        kernel.change_detached(mount, attr_set=attributes, propagation=kernel.MS_PRIVATE)
    except OSError:
        os.close(mount)
        raise
    return mount


def _owned_by(source: int, status: os.stat_result, reader: Reader) -> int:
    """A mount in which the owner's files are the reader's; without that where the file system
    cannot do it."""
    mount = _copy(source, executable=False)
    try:
        users = _user_namespace(status, reader)
        try:
            kernel.change_detached(mount, attr_set=kernel.MOUNT_ATTR_IDMAP, users=users)
        finally:
            os.close(users)
    except OSError:
        pass
    return mount


def _user_namespace(status: os.stat_result, reader: Reader) -> int:
    """One in which the owner of a file is called what the reader is called on the host."""
    left, leave = os.pipe()
    entered, enter = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(leave)
            kernel.unshare(kernel.CLONE_NEWUSER)
            os.write(enter, b"u")
            os.read(left, 1)
        finally:
            os._exit(0)
    try:
        os.close(enter)
        if not os.read(entered, 1):
            raise OSError("no user namespace could be made")
        _write(f"/proc/{pid}/uid_map", f"{status.st_uid} {reader[0]} 1")
        _write(f"/proc/{pid}/gid_map", f"{status.st_gid} {reader[1]} 1")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for descriptor in (left, leave, entered):
            os.close(descriptor)
        os.waitpid(pid, 0)


def _readable(mount: int, reader: Reader, *, folder: bool) -> bool:
    """Asked by a process that is the reader: permissions are more than nine bits."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(reader[1], reader[1], reader[1])
            os.setresuid(reader[0], reader[0], reader[0])
            wanted = os.R_OK | os.X_OK if folder else os.R_OK
            os._exit(0 if os.access(f"/proc/self/fd/{mount}", wanted) else 1)
        finally:
            os._exit(2)
    _, ended = os.waitpid(pid, 0)
    return ended == 0


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
