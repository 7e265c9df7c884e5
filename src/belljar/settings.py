"""What the operator decides: defaults, maxima, which engines, where data lives."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from belljar.errors import InvalidRequest
from belljar.model import GIB, MIB, Limits

NETWORK_TUPLES = ("network_denied", "network_private", "package_hosts")


def default_home() -> Path:
    """`BELLJAR_HOME`, or the XDG data directory."""
    if explicit := os.environ.get("BELLJAR_HOME"):
        return Path(explicit)
    try:
        data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    except RuntimeError as error:  # no HOME, and no account of this uid
        raise InvalidRequest("there is no home directory", hint="set BELLJAR_HOME") from error
    return Path(data) / "belljar"


def default_trail() -> str:
    """`BELLJAR_TRAIL`, or none."""
    return os.environ.get("BELLJAR_TRAIL", "")


def default_index() -> str:
    """The one that uv is told to use, if it is told by a variable."""
    names = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
    return next((found for name in names if (found := os.environ.get(name))), "")


@dataclass(frozen=True, kw_only=True)
class Settings:
    home: Path = field(default_factory=default_home)
    engine: str = "auto"
    """The wall of runs that neither name one nor say what they need."""
    engines: tuple[str, ...] = ()
    """The walls that callers may choose from; empty: all."""
    defaults: Limits = field(default_factory=Limits)
    maxima: Limits = field(
        default_factory=lambda: Limits(
            timeout_s=120.0,
            memory_bytes=16 * GIB,
            cpus=64.0,
            processes=4096,
            disk_bytes=16 * GIB,
            disk_files=1_000_000,
            open_files=65_536,
            output_bytes=64 * MIB,
            result_files=10_000,
            result_bytes=GIB,
        )
    )
    code_bytes: int = 100_000
    """R5: longer code is refused before a sandbox starts."""
    pool_size: int = 4
    """Walled, unused sandboxes kept waiting per environment once it was used; 0 turns pools off."""
    pool_maximum: int = 64
    """How many may wait in all, however high demand is."""
    pool_idle_s: float = 30.0
    """After this long without a run a pool shrinks back to `pool_size`."""
    concurrency: int = 64
    """Runs at once; further callers wait."""
    required: tuple[str, ...] = ()
    """Controls that must be in force, by their name in a result's `isolation`; else an error."""
    build_environments: bool = True
    """Build a missing environment on first use; if False, that is an error saying how to."""
    packages_allowed: tuple[str, ...] | Literal["any"] = (":common:",)
    """What `packages=` may name: names, patterns such as "types-*", ":common:" for Belljar's own
    list, or "any". Their dependencies come along."""
    package_bytes: int = GIB
    """The most that one set of packages may take on disk."""
    package_build_s: float = 300.0
    """The longest that resolving and installing a set may take."""
    layers_bytes: int = 20 * GIB
    """What all sets together may take on disk; then no new one is built."""
    package_index: str = field(default_factory=default_index)
    """The index that ":packages:" in `network=` stands for; https://HOST/simple/."""
    package_hosts: tuple[str, ...] = ()
    """Further hosts that its files are on."""
    trail: str = field(default_factory=default_trail)
    """Where every attempt is written before it runs and completed after (P2): sqlite:///FILE or
    postgresql+psycopg://USER@HOST/DATABASE; empty: nowhere."""
    trail_text: bool = False
    """Whether it has the code itself, not only its hash."""
    trail_sync: Literal["normal", "full"] = "normal"
    """What a written line survives: any end of a process, or ("full") the loss of power too."""
    trail_keep_days: float = 0.0
    """Older lines are taken out; 0: never."""
    network_allowed: tuple[str, ...] | Literal["any"] = "any"
    """Hosts that callers may ask for, as in a rule: "api.example.com", "*.example.org:443"."""
    network_denied: tuple[str, ...] = ()
    """Hosts that nobody reaches, whatever a rule says."""
    network_private: tuple[str, ...] = ()
    """Addresses, as 10.1.0.0/16, that may be dialled although they are not public."""
    network_names: Mapping[str, str] = field(default_factory=dict)
    """Host → address, for names that are not looked up."""
    network_authorities: Path | None = None
    """A file of certificates to trust beside the system's, where hosts have a private one's."""
    network_namespace: str = ""
    """The network namespace that the gateway works in, a name of `ip netns` or a path; empty: the
    host's."""
    network_connections: int = 64
    """Of one sandbox, at once."""
    network_bytes: int = GIB
    """Of one sandbox, both ways together."""
    network_requests_per_s: float = 100.0
    """Of one sandbox; a short burst of as many is let through."""
    network_connection_s: float = 600.0
    """The longest that a connection may last."""
    network_idle_s: float = 60.0
    """The longest that nothing may move on it."""
    network_processes: int = 16
    """Gateways at once: each tenant has its own, and where there are more tenants some share."""
    docker_host: str = ""
    """Where Docker's daemon listens, unix:///path or tcp://host:port; empty: DOCKER_HOST, or the
    usual sockets of Docker and Podman."""
    docker_runtime: str = ""
    """Another OCI runtime that the daemon knows, such as runsc or kata; empty: its default."""
    docker_images: Mapping[str, str] = field(default_factory=dict)
    """Environment → image; those not named are belljar/<environment>."""
    docker_python: str = "/usr/bin/python3"
    """The interpreter in the images, 3.9 or newer."""
    gvisor_runsc: str = ""
    """gVisor's program; empty: BELLJAR_RUNSC, or `runsc` on PATH."""
    gvisor_platform: str = ""
    """How gVisor gets hold of system calls, systrap or ptrace; empty: the best that it has."""

    microvm_program: str = ""
    """QEMU; empty: `qemu-system-x86_64` on PATH."""
    microvm_accelerator: str = "auto"
    """kvm, tcg (emulation), or auto: kvm where a machine really starts with it."""
    microvm_memory_bytes: int = 4 * GIB
    """The most that a run in a microVM can have: its machine is that large, whatever it uses."""
    microvm_cpus: int = 0
    """Virtual CPUs of a machine; 0: two with kvm, one with tcg."""

    def __post_init__(self) -> None:
        for name, least in (
            ("pool_size", 0),
            ("pool_maximum", 0),
            ("concurrency", 1),
            ("package_bytes", 0),
            ("layers_bytes", 0),
            ("network_processes", 1),
        ):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise InvalidRequest(
                    f"settings.{name}: must be a whole number of at least {least}, not {value!r}"
                )
        if self.trail_sync not in ("normal", "full"):
            raise InvalidRequest(
                f'settings.trail_sync: must be "normal" or "full", not {self.trail_sync!r}'
            )
        anything = ("packages_allowed", "network_allowed")
        for name in ("required", "engines", *anything, *NETWORK_TUPLES):
            value = getattr(self, name)
            if isinstance(value, str) and not (name in anything and value == "any"):
                raise InvalidRequest(
                    f"settings.{name}: must be a tuple of names, not one text",
                    hint=f"write {name}=({value!r},)",
                )
