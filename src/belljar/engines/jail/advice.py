"""What to do about what does not work: words to type, and files that make it last.

Everything follows from `Facts`, so that tests can invent a machine.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from belljar.runtimes.interpreter import base_interpreter

from . import available, userns
from .remedies import APPARMOR, Obstacle, Remedy, apparmor_profile, sysctl_file

CLONE = "kernel.unprivileged_userns_clone"
_NAMESPACES = 31_000
"""About what a machine with 8 GB allows by itself."""
_MOST = 0x7FFF_FFFF
"""The largest limit there is. A new user namespace has it: only those around it limit then."""
_CONTAINERS = {
    "/.dockerenv": "docker",
    "/run/.containerenv": "podman",
    "/var/run/secrets/kubernetes.io": "kubernetes",
}
_SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
PROFILE = "belljar-container"
"""What a container runs under on a host whose AppArmor restricts user namespaces."""
_ON_THE_HOST = (
    f"printf 'abi <abi/4.0>,\\nprofile {PROFILE} flags=(unconfined) {{\\n  userns,\\n}}\\n'"
    f" | sudo tee /etc/apparmor.d/{PROFILE}"
    f" && sudo apparmor_parser -r /etc/apparmor.d/{PROFILE}"
)
_NEWER_KERNELS = {
    ("debian", "11"): "sudo apt install -t bullseye-backports linux-image-amd64 installs one, where"
    " bullseye-backports is among apt's sources (Debian 12 has one anyway)",
    ("ubuntu", "20.04"): "sudo apt install linux-generic-hwe-20.04 installs one",
}
_ROOM = {
    errno.EAGAIN: "processes are used up: raise kernel.pid_max (sysctl) or this user's ulimit -u",
    errno.ENOMEM: "the kernel has no memory left for this",
    errno.EMFILE: "raise the limit of open files (ulimit -n) of this process",
    errno.ENFILE: "open files are used up: raise fs.file-max (sysctl)",
}
"""By what the kernel answered, wherever."""
_REFUSALS = (0, errno.EPERM, errno.EACCES, errno.ENOSYS)
"""What filters and profiles answer; 0: the process was killed, or nothing is known."""
_USED_UP = (errno.ENOSPC, errno.EUSERS)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What advice depends on."""

    uid: int
    release: tuple[int, int]
    privileged: bool = False
    """Root with the capabilities that root usually has."""
    stuck: bool = False
    """Root that can give sandboxes no id but its own."""
    container: str = ""
    filtered: bool = False
    """This process is already behind somebody's seccomp filter."""
    sysctls: Mapping[str, str] = field(default_factory=dict)
    interpreter: str = "/usr/bin/python3"
    """What the zygote runs."""
    replaceable: str = ""
    """The interpreter, or a folder above it, if users other than root can change that."""
    apparmor_parser: str = ""
    restricted: bool = False
    """AppArmor keeps user namespaces from this user and this interpreter."""
    distribution: tuple[str, str] = ("", "")
    """ID and VERSION_ID of os-release."""


def gather(user: int | None = None) -> Facts:
    """About this process, or about one that root would start as another `user`."""
    status = Path("/proc/self/status").read_text()
    names = (*available.LIMITS, CLONE, APPARMOR)
    paths = {name: Path("/proc/sys", *name.split(".")) for name in names}
    uid, capabilities = (user, 0) if user else (os.geteuid(), userns.effective_capabilities())
    privileged = userns.is_privileged(uid, capabilities)
    interpreter = base_interpreter()
    return Facts(
        uid=uid,
        release=available.parse_release(os.uname().release),
        privileged=privileged,
        stuck=userns.is_stuck(uid, capabilities),
        container=_container(),
        filtered="\nSeccomp:\t2" in status,
        sysctls={n: path.read_text().strip() for n, path in paths.items() if path.exists()},
        interpreter=interpreter,
        replaceable=_replaceable(interpreter),
        apparmor_parser=shutil.which("apparmor_parser", path=_SYSTEM_PATH) or "",
        restricted=not privileged and available.apparmor_refuses(user),
        distribution=_distribution(),
    )


def _replaceable(interpreter: str) -> str:
    """Whoever may rename a folder on the way can put another interpreter there."""
    for path in (interpreter, *map(str, Path(interpreter).parents)):
        found = os.stat(path)
        by_others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if found.st_uid != 0 or (by_others and not found.st_mode & stat.S_ISVTX):
            return path
    return ""


def _container() -> str:
    marked = [kind for mark, kind in _CONTAINERS.items() if os.path.exists(mark)]
    if "docker" in marked:
        # Also on machines whose disk was made from an image; a container has these mounted.
        mounts = Path("/proc/self/mountinfo").read_text()
        if not any(f" /etc/{name} " in mounts for name in ("hostname", "hosts")):
            marked.remove("docker")
    return marked[0] if marked else ""


def _distribution() -> tuple[str, str]:
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return "", ""
    pairs = dict(line.split("=", 1) for line in lines if "=" in line)
    return pairs.get("ID", "").strip("\"'"), pairs.get("VERSION_ID", "").strip("\"'")


# -- words -----------------------------------------------------------------------------------------


