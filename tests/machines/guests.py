"""The guests: which distribution, what is installed in it, which sessions are tried."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

BASE = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "dbus-user-session",
    "libpam-systemd",
    "udev",
    "kmod",
    "util-linux",
    "login",
    "passwd",
    "procps",
    "iproute2",
    "ca-certificates",
    "openssh-server",
    "openssh-client",
    "apparmor",  # recommended by every stock kernel, so stock machines have it
    "sudo",
    "make",
    "git",
    "curl",
)
DOCKER = ("docker.io", "iptables")
SESSIONS = ("root", "user", "user-service", "user-scope")
CONTAINERS = ("docker-root", "docker-user")
ADVISED = ("user-advised",)


@dataclass(frozen=True, kw_only=True)
class Guest:
    name: str
    title: str
    archive: str
    """`debian` or `ubuntu`."""
    suites: tuple[str, ...]
    components: tuple[str, ...] = ("main",)
    python: str = "python3"
    packages: tuple[str, ...] = ()
    image: tuple[str, ...] = ()
    """What a container image made from the same archive holds beside its essential packages."""
    restricts: bool = False
    """Whether a stock system keeps ordinary users from namespaces until somebody allows it."""
    fresh_days: int = 30
    """A root that is older is made anew: a kernel of last year says little of today's."""
    may_be_stale: bool = False
    """A suite that is rewritten daily: a mirror may hold a release file past its date. Its
    signature is checked all the same."""

    @property
    def cells(self) -> tuple[str, ...]:
        containers = CONTAINERS if self.image else ()
        return (*SESSIONS, *containers, *(ADVISED if self.restricts else ()))

    @property
    def includes(self) -> tuple[str, ...]:
        return (*BASE, *self.packages, *(DOCKER if self.image else ()))

    def key(self, recipe: str) -> str:
        """Changes with whatever changes the root: the packages asked for, and how it is made."""
        facts = [self.archive, self.suites, self.components, self.includes, self.image, recipe]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]


_DEBIAN = ("python3", "python3-venv", "linux-image-cloud-amd64")
# With apt comes libstdc++, which Node.js needs: not essential, yet in every stock image.
_IMAGE = ("apt", "python3", "ca-certificates")

GUESTS = {
    guest.name: guest
    for guest in (
        Guest(
            name="bookworm",
            title="Debian 12",
            archive="debian",
            suites=("bookworm", "bookworm-updates"),
            packages=_DEBIAN,
            image=_IMAGE,
        ),
        Guest(
            name="trixie",
            title="Debian 13",
            archive="debian",
            suites=("trixie", "trixie-updates"),
            packages=(*_DEBIAN, "docker-cli"),  # a package of its own since Debian 13
            image=_IMAGE,
        ),
        Guest(
            name="noble",
            title="Ubuntu 24.04",
            archive="ubuntu",
            suites=("noble", "noble-updates"),
            components=("main", "universe"),
            # As in the image: here systemd does not bring libstdc++ along.
            packages=("apt", "python3", "python3-venv", "linux-image-virtual"),
            image=_IMAGE,
            restricts=True,
        ),
        Guest(
            name="jammy",
            title="Ubuntu 22.04",
            archive="ubuntu",
            suites=("jammy", "jammy-updates"),
            components=("main", "universe"),
            # Its own Python is 3.10, which only the guest's agent uses.
            python="python3.11",
            packages=(
                "python3",
                "python3.11",
                "python3.11-venv",
                "initramfs-tools",  # its kernel has the drives as a module
                "linux-image-virtual",
            ),
        ),
        Guest(
            name="forky",
            title="Debian testing",
            archive="debian",
            suites=("forky",),
            packages=_DEBIAN,
            may_be_stale=True,
            fresh_days=7,
        ),
    )
}
