"""The parts of the jail, each tried for real: what `belljar doctor` asks a fresh interpreter to do.

It is the interpreter that the zygote runs: the kernel's answers may depend on which program asks
(AppArmor). Each trial is a process of its own that ends right after, in namespaces of its own where
it would change something, so that nothing of the host is touched.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from belljar.engines.linux import capabilities, kernel, landlock, places, seccomp

from . import mounts, netns, pages, userns

# -- the trials: each raises OSError, or returns a detail for the mechanism -----------------------


def _nothing() -> str:
    return ""


def _use_privilege() -> None:
    """A namespace can be made and yet be of no use: on Ubuntu AppArmor lets everybody have one, and
    then refuses every capability in it."""
    kernel.unshare(kernel.CLONE_NEWUTS)
    socket.sethostname("trial")


def _kernel_calls() -> str:
    os.close(os.pidfd_open(os.getpid()))
    os.close(os.memfd_create("trial"))
    try:
        kernel.mount_setattr("/belljar-does-not-exist", attr_set=kernel.MOUNT_ATTR_RDONLY)
    except OSError as error:  # which other one depends on our privileges
        if error.errno == errno.ENOSYS:
            raise
    return f"Linux {os.uname().release}"


def _own_id() -> str:
    ids = userns.ours()
    if not ids.has_range:
        raise OSError(errno.EPERM, "only one id is ours")
    return f"{ids.count} ids from {ids.uid}"


def _small_tmpfs() -> None:
    if not os.path.isdir("/tmp"):
        raise OSError(errno.ENOENT, "sandboxes are put together over /tmp: mkdir -m 1777 /tmp")
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE, None)
    kernel.mount("belljar", "/tmp", "tmpfs", kernel.MS_NOSUID, "size=64k,nr_inodes=16,mode=0755")


def _disk_quota() -> str:
    _small_tmpfs()
    try:
        Path("/tmp/full").write_bytes(bytes(1 << 20))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return ""
    raise OSError(errno.EFBIG, "a tmpfs of 64 KiB took more than that")


def _read_only_bind() -> str:
    _small_tmpfs()
    os.mkdir("/tmp/usr")
    kernel.mount("/usr", "/tmp/usr", None, kernel.MS_BIND | kernel.MS_REC, None)
    kernel.mount_setattr("/tmp/usr", attr_set=kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID)
    if not os.statvfs("/tmp/usr").f_flag & os.ST_RDONLY:
        raise OSError(errno.EINVAL, "a read-only bind is writable")
    return ""


def _new_root() -> str:
    _small_tmpfs()
    os.chdir("/tmp")
    kernel.pivot_root(".", ".")
    kernel.umount2(".", kernel.MNT_DETACH)
    if left := os.listdir("/"):
        raise OSError(errno.ENOTEMPTY, f"the old root is still there: {left[:3]}")
    return ""


def _own_proc() -> str:
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE, None)
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV, None)
    if others := [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]:
        raise OSError(errno.EINVAL, f"processes of others are visible: {others[:3]}")
    return ""


def _own_terminals() -> str:
    _small_tmpfs()
    os.mkdir("/tmp/pts")
    options = "newinstance,ptmxmode=0666,mode=0620"
    kernel.mount("devpts", "/tmp/pts", "devpts", kernel.MS_NOSUID, options)
    os.close(os.open("/tmp/pts/ptmx", os.O_RDWR))
    return ""


def _own_network() -> str:
    netns.Network(counted=True)
    return "loopback only"


def _short_queues() -> str:
    netns.Network(counted=True)
    if not netns.queues_are_limited():
        raise OSError(errno.ENOENT, "this kernel hides net.core.somaxconn in user namespaces")
    return ""


def _own_hosts() -> str:
    """What a sandbox with a network needs beside it; tried where nothing of the host is changed."""
    _small_tmpfs()
    for folder in ("/tmp/etc", f"/tmp{places.BOX}"):
        os.makedirs(folder)
    Path(f"/tmp{mounts.HOSTS_FILE}").touch()
    os.chdir("/tmp")
    kernel.pivot_root(".", ".")
    kernel.umount2(".", kernel.MNT_DETACH)
    hosts = mounts.HostsFile("127.0.0.1 belljar\n")
    hosts.make()
    hosts.attach()
    if Path(mounts.HOSTS_FILE).read_text() != "127.0.0.1 belljar\n" or os.listdir(places.BOX):
        raise OSError(errno.EINVAL, "the file is not there, or its scratch place still is")
    return ""


def _no_privileges() -> str:
    capabilities.drop()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if kernel.prctl(kernel.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1:
        raise OSError(errno.EPERM, "no-new-privileges did not stay")
    return ""


def _system_calls() -> str:
    seccomp.install(seccomp.build())
    try:
        kernel.unshare(kernel.CLONE_NEWUSER)
    except PermissionError:
        return "default deny"
    raise OSError(errno.EINVAL, "the filter is in place and filters nothing")


def _landlock() -> str:
    version = landlock.abi()
    if not version:
        raise OSError(errno.ENOSYS, "this kernel has no Landlock, or it is off")
    return f"ABI {version}" + (", with scopes for signals and sockets" if version >= 6 else "")


def _huge_pages() -> str:
    with mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[:] = bytes(4 << 20)
        memory.madvise(pages.MADV_COLLAPSE)
    return ""


@dataclass(frozen=True)
class Trial:
    name: str
    mechanism: str
    namespaces: int = 0
    attempt: Callable[[], str] = _nothing
    stand_in: str = ""
    """What takes over where this does not work; without one the control is essential."""
    advice: str = ""
    advised: int = 0
    """The only error that `advice` is about; 0: any that nothing else explains."""


_USER = kernel.CLONE_NEWUSER
_TREE = _USER | kernel.CLONE_NEWNS
_MASKED = "inside a container, /proc must be unmasked: --security-opt systempaths=unconfined"
_SHARED_UID = "one uid for all sandboxes, kept apart by their namespaces"
_NO_HOSTS = "sandboxes without network= and without mounts"
_COUNTED_SOCKETS = "the host watches how many sockets a sandbox has"
_QUEUES = "needs Linux 6.8 or newer"
_LSM = "add landlock to the kernel's lsm= parameter (Linux 5.13 or newer)"
_SMALL_PAGES = "ordinary pages, from which a heavy environment forks more slowly"
_HUGE = "needs Linux 6.1 or newer, built with CONFIG_TRANSPARENT_HUGEPAGE; no setting enables it"
_NO_FILTER = "this kernel was built without CONFIG_SECCOMP_FILTER: boot the distribution's own"
_REFUSED = "something refuses root namespaces of its own here: run Belljar as an ordinary user"

TRIALS: tuple[Trial, ...] = (
    Trial("kernel", "clone3, pidfd, memfd, mount_setattr", 0, _kernel_calls),
    Trial("user_namespaces", "user namespace", _USER),
    Trial("user", "a uid of its own for each sandbox", 0, _own_id, _SHARED_UID),
    Trial("processes_hidden", "pid namespace", _USER | kernel.CLONE_NEWPID),
    Trial("processes_hidden", "own /proc", _TREE | kernel.CLONE_NEWPID, _own_proc, advice=_MASKED),
    Trial("filesystem", "mount namespace", _TREE),
    Trial("filesystem", "read-only binds", _TREE, _read_only_bind),
    Trial("filesystem", "pivot_root", _TREE, _new_root),
    Trial("filesystem", "terminals of its own (devpts)", _TREE, _own_terminals),
    Trial("disk", "tmpfs with a quota", _TREE, _disk_quota),
    Trial("network", "net namespace", _USER, _own_network),
    Trial("network", "/etc/hosts of its own, with network=", _TREE, _own_hosts, _NO_HOSTS),
    Trial("sockets", "short queues", _USER, _short_queues, _COUNTED_SOCKETS, _QUEUES, errno.ENOENT),
    Trial("ipc", "ipc namespace", _USER | kernel.CLONE_NEWIPC),
    Trial("host_name", "uts namespace", _USER | kernel.CLONE_NEWUTS),
    Trial("groups_hidden", "cgroup namespace", _USER | kernel.CLONE_NEWCGROUP),
    Trial("privileges", "no capabilities, no-new-privileges", _USER, _no_privileges),
    Trial("system_calls", "seccomp allowlist", 0, _system_calls, advice=_NO_FILTER),
    Trial("landlock", "Landlock", 0, _landlock, "the private root alone", _LSM, errno.ENOSYS),
    Trial("huge_pages", "MADV_COLLAPSE", 0, _huge_pages, _SMALL_PAGES, _HUGE, errno.EINVAL),
)
# What the zygote does as root before it has a user namespace of its own.
_AS_ROOT = Trial(
    "filesystem",
    "root's own mount and pid namespaces",
    kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS,
    advice=_REFUSED,
)


def here() -> tuple[Trial, ...]:
    """Those that say something about this machine."""
    try:
        mounts_first = userns.ours().mounts_first
    except PermissionError:  # most will fail, and say so
        mounts_first = False
    return (*TRIALS[:3], _AS_ROOT, *TRIALS[3:]) if mounts_first else TRIALS


# -- trying ----------------------------------------------------------------------------------------


def main() -> None:
    """The fresh interpreter: one line of JSON."""
    print(json.dumps([_outcome(trial) for trial in here()]))


def _outcome(trial: Trial) -> dict[str, Any]:
    pid = 0
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                pid, _ = kernel.clone3(trial.namespaces)
                if pid == 0:
                    ours.close()
                    _child(trial, theirs)
            if trial.namespaces & _USER:
                userns.write_zygote_map(pid, userns.ours())
            ours.send(b"go")
            return json.loads(ours.recv(65536) or _DIED)  # type: ignore[no-any-return]
    except OSError as error:
        return _failed(error)
    finally:
        if pid:
            os.waitpid(pid, 0)


def _child(trial: Trial, theirs: socket.socket) -> None:
    try:
        if theirs.recv(16):
            if trial.namespaces & _USER:
                os.setresgid(0, 0, 0)
                os.setresuid(0, 0, 0)
                _use_privilege()
            outcome = {"works": True, "detail": trial.attempt()}
            theirs.send(json.dumps(outcome).encode())
    except OSError as error:
        theirs.send(json.dumps(_failed(error)).encode())
    finally:
        os._exit(0)


_DIED = b'{"works": false, "errno": 0, "detail": "it was killed"}'


def _failed(error: OSError) -> dict[str, Any]:
    return {"works": False, "errno": error.errno or 0, "detail": error.strerror or str(error)}
