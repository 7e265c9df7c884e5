"""Whether the jail can be built here, at a glance; `checks.py` tries every part of it."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from pathlib import Path

from belljar import linux_only
from belljar.engines.base import Missing
from belljar.runtimes.interpreter import base_interpreter
from belljar.settings import Settings

from . import userns

OLDEST = (5, 12)
"""Linux with mount_setattr; the other calls are older."""
LIMITS = tuple(
    f"user.max_{kind}_namespaces" for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
)
"""How many namespaces there may be, by kind: the jail makes one of each. The kernel does not say
which of them is used up."""
_UNSHARE_NOTHING = 0x0040_0000
"""CLONE_DETACHED: unshare knows no such flag and refuses before it does anything."""
_TRY_S = 10.0
# A user namespace, and then something that takes a capability in it. `os.unshare` came with 3.12;
# ctypes takes three times as long to load as all of the rest.
_TRY = """\
import os
if hasattr(os, "unshare"):
    unshare = os.unshare
else:
    import ctypes
    def unshare(flags):
        if ctypes.CDLL(None).unshare(flags):
            raise OSError
try:
    unshare(0x10000000)
    unshare(0x04000000)
except OSError:
    os._exit(3)
"""


def why_not(settings: Settings) -> Missing | None:
    """Reads a few files. A filter in the way (a container's) is asked, without any effect."""
    if elsewhere := linux_only.why():
        return Missing(why=elsewhere, hint=linux_only.what_to_do())
    why = _problem()
    if not why:
        return None
    from . import advice  # much to load, and only those without a jail need it

    return Missing(why=why, hint=advice.hint(errno.EPERM, advice.gather()))


def parse_release(text: str) -> tuple[int, int]:
    """The first two numbers: `6.8.0-45-generic`, `6.12+x`; what is missing counts as 0."""
    found = re.match(r"(\d+)(?:\.(\d+))?", text)
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)


def _problem() -> str:
    release = os.uname().release
    if parse_release(release) < OLDEST:
        return f"Linux {release} is too old, the jail needs {OLDEST[0]}.{OLDEST[1]} or newer"
    for limit in LIMITS:
        if _sysctl(limit.replace(".", "/")) == "0":
            return "namespaces of a kind that sandboxes need are switched off"
    uid, capabilities = os.geteuid(), userns.effective_capabilities()
    if "\nSeccomp:\t2" in _read("/proc/self/status") and _filtered():
        return "a system-call filter refuses user namespaces, as in most containers"
    if not userns.is_privileged(uid, capabilities):
        if _sysctl("kernel/unprivileged_userns_clone") == "0":
            return "user namespaces are for root only"
        if userns.is_stuck(uid, capabilities):
            return "root lacks CAP_SETUID and CAP_SETGID, and no sandbox may be root"
        if apparmor_refuses():
            return "AppArmor keeps user namespaces from ordinary users"
    return ""


def apparmor_refuses(user: int | None = None) -> bool:
    """Asked of somebody without privileges, or by root about such a `user`. It depends on the
    program that asks: a profile of the interpreter applies when the interpreter is executed, as for
    a zygote, and not to a console script."""
    restricted = _sysctl("kernel/apparmor_restrict_unprivileged_userns") not in ("", "0")
    return restricted and not _namespaces_work(user)


def _namespaces_work(user: int | None) -> bool:
    asker = (base_interpreter(), user)
    if asker in _worked:
        return True
    try:
        asked = subprocess.run(
            [base_interpreter(), "-SsEB", "-c", _TRY],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            timeout=_TRY_S,
            user=user,
            group=user,
            extra_groups=None if user is None else (),
        )
    except (OSError, subprocess.SubprocessError):
        return False
    if asked.returncode == 0:
        _worked.add(asker)
    return asked.returncode == 0


_worked: set[tuple[str, int | None]] = set()
"""Interpreters that may, and whose. Those that may not are asked again: somebody may have mended
it."""


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
