"""The container of one sandbox as the body of Docker's create request: pure, to be read and tested.

Every line of it is a part of the wall; what is not said here is as Docker has it for a container
without privileges.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from belljar.engines.base import Ground
from belljar.engines.linux.places import INPUT, OUTPUT, UID, WORKSPACE, WRITABLE
from belljar.model import MIB, Limits

from . import boot
from .profile import profile

AGENT_PROCESSES = 1
START_BYTES = 32 * MIB
"""With less a container does not start."""
MODULE_BYTES = 3 * MIB
"""What a module imported ahead holds, on average of the data environment and rounded up. It is not
the code's, so it comes on top of the limit."""
RUNTIME_BYTES = 128 * MIB
RUNTIME_PROCESSES = 1024
"""For the kernel that a runtime such as gVisor or Kata brings along: its memory and threads are in
the container's group, too."""
WATCHED_BYTES = 64 * MIB
"""Where we cannot read the group the agent watches the memory: it must see it before the kernel
does, whose verdict nobody tells us."""
PLAIN_RUNTIMES = ("", "runc", "crun", "io.containerd.runc.v2", "youki")
NANO = 1_000_000_000
OOM_PREFERENCE = 250
"""Among the host's processes rather this one; among the sandbox's own the code (500)."""
HOST_NAME = "belljar"
STORE = "/var/lib/belljar"
"""Where the files of a kept sandbox's checkpoints are."""
DESCRIPTORS = 65_536
UIDS = range(50_000, 51_024)
"""Few systems give these to their users, and they fit a remapped daemon's 65,536."""

# What of /proc says something about the host and not about the sandbox, and all of /sys. The
# kernel's settings are among them: programs ask for a few and do without.
_PROC_MASKED = """
acpi asound buddyinfo bus cgroups cmdline config.gz consoles crypto devices diskstats dma driver
dynamic_debug execdomains fb fs interrupts iomem ioports irq kallsyms kcore key-users keys kmsg
kpagecgroup kpagecount kpageflags latency_stats locks mdstat misc modules mtrr pagetypeinfo
partitions pressure sched_debug schedstat scsi slabinfo softirqs swaps sys sysrq-trigger sysvipc
timer_list timer_stats tty vmallocinfo vmstat zoneinfo
"""
# Terminals are counted for the whole machine: without them nobody can take the neighbours'.
_SYS_MASKED = "block bus class dev devices firmware fs/bpf fs/ext4 hypervisor kernel module power"
MASKED = ("/dev/mqueue", "/dev/pts", *(f"/proc/{name}" for name in _PROC_MASKED.split()))
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")

# Bytes that wait in sockets are kernel memory, some of it charged to nobody: few may wait, and
# little in each; loopback needs no large windows.
SYSCTLS = {
    "net.core.somaxconn": "32",
    "net.ipv4.ip_unprivileged_port_start": "0",  # the agent, a nobody, has doors at 80 and 443
    "net.ipv4.tcp_rmem": "4096 16384 16384",
    "net.ipv4.tcp_wmem": "4096 16384 65536",
    "net.ipv4.igmp_max_memberships": "0",
    "net.ipv4.tcp_max_tw_buckets": "2048",
    "net.unix.max_dgram_qlen": "8",
}

VARIABLES = {
    # Of the agent, not of the code: what is imported ahead must leave no file in /workspace.
    "HOME": "/tmp",
    "XDG_CACHE_HOME": "/tmp/.cache",
    "XDG_CONFIG_HOME": "/tmp/.config",
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
}

ULIMITS = {
    # One byte, not none: a core dump piped to a helper on the host ignores any other limit.
    "core": 1,
    "memlock": 64 * 1024,
    "msgqueue": 0,
    "nice": 0,
    "rtprio": 0,
    "sigpending": 1024,
}


