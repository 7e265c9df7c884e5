"""What the gateway's process gives up once it is loaded.

It keeps what it needs to look up names and to dial: the resolver's files, and sockets.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

from belljar.engines.linux import capabilities, kernel, landlock

from . import calls

_NOBODY = 65_534
_FIRST_ID, _ID_SLOTS = 0x6100_0000, 1 << 20
_READABLE = (
    "/etc",  # resolv.conf, hosts, nsswitch.conf, gai.conf, and whatever they are links to
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/run/NetworkManager",
    "/lib",  # modules of the name service switch
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
)
_NAMESPACES = "/run/netns"
_MEMORY_BYTES = 1 << 30
"""One tenant's gateway cannot take the machine's memory from others."""


def identity() -> str:
    return f"uid {os.geteuid()}"


def enter_namespace(name: str) -> None:
    """The operator's network namespace, with the files that `ip netns exec` would give it."""
    if not name:
        return
    if os.geteuid() != 0:
        raise PermissionError(
            f"settings.network_namespace: only root can enter the namespace {name!r}"
        )
    path = Path(name) if "/" in name else Path(_NAMESPACES, name)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        kernel.setns(descriptor, kernel.CLONE_NEWNET)
    finally:
        os.close(descriptor)
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    own = Path("/etc/netns", path.name)
    if own.is_dir():
        for file in own.iterdir():
            if (target := Path("/etc", file.name)).exists():
                kernel.mount(file, target, None, kernel.MS_BIND)


def harden() -> None:
    """Before there are threads: what is given up here is given up for all of them."""
    "bücher.invalid".encode("idna")  # TLS encodes names so; the codec is loaded from files
    _raise_open_files()
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = _MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, _MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    # One byte, not none: a core dump piped to a helper on the host ignores any other limit.
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    if os.geteuid() == 0:
        capabilities.bound()
        own = _FIRST_ID + os.getpid() % _ID_SLOTS
        os.setgroups([])
        for number in (own, _NOBODY):  # in a container few ids may exist
            try:
                os.setresgid(number, number, number)
                os.setresuid(number, number, number)
                break
            except OSError:
                if number == _NOBODY:
                    raise
    try:
        capabilities.drop()
    except OSError:
        # An ordinary user cannot empty the bounding set, and has nothing in the others.
        if capabilities.current()["CapPrm"]:
            raise
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    if landlock.abi():
        there = tuple(path for path in _READABLE if os.path.isdir(path))
        landlock.restrict(readable=there, writable=())
    calls.keep_these()


def _raise_open_files() -> None:
    """Each connection takes two descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
