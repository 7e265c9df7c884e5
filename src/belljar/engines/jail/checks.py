"""Everything the jail is made of, tried on this machine: the lines of `belljar doctor`.

Each control is tried for real in a process of its own that ends right after, in namespaces of its
own where it would change something, so that nothing of the host is touched. A name that is
also in a result's `isolation` means the same there; one name may take several lines, each with its
own mechanism.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from belljar.engines.base import Control
from belljar.engines.linux import capabilities, cgroups, kernel, landlock, places, seccomp

from . import mounts, netns, pages, userns

CHECK_S = 30.0
_SYSCTLS = (
    "user.max_user_namespaces",
    "kernel.unprivileged_userns_clone",
    "kernel.apparmor_restrict_unprivileged_userns",
)
_CONTAINERS = {
    "/.dockerenv": "docker",
    "/run/.containerenv": "podman",
    "/var/run/secrets/kubernetes.io": "kubernetes",
}


def controls() -> list[Control]:
    """Every control of the jail, whether it works here, and what to do if not."""
    facts = gather()
    return [*_tried(facts), *_limits()]


# -- what is known about the machine ---------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a hint depends on, gathered in one place so that tests can invent it."""

    uid: int
    release: tuple[int, int]
    container: str = ""
    filtered: bool = False
    """This process is already behind somebody's seccomp filter."""
    sysctls: Mapping[str, str] = field(default_factory=dict)


def gather() -> Facts:
    status = Path("/proc/self/status").read_text()
    paths = {name: Path("/proc/sys", *name.split(".")) for name in _SYSCTLS}
    return Facts(
        uid=os.geteuid(),
        release=parse_release(os.uname().release),
        container=next((kind for mark, kind in _CONTAINERS.items() if os.path.exists(mark)), ""),
        filtered="\nSeccomp:\t2" in status,
        sysctls={n: path.read_text().strip() for n, path in paths.items() if path.exists()},
    )


def parse_release(text: str) -> tuple[int, int]:
    """The first two numbers: `6.8.0-45-generic`, `6.12+x`; what is missing counts as 0."""
    found = re.match(r"(\d+)(?:\.(\d+))?", text)
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)


def hint(code: int, facts: Facts, *, own: str = "") -> str:
    """What to type when the kernel answered `code`; `own` is the control's own advice."""
    root = "" if facts.uid == 0 else "sudo "
    if code == errno.ENOSYS and not facts.filtered and facts.release < (5, 12):
        return "this kernel is too old: the jail needs Linux 5.12 or newer"
    none_left = facts.sysctls.get("user.max_user_namespaces") == "0"
    if none_left or code in (errno.ENOSPC, errno.EUSERS):
        return f"user namespaces are used up or off: {root}sysctl -w user.max_user_namespaces=31000"
    if facts.uid != 0 and facts.sysctls.get("kernel.unprivileged_userns_clone") == "0":
        return f"{root}sysctl -w kernel.unprivileged_userns_clone=1"
    apparmor = facts.sysctls.get("kernel.apparmor_restrict_unprivileged_userns", "0")
    if facts.uid != 0 and apparmor != "0":
        return f"{root}sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    if facts.container == "kubernetes":
        return (
            "in the Pod: securityContext with seccompProfile and appArmorProfile of type"
            " Unconfined, procMount: Unmasked and hostUsers: false"
        )
    if facts.container or facts.filtered:
        options = ["seccomp=unconfined", "apparmor=unconfined", "systempaths=unconfined"]
        words = " ".join(f"--security-opt {option}" for option in options)
        # Docker's root has too few capabilities for mounts of its own; an ordinary user needs none.
        more = " --cap-add SYS_ADMIN" if facts.uid == 0 else ""
        return f"start the container with: {facts.container or 'docker'} run {words}{more} …"
    return own


# -- the trials: each raises OSError, or returns a detail for the mechanism -----------------------


def _nothing() -> str:
    return ""


def _kernel_calls() -> str:
    os.close(os.pidfd_open(os.getpid()))
    kernel.close_range(1000, 1001)
    try:
        kernel.mount_setattr("/belljar-does-not-exist", attr_set=kernel.MOUNT_ATTR_RDONLY)
    except OSError as error:  # which other one depends on our privileges
        if error.errno == errno.ENOSYS:
            raise
    return f"Linux {os.uname().release}"