def hint(code: int, facts: Facts, *, own: str = "") -> str:
    """What to do when the kernel answered `code`; `own` is the control's own advice."""
    if facts.release < available.OLDEST:
        return too_old(facts)
    if code in _ROOM:
        return _ROOM[code]
    if setting := _setting(code, facts):
        return _about_setting(*setting, facts)
    if code in _USED_UP:
        return "a limit outside this user namespace is reached: user.max_*_namespaces of the host"
    if facts.stuck:
        return (
            f"{_contained(facts, '--user 1000:1000')}, or as root with --cap-add SETUID"
            " --cap-add SETGID: no sandbox may have root's id, which the kernel exempts from limits"
        )
    if facts.container and code in _REFUSALS:
        return _contained(facts)
    if facts.filtered and code in _REFUSALS:
        return (
            "a system-call filter is in force. In a service of systemd, look at RestrictNamespaces="
            f" and SystemCallFilter=. If this is a container: {_contained(facts)}"
        )
    if obstacle := obstacle_for(code, facts):
        return _about_apparmor(obstacle, facts)
    return own


def too_old(facts: Facts) -> str:
    """Which kernel it takes, and how to get it."""
    oldest = ".".join(map(str, available.OLDEST))
    how = _NEWER_KERNELS.get(facts.distribution, "install a newer one")
    return (
        f"the jail needs Linux {oldest} or newer: {how}, then reboot."
        " Without a newer kernel use engine='docker' or engine='gvisor'"
    )


def own_uid(facts: Facts) -> str:
    """How each sandbox gets a uid of its own."""
    if facts.uid == 0:
        return "too few ids exist in this user namespace: map 65536 of them (/etc/subuid, subgid)"
    return "run Belljar as root (sudo) for a uid per sandbox"


def _about_setting(name: str, value: str, facts: Facts) -> str:
    now = facts.sysctls.get(name, "")
    if name == CLONE:
        off = "user namespaces are for root only here"
    else:
        off = f"{name} is 0" if now == "0" else f"{name} = {now} may be used up"
    root = "" if facts.uid == 0 and not facts.container else "sudo "
    command = f"{root}sysctl -w {name}={value}"
    if facts.container:
        return f"{off}; on the host, not in this container: {command}"
    return f"{off}: {command}. To keep it after a reboot: belljar doctor --fix"


def _about_apparmor(obstacle: Obstacle, facts: Facts) -> str:
    best = obstacle.remedies[0]
    if not facts.apparmor_parser:
        return (
            "install apparmor_parser (the package apparmor), with which belljar doctor --fix can"
            f" write a profile for {facts.interpreter}. Without it there is only {best.what}."
            f" {best.consequence}"
        )
    return f"belljar doctor --fix shows and writes {best.what}. {best.consequence}"


def _contained(facts: Facts, *more: str) -> str:
    """How to start a container in which the jail works."""
    if facts.container == "kubernetes":
        kind = "Localhost with localhostProfile" if facts.restricted else "Unconfined"
        profile = f"{kind} {PROFILE}" if facts.restricted else kind
        text = (
            "in the Pod: securityContext with a seccompProfile of type Unconfined, an"
            f" appArmorProfile of type {profile}, procMount: Unmasked and hostUsers: false"
        )
    else:
        apparmor = PROFILE if facts.restricted else "unconfined"
        # Podman has a word of its own for what Docker calls systempaths.
        masks = "unmask=ALL" if facts.container == "podman" else "systempaths=unconfined"
        options = ("seccomp=unconfined", f"apparmor={apparmor}", masks)
        words = " ".join([*(f"--security-opt {option}" for option in options), *more])
        text = f"start the container with: {facts.container or 'docker'} run {words} …"
    if facts.restricted:
        text += (
            f"; {PROFILE} is an AppArmor profile to write on the host, not in this"
            f" container: {_ON_THE_HOST}"
        )
    return text


# -- files -----------------------------------------------------------------------------------------


def obstacle_for(code: int, facts: Facts) -> Obstacle | None:
    """What stands in the way, if files of this machine's configuration can remove it for good."""
    if facts.container or facts.release < available.OLDEST:
        return None
    if setting := _setting(code, facts):
        name, value = setting
        old = facts.sysctls[name]
        what = f"{name} is {old}" if old == "0" else f"{name} = {old} may be used up"
        return Obstacle(name=name, what=what, remedies=(sysctl_file(name, value, old=old),))
    if facts.restricted and not facts.filtered:
        coarse = sysctl_file(APPARMOR, "0", old=facts.sysctls.get(APPARMOR, "1"))
        return Obstacle(
            name=APPARMOR,
            what="AppArmor keeps user namespaces from ordinary users",
            remedies=(*_profiles(facts), coarse),
        )
    return None


def _setting(code: int, facts: Facts) -> tuple[str, str] | None:
    """A setting of the kernel that is in the way, and the value that it should have."""
    limits = {name: int(facts.sysctls[name]) for name in available.LIMITS if name in facts.sysctls}
    lowest = min(limits, key=limits.__getitem__, default="")
    if lowest and (limits[lowest] == 0 or code in _USED_UP):
        higher = max(_NAMESPACES, 2 * limits[lowest])
        return (lowest, str(higher)) if higher <= _MOST else None
    if not facts.privileged and facts.sysctls.get(CLONE) == "0":
        return CLONE, "1"
    return None


def _profiles(facts: Facts) -> tuple[Remedy, ...]:
    if not facts.apparmor_parser:
        return ()
    profile = apparmor_profile(
        facts.interpreter, parser=facts.apparmor_parser, replaceable=facts.replaceable
    )
    return (profile,) if profile else ()
