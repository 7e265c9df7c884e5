"""Whether the jail can be built here, at a glance; `checks.py` tries every part of it."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from belljar.engines.base import Missing
from belljar.settings import Settings

OLDEST = (5, 12)
"""Linux with mount_setattr; the other calls are older."""
_UNSHARE_NOTHING = 0x0040_0000
"""CLONE_DETACHED: unshare knows no such flag and refuses before it does anything."""


def why_not(settings: Settings) -> Missing | None:
    """Reads a few files. A filter in the way (a container's) is asked, without any effect."""
    if sys.platform != "linux":
        return Missing(why=f"this is {sys.platform}, not Linux", hint="use engine='docker' there")
    why = _problem()
    if not why:
        return None
    from . import checks  # much to load, and only those without a jail need its advice

    return Missing(why=why, hint=checks.hint(errno.EPERM, checks.gather()))


def _problem() -> str:
    release = os.uname().release
    numbers = release.replace("-", ".").split(".")[:2]
    if all(part.isdigit() for part in numbers) and tuple(map(int, numbers)) < OLDEST:
        return f"Linux {release} is too old, it takes {OLDEST[0]}.{OLDEST[1]} or newer"
    if _sysctl("user/max_user_namespaces") == "0":
        return "user namespaces are switched off"
    if os.geteuid() != 0:
        if _sysctl("kernel/unprivileged_userns_clone") == "0":
            return "user namespaces are for root only"
        confined = _read("/proc/self/attr/current") not in ("", "unconfined")
        if _sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1" and not confined:
            return "AppArmor keeps user namespaces from ordinary users"
    if "\nSeccomp:\t2" in _read("/proc/self/status") and _filtered():
        return "a system-call filter refuses user namespaces, as containers have it"
    return ""


def _filtered() -> bool:
    from belljar.engines.linux import kernel

    try:
        kernel.unshare(kernel.CLONE_NEWUSER | _UNSHARE_NOTHING)
    except OSError as error:
        return error.errno != errno.EINVAL  # the kernel itself objects to the flag
    return False


def _sysctl(name: str) -> str:
    return _read(f"/proc/sys/{name}")


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip("\0\n ")
    except OSError:
        return ""