@dataclass(frozen=True, kw_only=True)
class Reserve:
    """What the group holds that is not the code's, on top of its limits."""

    memory_bytes: int = 0
    processes: int = AGENT_PROCESSES


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a container stands on."""

    image: str
    uid: int = UID
    """Of this sandbox alone: the kernel counts some things by user, and one sandbox must not use up
    its neighbours' share of them."""
    python: str
    """The image's interpreter."""
    runtime: str = ""
    hosts: Path | None = None
    """An /etc/hosts of ours, on the daemon's machine. With it Docker need not set up a network that
    has nothing in it, which takes it as long as all the rest; the namespace is as empty."""
    folder: Path | None = None
    """The environment's folder on the daemon's machine; None where the image has it."""
    native: bool = False
    """The folder holds packages that were built for our own Python's version."""
    inputs: Path | None = None
    """What is to be seen at /data/input, on the daemon's machine."""

    profile: str | None = None
    """Of system calls: a path on the daemon's machine. None: said in words. Empty: the daemon's
    own, and the container's first process puts ours on."""
    podman: bool = False
    watched: bool = False
    """The agent watches the memory."""
    counts_sockets: bool = False
    """cgroup v1, which counts what waits in sockets only when asked to."""

    @property
    def counted_outside(self) -> bool:
        """gVisor's own tmpfs does not count files."""
        return self.runtime.startswith("runsc") and not self.podman


def container(
    place: Place, ground: Ground, limits: Limits, *, labels: Mapping[str, str], waiting: bool
) -> dict[str, Any]:
    command = boot.command(place.python, configuration(place, ground, limits, waiting=waiting))
    return {
        "Image": place.image,
        "Entrypoint": command[:1],
        "Cmd": command[1:],
        "User": f"{place.uid}:{place.uid}",
        "WorkingDir": "/",
        "Env": [f"{name}={value}" for name, value in VARIABLES.items()],
        "Hostname": HOST_NAME,
        "Labels": dict(labels),
        "OpenStdin": True,
        "StdinOnce": True,  # when we are gone the agent's input ends, and so does the agent
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "NetworkDisabled": place.hosts is not None,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "AutoRemove": True,
            "Runtime": place.runtime,
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "Privileged": False,
            "SecurityOpt": ["no-new-privileges", *_seccomp(place)],
            "NetworkMode": "none",
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "Dns": ["127.0.0.1"],  # refused on loopback at once: a temporary failure (I4)
            "DnsOptions": ["timeout:1", "attempts:1"],
            "DnsSearch": ["."],
            "Tmpfs": {} if place.counted_outside else tmpfs(place, ground, limits),
            "Mounts": mounts(place, ground)
            + (volumes(place, ground, limits) if place.counted_outside else []),
            "MaskedPaths": masked(place),
            "ReadonlyPaths": list(READ_ONLY),
            "Sysctls": SYSCTLS if place.runtime in PLAIN_RUNTIMES else {},
            "OomScoreAdj": OOM_PREFERENCE,
            "Init": False,
            "LogConfig": {"Type": "none", "Config": {}},  # output is for us, not for the disk
            "Ulimits": [{"Name": n, "Soft": m, "Hard": m} for n, m in ulimits(place).items()],
            **resources(limits, reserve(place, ground, waiting=waiting)),
            **({"KernelMemoryTCP": limits.memory_bytes} if place.counts_sockets else {}),
        },
    }


def configuration(place: Place, ground: Ground, limits: Limits, *, waiting: bool) -> dict[str, Any]:
    """For the agent (see guest/standalone.py). What nobody waits for is imported ahead."""
    roots = {"workspace": WORKSPACE, "input": INPUT, "output": OUTPUT}
    if ground.kept:
        roots.update(tmp="/tmp", store=STORE)
    return {
        "stream": [0, 1],
        "roots": roots,
        "user": None,
        "package_path": list(ground.package_path),
        "preload": list(ground.preload) if waiting else [],
        "rehearsal": ground.rehearsal if waiting else "",
        "rehearse": waiting,
        "writable": list(WRITABLE),
        "disk_bytes": limits.disk_bytes,
        "python": list(sys.version_info[:2]) if place.native else None,
        "kept": ground.kept,
    }


