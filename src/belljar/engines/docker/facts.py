"""What a daemon can do, from its own words, and whether it is on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from belljar.errors import EngineUnavailable

_ABOUT_OURS = 0.01


@dataclass(frozen=True, kw_only=True)
class Facts:
    local: bool
    """It sees the same folders and processes as we do."""
    cgroup_version: str
    cannot: tuple[str, ...]
    """Limits that it would accept and not enforce."""
    swap: bool
    """It can limit swap, too."""
    sockets: bool
    """It can have the kernel count what waits in sockets, where that is not so anyway."""
    seccomp: bool
    user_namespaces: bool
    rootless: bool
    runtimes: tuple[str, ...]
    podman: bool
    """It takes a seccomp profile as a path on its own machine, not as text."""
    version: str

    def check(self) -> None:
        if self.cannot:
            raise EngineUnavailable(
                f"this Docker cannot limit {', '.join(self.cannot)}",
                hint="it needs control groups: rootless Docker and Podman have them with cgroup v2"
                " only, and when systemd delegates them",
            )
        if not self.seccomp:
            raise EngineUnavailable(
                "this Docker cannot filter system calls",
                hint="it was built, or its kernel was, without seccomp",
            )


def read(info: Mapping[str, Any]) -> Facts:
    options = [str(option) for option in info.get("SecurityOptions") or ()]
    limits = {"memory": "MemoryLimit", "processes": "PidsLimit", "cpu": "CpuCfsQuota"}
    return Facts(
        local=is_here(info),
        cgroup_version=str(info.get("CgroupVersion") or "1"),
        cannot=tuple(name for name, field in limits.items() if info.get(field) is False),
        swap=info.get("SwapLimit") is not False,
        sockets=info.get("KernelMemoryTCP") is True and str(info.get("CgroupVersion")) == "1",
        seccomp=any("seccomp" in option for option in options),
        user_namespaces=any("userns" in option for option in options),
        rootless=any("rootless" in option for option in options),
        runtimes=tuple(sorted(info.get("Runtimes") or ())),
        podman="BuildahVersion" in info,
        version=str(info.get("ServerVersion") or ""),
    )


def is_here(info: Mapping[str, Any]) -> bool:
    """By what two machines hardly have in common: a forwarded socket looks like a local one."""
    ours = os.uname()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    theirs = info.get("MemTotal") or 0
    return (
        info.get("Name") == ours.nodename
        and info.get("KernelVersion") == ours.release
        and abs(theirs - memory) <= memory * _ABOUT_OURS
    )
