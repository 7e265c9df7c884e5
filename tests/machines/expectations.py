"""What doctor must find in each cell: a sandbox that starts with weaker limits than its machine
could give is a defect, though nothing fails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .guests import CONTAINERS, Guest

LIMITS = frozenset({"memory", "processes", "cpu"})
KERNELS = "cgroup-v2"
_NO_CPU_FOR_USERS = frozenset({"jammy"})
"""systemd 249 hands memory and pids down to the user's manager, and keeps cpu."""


@dataclass(frozen=True)
class Expected:
    limits: frozenset[str]
    """Those that a cgroup must enforce."""
    may_refuse: bool = False
    """Stock settings keep sandboxes from starting; doctor has to say what to type."""

    def weaker_than(self, controls: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
        """The limits that are enforced by something else, or that doctor does not name at all."""
        found = {control["name"]: control for control in controls}
        weaker = []
        for name in sorted(self.limits):
            control = found.get(name)
            if control is None or not control["works"]:
                weaker.append(f"expected a cgroup for {name}")
            elif not control["mechanism"].startswith(KERNELS):
                weaker.append(f"expected {KERNELS} for {name}, not {control['mechanism']}")
        return tuple(weaker)


def expected(guest: Guest, cell: str) -> Expected:
    if cell in CONTAINERS:  # the documented options mount no writable cgroups: a watchdog, openly
        return Expected(frozenset(), may_refuse=guest.restricts)
    if cell == "root":
        return Expected(LIMITS)
    limits = LIMITS - {"cpu"} if guest.name in _NO_CPU_FOR_USERS else LIMITS
    return Expected(limits, may_refuse=guest.restricts and cell != "user-advised")