def _own_id() -> str:
    ids = _ids()
    if not ids.has_range:
        raise OSError(errno.EPERM, "only one id is ours")
    return f"{ids.count} ids from {ids.uid}"


def _small_tmpfs() -> None:
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


_USER = kernel.CLONE_NEWUSER
_TREE = _USER | kernel.CLONE_NEWNS
_MASKED = "inside a container, /proc must be unmasked: --security-opt systempaths=unconfined"
_OWN_UID = "run Belljar as root (sudo) for a uid per sandbox"
_SHARED_UID = "one uid for all sandboxes, kept apart by their namespaces"
_LSM = "add landlock to the kernel's lsm= parameter (Linux 5.13 or newer)"
_SMALL_PAGES = "ordinary pages, from which a heavy environment forks more slowly"
_COUNTED_SOCKETS = "the host watches how many sockets a sandbox has"
_QUEUES = "a newer kernel (Linux 6.8) has it"
_HUGE = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled (Linux 6.1 or newer)"
_CAPABILITY = "root lacks CAP_SYS_ADMIN here: run Belljar as an ordinary user, or add it"

TRIALS: tuple[Trial, ...] = (
    Trial("kernel", "clone3, pidfd, close_range, mount_setattr", 0, _kernel_calls),
    Trial("user_namespaces", "user namespace", _USER),
    Trial("user", "a uid of its own for each sandbox", 0, _own_id, _SHARED_UID, _OWN_UID),
    Trial("processes_hidden", "pid namespace", _USER | kernel.CLONE_NEWPID),
    Trial("processes_hidden", "own /proc", _TREE | kernel.CLONE_NEWPID, _own_proc, advice=_MASKED),
    Trial("filesystem", "mount namespace", _TREE),
    Trial("filesystem", "read-only binds", _TREE, _read_only_bind),
    Trial("filesystem", "pivot_root", _TREE, _new_root),
    Trial("filesystem", "terminals of its own (devpts)", _TREE, _own_terminals),
    Trial("disk", "tmpfs with a quota", _TREE, _disk_quota),
    Trial("network", "net namespace", _USER, _own_network),
    Trial("network", "/etc/hosts of its own, with network=", _TREE, _own_hosts),
    Trial("sockets", "short queues", _USER, _short_queues, _COUNTED_SOCKETS, _QUEUES),
    Trial("ipc", "ipc namespace", _USER | kernel.CLONE_NEWIPC),
    Trial("host_name", "uts namespace", _USER | kernel.CLONE_NEWUTS),
    Trial("groups_hidden", "cgroup namespace", _USER | kernel.CLONE_NEWCGROUP),
    Trial("privileges", "no capabilities, no-new-privileges", _USER, _no_privileges),
    Trial("system_calls", "seccomp allowlist", 0, _system_calls, advice="CONFIG_SECCOMP_FILTER"),
    Trial("landlock", "Landlock", 0, _landlock, "the private root alone", _LSM),
    Trial("huge_pages", "MADV_COLLAPSE", 0, _huge_pages, _SMALL_PAGES, _HUGE),
)
# What the zygote does as root before it has a user namespace of its own.
_AS_ROOT = Trial(
    "filesystem",
    "root's own mount and pid namespaces",
    kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS,
    advice=_CAPABILITY,
)


def _trials() -> tuple[Trial, ...]:
    return (*TRIALS[:3], _AS_ROOT, *TRIALS[3:]) if _ids().has_range else TRIALS


def _ids() -> userns.IdMap:
    extents = Path("/proc/self/uid_map").read_text()
    return userns.choose(extents, euid=os.geteuid(), egid=os.getegid(), pid=os.getpid())


# -- trying ----------------------------------------------------------------------------------------


def _tried(facts: Facts) -> list[Control]:
    """All from one fresh interpreter: this process may have threads and cannot be cloned."""
    from belljar.runtimes.interpreter import base_interpreter

    from .launch import PACKAGE_ROOT

    boot = f"import sys; sys.path[0] = {PACKAGE_ROOT!r}; from {__name__} import main; main()"
    try:
        done = subprocess.run(
            [base_interpreter(), "-SsB", "-c", boot],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={"PATH": "/usr/bin:/bin"},
            cwd="/",
            timeout=CHECK_S,
            check=True,
        )
        outcomes = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        said = (getattr(error, "stderr", b"") or b"").decode("utf-8", "replace").strip()
        why = said.rpartition("\n")[2] or str(error)
        return [Control(name="kernel", mechanism="the trials themselves", works=False, hint=why)]
    return [
        judge(trial, outcome, facts) for trial, outcome in zip(_trials(), outcomes, strict=True)
    ]