def reserve(place: Place, ground: Ground, *, waiting: bool) -> Reserve:
    modules = len(ground.preload) if waiting else 0
    plain = place.runtime in PLAIN_RUNTIMES
    return Reserve(
        memory_bytes=MODULE_BYTES * modules
        + (0 if plain else RUNTIME_BYTES)
        + (WATCHED_BYTES if place.watched else 0),
        processes=AGENT_PROCESSES + (0 if plain else RUNTIME_PROCESSES),
    )


def resources(limits: Limits, reserve: Reserve) -> dict[str, int]:
    """Also the body of an update."""
    memory = max(limits.memory_bytes + reserve.memory_bytes, START_BYTES)
    return {
        "Memory": memory,
        "MemorySwap": memory,  # memory and swap together: no swap
        "NanoCpus": max(NANO // 100, round(limits.cpus * NANO)),
        "PidsLimit": limits.processes + reserve.processes,
    }


def tmpfs(place: Place, ground: Ground, limits: Limits) -> dict[str, str]:
    """Each place has the whole quota: Docker cannot mount one tmpfs in several places. What lies in
    them is in the memory limit, so all of them together cannot hold more than that."""
    return {
        at: f"rw,exec,nosuid,nodev,{_quota(place, at, limits)}" for at in _writable(place, ground)
    }


def volumes(place: Place, ground: Ground, limits: Limits) -> list[dict[str, Any]]:
    """The same, mounted by the host's kernel instead of the runtime's."""
    return [
        {
            "Type": "volume",
            "Target": at,
            "VolumeOptions": {
                "NoCopy": True,
                "Labels": {"belljar": ""},
                "DriverConfig": {
                    "Name": "local",
                    "Options": {
                        "type": "tmpfs",
                        "device": "tmpfs",
                        "o": f"nosuid,nodev,{_quota(place, at, limits)}",
                    },
                },
            },
        }
        for at in _writable(place, ground)
    ]


def _writable(place: Place, ground: Ground) -> tuple[str, ...]:
    """By the agent; the code is kept out of the last two by Landlock, where the kernel has it."""
    inputs = () if place.inputs else (INPUT,)
    return (*WRITABLE, *inputs, *((STORE,) if ground.kept else ()))


def _quota(place: Place, at: str, limits: Limits) -> str:
    if place.podman:  # knows neither owners nor a number of files
        return f"size={limits.disk_bytes},mode=1777,notmpcopyup"
    mode = "1777" if at in ("/tmp", "/dev/shm") else "0700" if at == STORE else "0755"
    size = f"size={limits.disk_bytes},nr_inodes={limits.disk_files}"
    return f"{size},uid={place.uid},gid={place.uid},mode={mode}"


def ulimits(place: Place) -> dict[str, int]:
    """Podman would raise open files and processes further than some hosts let it."""
    if not place.podman:
        return ULIMITS
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, DESCRIPTORS)
    return {**ULIMITS, "nofile": files, "nproc": RUNTIME_PROCESSES * 8}


def masked(place: Place) -> list[str]:
    """All of /sys, or all but the control group, where the agent has to look at it."""
    system = [f"/sys/{name}" for name in _SYS_MASKED.split()] if place.watched else ["/sys"]
    return [*MASKED, *system]


def mounts(place: Place, ground: Ground) -> list[dict[str, Any]]:
    wanted = [(place.folder, ground.mount), (place.inputs, INPUT), (place.hosts, "/etc/hosts")]
    return [
        {
            "Type": "bind",
            "Source": str(source),
            "Target": target,
            "ReadOnly": True,
            "BindOptions": {"Propagation": "rprivate"},
        }
        for source, target in wanted
        if source
    ]


def profile_text() -> str:
    return json.dumps(profile(), separators=(",", ":"))


def _seccomp(place: Place) -> list[str]:
    if place.profile is None:
        return [f"seccomp={profile_text()}"]
    return [f"seccomp={place.profile}"] if place.profile else []
