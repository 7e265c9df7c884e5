"""gVisor's program: which one, what it can do, and how it is called."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from belljar.errors import EngineUnavailable
from belljar.settings import Settings

HINT = (
    "install it: `apt install runsc` (Debian, Ubuntu), or https://gvisor.dev/docs/user_guide/install;"
    " another place: settings.gvisor_runsc or BELLJAR_RUNSC"
)
PLATFORMS = ("systrap", "ptrace")
"""By preference. With systrap a system call costs 3 µs, with ptrace 50. KVM is not taken by
itself: it was seen to hang inside a virtual machine."""
ASK_S = 10.0


class Runsc(NamedTuple):
    path: str
    version: str
    platform: str
    options: frozenset[str]
    """The global flags that this version knows, without dashes."""
    rootless: bool
    copies: bool = False
    """A sandbox can be copied from a snapshot, and that is faster than a new one: not for ordinary
    users, and not before 2024, when snapshots were always compressed."""

    def argv(self, state: Path, *command: str) -> list[str]:
        """`state`: the folder for what this version remembers of a container."""
        flags = {
            "root": str(state),
            "platform": self.platform,
            "network": "none",
            "ignore-cgroups": "true",  # they are ours, see group.py
            "overlay2": "none",  # nothing in the root is writable anyhow
            # Nobody else writes to what is mounted, so gVisor may keep what it has read. Inputs
            # arrive before anything inside has looked at their folder.
            "file-access-mounts": "exclusive",
            # With it gVisor's kernel opens files itself, and as root has the rights to: without,
            # it is nobody, and a second process opens them.
            "directfs": "false",
        }
        given = [f"--{name}={value}" for name, value in flags.items() if name in self.options]
        return [self.path, *given, *(["--rootless"] if self.rootless else []), *command]


def locate(settings: Settings) -> str | None:
    """The program's path; None when there is none."""
    wanted = settings.gvisor_runsc or os.environ.get("BELLJAR_RUNSC", "")
    return shutil.which(wanted or "runsc")


def find(settings: Settings) -> Runsc:
    path = locate(settings)
    if path is None:
        raise EngineUnavailable("gVisor's program runsc was not found", hint=HINT)
    version = _ask(path, "--version")
    flags = _ask(path, "flags")
    rootless = os.geteuid() != 0
    return Runsc(
        path=path,
        version=parse_version(version),
        platform=choose_platform(settings.gvisor_platform, flags),
        options=parse_options(flags),
        rootless=rootless,
        copies=not rootless and "-compression" in _ask(path, "help", "checkpoint"),
    )


def parse_version(text: str) -> str:
    found = re.search(r"version (?:release-)?(\S+)", text)
    return found[1] if found else "unknown"


def parse_options(flags: str) -> frozenset[str]:
    return frozenset(re.findall(r"^\s+-([\w-]+)", flags, re.MULTILINE))


def choose_platform(wanted: str, flags: str) -> str:
    offered = re.search(r"^\s+-platform string\s+(.*)$", flags, re.MULTILINE)
    known = [name for name in PLATFORMS if offered and name in offered[1]]
    if wanted:
        if known and wanted not in known and wanted != "kvm":
            raise EngineUnavailable(
                f"this runsc has no platform {wanted!r}", hint=f"it has: {', '.join(known)}"
            )
        return wanted
    return known[0] if known else "ptrace"


def _ask(path: str, *words: str) -> str:
    try:
        done = subprocess.run(
            [path, *words],
            capture_output=True,
            text=True,
            timeout=ASK_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineUnavailable(f"{path} could not be asked: {error}", hint=HINT) from error
    return done.stdout + done.stderr