def judge(trial: Trial, outcome: Mapping[str, Any], facts: Facts) -> Control:
    """From what became of a trial to a line for people."""
    essential = not trial.stand_in
    detail, mechanism = outcome["detail"], trial.mechanism
    if outcome["works"]:
        mechanism += f" ({detail})" if detail else ""
        return Control(name=trial.name, mechanism=mechanism, works=True, essential=essential)
    # What has a stand-in does not depend on containers or sysctls: its own advice is better.
    advice = hint(outcome["errno"], facts, own=trial.advice) if essential else trial.advice
    why = f"{detail} ({errno.errorcode.get(outcome['errno'], outcome['errno'])})"
    return Control(
        name=trial.name,
        mechanism=mechanism if essential else f"{mechanism}; instead: {trial.stand_in}",
        works=False,
        hint=f"{why}. {advice}" if advice else why,
        essential=essential,
    )


def main() -> None:
    """The fresh interpreter: one line of JSON."""
    print(json.dumps([_outcome(trial) for trial in _trials()]))


def _outcome(trial: Trial) -> dict[str, Any]:
    answer_end, answer = os.pipe()
    go_end, go = os.pipe()
    pid = 0
    try:
        pid, _ = kernel.clone3(trial.namespaces)
        if pid == 0:
            os.close(go)
            _child(trial, answer, go_end)
        os.close(answer)
        if trial.namespaces & _USER:
            userns.write_zygote_map(pid, _ids())
        os.write(go, b"g")
        text = os.read(answer_end, 65536)
        return json.loads(text or _DIED)  # type: ignore[no-any-return]
    except OSError as error:
        return _failed(error)
    finally:
        os.close(go)
        if pid:
            os.waitpid(pid, 0)


def _child(trial: Trial, answer: int, go_end: int) -> None:
    try:
        if os.read(go_end, 1):
            if trial.namespaces & _USER:
                os.setresgid(0, 0, 0)
                os.setresuid(0, 0, 0)
            outcome = {"works": True, "detail": trial.attempt()}
            os.write(answer, json.dumps(outcome).encode())
    except OSError as error:
        os.write(answer, json.dumps(_failed(error)).encode())
    finally:
        os._exit(0)


_DIED = b'{"works": false, "errno": 0, "detail": "it was killed"}'


def _failed(error: OSError) -> dict[str, Any]:
    return {"works": False, "errno": error.errno or 0, "detail": error.strerror or str(error)}


# -- limits: looked at, not tried; the whole sandbox that doctor runs tries them -----------

_STAND_INS = {
    "memory": "a watchdog and an rlimit",
    "processes": "an rlimit",
    "cpu": "a choice of cores (affinity)",
}


def _limits() -> list[Control]:
    """Obtained for a moment, not only looked for: systemd may have to be asked."""
    found = cgroups.find_ours(ask_systemd=True)
    if isinstance(found, cgroups.Absent):
        why = f"{found.reason}. {found.hint}"
        lines = [_optional(name, "cgroup", why, text) for name, text in _STAND_INS.items()]
        return [*lines, _swap(counted=False)]
    try:
        scope = " (a scope of the user's systemd)" if found.scope else ""
        lines = [_optional(name, text + scope) for name, text in found.describe().items()]
        if not found.limits_cpu:
            lines[-1] = _optional("cpu", "cgroup", cgroups.HINT_USER_CPU, _STAND_INS["cpu"])
        account = f"{found.folders['memory']}/memory.memsw.limit_in_bytes"
        return [*lines, _swap(counted=found.version == 2 or os.path.exists(account))]
    finally:
        found.close()


def _swap(*, counted: bool) -> Control:
    if counted:
        return _optional("swap", "kept out by the cgroup")
    if not Path("/proc/swaps").read_text().splitlines()[1:]:
        return _optional("swap", "none on this machine")
    why = "boot with swapaccount=1, or turn swap off: sudo swapoff -a"
    return _optional("swap", "cgroup", why, "only discouraged (swappiness 0)")


def _optional(name: str, mechanism: str, why: str = "", stand_in: str = "") -> Control:
    mechanism = f"{mechanism}; instead: {stand_in}" if stand_in else mechanism
    return Control(name=name, mechanism=mechanism, works=not why, hint=why, essential=False)
