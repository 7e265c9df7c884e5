"""Whether gVisor can be used here, at a glance; `checks.py` tries every part of it."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from belljar.engines.base import Missing
from belljar.settings import Settings

MACHINES = ("x86_64", "aarch64")


def why_not(settings: Settings) -> Missing | None:
    """Looks for the program and reads a few files; nothing is started."""
    if sys.platform != "linux":
        return Missing(why=f"this is {sys.platform}, not Linux", hint="use engine='docker' there")
    if platform.machine() not in MACHINES:
        return Missing(why=f"gVisor does not run on {platform.machine()}", hint="")
    from . import runsc

    if runsc.locate(settings) is None:
        return Missing(why="runsc is not installed", hint=runsc.HINT)
    if _read("/proc/sys/user/max_user_namespaces") == "0":
        return Missing(
            why="user namespaces are switched off",
            hint="as root: sysctl user.max_user_namespaces=15000",
        )
    if os.geteuid() != 0 and _read("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        return Missing(
            why="user namespaces are for root only",
            hint="as root: sysctl kernel.unprivileged_userns_clone=1",
        )
    return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
