"""From the plan of the private root to what runsc takes: files and an OCI specification. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from belljar.engines.base import Ground
from belljar.engines.linux.places import INPUT, PROC_SYS
from belljar.engines.linux.root import Step, file, folder

LIBRARY = "/opt/belljar/lib"
"""What the agent is made of, inside; closed to the code."""
GROUND = f"{LIBRARY}/ground.json"
SOURCES = (
    "engines/gvisor/inside.py",
    "engines/linux/kernel.py",
    "engines/linux/places.py",
    "engines/linux/seccomp.py",
    "engines/linux/socket_options.py",
    "engines/linux/syscalls.py",
)
"""What inside.py needs of Belljar, beside the whole guest."""
# Every process inside that was forked can read this command line: no path of the host in it.
_START = (
    f"import sys; sys.path.insert(0, {LIBRARY!r});"
    " from belljar.engines.gvisor import inside; del sys.path[0]; inside.main()"
)
OPEN_FILES = 65_536
AGENT_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_SYS_ADMIN")
"""For gVisor's own kernel only, which has nothing of the host to administer: to mount the writable
places and to become the code's user. The bounding set is empty, so no program gets any."""


class Layout(NamedTuple):
    """What the root is made of."""

    made: list[Step]
    """Files, links and folders to write, and things of the host to copy: ("copy", place, source).
    Each mount is one more connection to gVisor's file server, so small things are copied once."""
    mounts: list[dict[str, Any]]


def lay_out(plan: Iterable[Step], *, is_folder: Callable[[str], bool]) -> Layout:
    """The jail's plan in gVisor's terms. Devices, /proc and /sys are of gVisor's own making."""
    made: list[Step] = []
    mounts: list[dict[str, Any]] = []
    for step in plan:
        kind, target = step[0], step[1]
        if kind == "bind":
            source = step[2]
            if target.startswith("/etc/") or not is_folder(source):
                made.append(("copy", target, source))
                continue
            if not any(_below(target, mount["destination"]) for mount in mounts):
                made.append(folder(target))
            mounts.append(_read_only(source, target))
        elif kind == "cover":
            options = ["ro", "nosuid", "nodev", "mode=0555", "size=4096"]
            mounts.append(_mount("tmpfs", "tmpfs", target, options))
        elif kind == "device" or _below(target, "/dev") or _below(target, PROC_SYS):
            continue
        else:
            made.append(step)
    return Layout(made, mounts)


def library(guest: Iterable[str], read: Callable[[str], str]) -> list[Step]:
    """The agent's files; their packages are empty inside. `guest`: the guest's sources. `read`:
    a source below the package, as text."""
    names = [*SOURCES, *guest]
    packages = {f"{parent}/__init__.py" for name in names for parent in _parents(name)}
    inside = f"{LIBRARY}/belljar"
    return [
        *(file(f"{inside}/{name}", "") for name in sorted({"__init__.py", *packages})),
        *(file(f"{inside}/{name}", read(name)) for name in names if name not in packages),
    ]


def ground_file(ground: Ground, *, disk_bytes: int) -> Step:
    """What the agent is to make ready."""
    content = {
        "disk_bytes": disk_bytes,
        "package_path": list(ground.package_path),
        "preload": list(ground.preload),
        "rehearsal": ground.rehearsal,
        "kept": ground.kept,
    }
    return file(GROUND, json.dumps(content))


def specification(
    root: Path, mounts: list[dict[str, Any]], *, inputs: Path, python: str
) -> dict[str, Any]:
    """config.json of one sandbox."""
    agent = {
        name: list(AGENT_CAPABILITIES) if name in ("effective", "permitted") else []
        for name in ("bounding", "effective", "inheritable", "permitted", "ambient")
    }
    return {
        "ociVersion": "1.0.0",
        "hostname": "belljar",
        "root": {"path": str(root), "readonly": True},
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": [python, "-IB", "-c", _START],
            "env": ["PATH=/usr/bin:/bin", "LANG=C.UTF-8", "HOME=/tmp"],
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": agent,
            "rlimits": [
                {"type": "RLIMIT_NOFILE", "soft": OPEN_FILES, "hard": OPEN_FILES},
                {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
            ],
        },
        "mounts": [
            _mount("proc", "proc", "/proc", ["nosuid", "nodev", "noexec"]),
            *mounts,
            _read_only(str(inputs), INPUT),
        ],
        "linux": {
            "namespaces": [{"type": name} for name in ("pid", "network", "ipc", "uts", "mount")]
        },
    }


def _read_only(source: str, target: str) -> dict[str, Any]:
    return _mount("bind", source, target, ["ro", "rbind", "nosuid", "nodev"])


def _mount(kind: str, source: str, target: str, options: list[str]) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": source, "options": options}


def _parents(name: str) -> list[str]:
    *folders, _ = name.split("/")
    return ["/".join(folders[: i + 1]) for i in range(len(folders))]


def _below(path: str, above: str) -> bool:
    return path == above or path.startswith(above + "/")
