"""The plan of the private root: pure, so that it can be read and tested without any privilege."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .places import (
    BOX,
    COMMANDS,
    EMPTY,
    GID,
    HOSTS,
    INPUT,
    MOST_SETS,
    PACKAGES,
    PROC_SYS,
    UID,
    WORKSPACE,
    WRITABLE,
)

Step = tuple[str, ...]
"""(kind, place inside, …): plain texts, because the plan travels to the zygote as JSON."""


def bind(source: str, target: str) -> Step:
    """A host folder or file, read-only inside."""
    return "bind", target, source


def device(path: str) -> Step:
    """A harmless device of the host."""
    return "device", path, path


def cover(target: str) -> Step:
    """An empty folder over something that came along with a bind."""
    return "cover", target


def folder(target: str) -> Step:
    return "folder", target


def file(target: str, content: str) -> Step:
    return "file", target, content


def link(target: str, to: str) -> Step:
    return "link", target, to


DEVICES = ("null", "zero", "full", "random", "urandom")

# Programs read a few kernel settings; they get these fixed answers instead of the host's tree.
PROC_SYS_FILES = {
    "fs/file-max": "65536",
    "fs/nr_open": "65536",
    "fs/pipe-max-size": "1048576",
    "kernel/cap_last_cap": "40",
    "kernel/hostname": "belljar",
    "kernel/ngroups_max": "65536",
    "kernel/osrelease": os.uname().release,
    "kernel/ostype": "Linux",
    "kernel/pid_max": "32768",
    "kernel/threads-max": "32768",
    "net/core/somaxconn": "4096",
    "vm/max_map_count": "65530",
    "vm/overcommit_memory": "0",
}

ETC_FILES = {
    "passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\n"
    f"sandbox:x:{UID}:{GID}:sandbox:{WORKSPACE}:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": f"root:x:0:\nsandbox:x:{GID}:\nnogroup:x:65534:\n",
    "hostname": "belljar\n",
    "hosts": HOSTS,
    # No name server: a look-up is refused on loopback at once, as a temporary failure (I4).
    "resolv.conf": "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "host.conf": "multi on\n",
    "fonts/fonts.conf": "<fontconfig><dir>/usr/share/fonts</dir></fontconfig>\n",
}

# Read-only parts of the host's /etc that programs need and that hold nothing private.
ETC_FROM_HOST = (
    "alternatives",
    "ld.so.cache",
    "mime.types",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
)


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """What planning needs to know of the machine, in one place so that tests can invent it."""

    top_links: Mapping[str, str]
    """/bin, /lib …: those that are links, and where they lead."""
    top_folders: tuple[str, ...]
    """Those that are folders."""
    etc: tuple[str, ...]
    python: str
    """The interpreter's file, so that `python3` on PATH is the one that runs the code."""
    python_prefix: str
    foreign_packages: tuple[str, ...]
    """Package folders of the host's interpreter, hidden from sandboxes."""


def plan_root(facts: HostFacts, environment: tuple[str, str] | None) -> list[Step]:
    """The template root as a list of steps. `environment`: (host folder, mount point)."""
    steps = [bind("/usr", "/usr")]
    steps += [link(name, to) for name, to in sorted(facts.top_links.items())]
    steps += [bind(name, name) for name in facts.top_folders]
    if not _below(facts.python_prefix, "/usr"):
        steps.append(bind(facts.python_prefix, facts.python_prefix))
    if not _below(facts.python_prefix, "/usr/local"):
        steps.append(cover("/usr/local"))
    steps += [cover(path) for path in facts.foreign_packages]
    steps += [file(f"/etc/{name}", content) for name, content in ETC_FILES.items()]
    steps += [bind(f"/etc/{name}", f"/etc/{name}") for name in facts.etc]
    steps += [device(f"/dev/{name}") for name in DEVICES]
    for name, to in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        steps.append(link(f"/dev/{name}", f"/proc/self/fd{to}"))
    steps.append(link("/dev/ptmx", "pts/ptmx"))
    steps += [folder(path) for path in (*WRITABLE, INPUT, "/dev/pts", BOX, EMPTY, "/proc", "/sys")]
    steps += [folder(f"{PACKAGES}/{number}") for number in range(1, MOST_SETS + 1)]
    steps += [file(f"{PROC_SYS}/{name}", f"{text}\n") for name, text in PROC_SYS_FILES.items()]
    steps.append(link("/var/tmp", "../tmp"))
    steps += [link(f"{COMMANDS}/{name}", facts.python) for name in ("python", "python3")]
    if environment:
        steps.append(bind(*environment))
    return steps


def host_facts(python: str, python_prefix: str, package_folders: Iterable[str]) -> HostFacts:
    links, folders = {}, []
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        if os.path.islink(name):
            links[name] = os.readlink(name)
        elif os.path.isdir(name):
            folders.append(name)
    return HostFacts(
        top_links=links,
        top_folders=tuple(folders),
        etc=tuple(name for name in ETC_FROM_HOST if os.path.exists(f"/etc/{name}")),
        python=python,
        python_prefix=python_prefix,
        foreign_packages=tuple(sorted({p for p in package_folders if os.path.isdir(p)})),
    )


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")
