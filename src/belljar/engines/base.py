"""What every wall offers: the one interface behind which engines differ."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from belljar.engines.linux.places import HOSTS
from belljar.errors import EngineError, InvalidRequest
from belljar.model import Limits, Usage

MOST_HOSTS_BYTES = 32 * 1024
_HOST = r"[0-9a-f.:]+ [a-z0-9._-]+"


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What a sandbox stands on: an environment that is built and ready to be mounted."""

    name: str
    tier: str = ""
    """Which of the environment's warm interpreters; "" where there is only one."""
    mount: str
    """Where the environment's folder appears inside."""
    folder: Path | None = None
    """The environment's folder on the host; None for the bare interpreter."""
    package_path: tuple[str, ...] = ()
    """Where inside the environment's Python packages are."""
    preload: tuple[str, ...] = ()
    """Modules that a warm interpreter has already imported."""
    rehearsal: str = ""
    """A typical first use of them, gone through before the code is known."""
    kept: bool = False
    """For sandboxes that live from run to run."""

    @property
    def key(self) -> str:
        """Tells one warm interpreter from another."""
        parts = (self.name, self.tier, "kept" if self.kept else "")
        return "/".join(part for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A folder or a file of the host that a sandbox sees, read-only."""

    source: Path
    identity: tuple[int, int]
    """Its device and inode, when it was looked at: nothing else is mounted in its place."""
    folder: bool
    place: str
    """Where it appears inside."""
    executable: bool = False
    """Programs and libraries in it may be run."""


@dataclass(frozen=True, kw_only=True)
class Doors:
    """A sandbox's way to the gateway, and to nothing else."""

    wire: Callable[[], socket.socket]
    """A new wire to the gateway, for each attempt to make the doors. Whoever asks closes it."""
    hosts: Mapping[str, str]
    """Name → address, for /etc/hosts inside."""


def hosts_file(hosts: Mapping[str, str]) -> str:
    """/etc/hosts of a sandbox in which these names lead to doors."""
    lines = [f"{address} {name}" for name, address in hosts.items()]
    text = "".join(f"{line}\n" for line in lines)
    if len(text) > MOST_HOSTS_BYTES:
        raise InvalidRequest(
            f"network: the names of {len(hosts)} hosts do not fit into a sandbox",
            hint='name fewer, or all below one name, as in "*.example.com"',
        )
    if not all(re.fullmatch(_HOST, line) for line in lines):
        raise EngineError("a name or an address for /etc/hosts is none")
    return HOSTS + text


class CannotMount(EngineError):
    """This machine cannot mount it; there may be another way to bring it in."""

    def __init__(self, mount: Mount, why: str) -> None:
        super().__init__(f"{mount.place}: it cannot be mounted: {why}")
        self.mount = mount
        self.why = why


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What can be asked of a wall; everything else is refused before a sandbox starts."""

    languages: frozenset[str] | None = None
    """None: every language there is."""
    environments: frozenset[str] | None = None
    """None: every environment there is."""
    processes: bool = True
    """Code can start threads and processes of its own."""
    fresh_exec: bool = True
    """Each run can have a newly executed interpreter."""
    live_stdin: bool = True
    """Standard input can arrive while the code runs."""
    most_waiting: int = 1024
    """However high demand is, no more wait in pools: for sandboxes that cost much while idle."""
    kept: bool = False
    """Sandboxes can live from run to run."""
    branches: bool = False
    """A kept sandbox can be copied while it lives."""
    mounts: bool = False
    """Files of the host can be mounted into a sandbox: it is a `MountingEngine`."""
    terminals: bool = True
    """A program in a kept sandbox can have a terminal."""
    disk_files: bool = True
    """The number of files the code makes can be limited."""
    files: bool = True
    """Files and inputs can be given, and what the code leaves comes back."""
    network: bool = False
    """Named domains can be opened for a run."""
    doors: bool = False
    """The wall itself has doors to the gateway: it is a `DoorEngine`. Else what goes to the gateway
    and comes from it travels in the agent's stream."""
    own_environments: bool = False
    """Environments are in an image of the engine's own: none is built on the host, and a ground's
    `folder` is None."""


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Why a wall cannot be used on this machine, and what to do about it."""

    why: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class Control:
    """One line of `belljar doctor`: a part of the wall, and whether it works on this machine."""

    name: str
    mechanism: str
    works: bool
    hint: str = ""
    essential: bool = True
    """False for a control that has a weaker stand-in, named in `mechanism`."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A look at a sandbox from outside."""

    usage: Usage
    out_of_memory: bool
    """The kernel killed something in here for lack of memory."""


@dataclass(frozen=True, kw_only=True)
class Inside:
    """What the agent enforces itself, because the wall cannot do it from outside."""

    rlimits: Mapping[str, int]
    watch_memory_bytes: int | None = None
    cpus: float | None = None
    """The share of the processor to set inside, where the wall sees only the whole machine's."""
    woken: bool = False
    """The sandbox was restored from a snapshot: it needs fresh randomness and the time."""

    def wake_up(self) -> dict[str, Any]:
        """What an agent is told that slept."""
        return {"entropy": os.urandom(32).hex(), "clock_s": time.time()}


class Wall(Protocol):
    """One isolated place with an agent in it."""

    stream: socket.socket
    isolation: Mapping[str, str]
    """Control → mechanism in force, for the result."""
    inputs: Path | None
    """A folder on the host that is /data/input inside, read-only: inputs are written there. None:
    they travel through the agent, which alone can write to that place."""

    def settle(self) -> None:
        """The agent waits: what was used up to now is not the run's."""
        ...

    def apply(self, limits: Limits) -> Inside:
        """Sets the limits of the coming run; returns what the agent has to enforce."""
        ...

    def look(self) -> Seen | None:
        """What the run used and met since `settle`, or None when only the agent can tell."""
        ...

    def kill(self) -> None:
        """Ends everything inside at once. Safe to call again."""
        ...

    async def destroy(self) -> None:
        """Kills, waits until nothing is left, and frees what the wall held on the host."""
        ...


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A wall that a copy of another sandbox's interpreter is to move into."""

    wall: Wall
    family: int
    """A socket to the agent in it, for the parent's agent."""


class Engine(Protocol):
    name: str
    capabilities: Capabilities
    interpreter: str
    """The Python to execute inside, for runs that want a new one."""

    def controls(self) -> list[Control]:
        """Everything this wall is made of, tried on this machine."""
        ...

    async def create(self, ground: Ground, limits: Limits, *, waiting: bool) -> Wall:
        """Builds a new sandbox up to the point where the agent is starting behind the wall.

        `waiting`: it will wait for its run, so what takes time ahead of need may be done."""
        ...

    async def close(self) -> None:
        """Ends every sandbox and frees everything."""
        ...


class MountingEngine(Engine, Protocol):
    """Where `capabilities.mounts`."""

    async def create_with(
        self,
        ground: Ground,
        limits: Limits,
        mounts: Sequence[Mount],
        *,
        doors: Doors | None = None,
    ) -> Wall:
        """As `create`, and what is in `mounts` is there from the start; else CannotMount. `doors`:
        where `capabilities.doors`."""
        ...

    async def attach(self, wall: Wall, mount: Mount) -> None:
        """Mounts into a sandbox that lives."""
        ...


class BranchingEngine(Engine, Protocol):
    """Where `capabilities.branches`."""

    async def branch(self, parent: Wall, limits: Limits) -> Branch:
        """A wall inside `parent`'s for a copy of its interpreter to move into."""
        ...

    async def admit(self, wall: Wall, pid: int) -> None:
        """Puts the limits of a branch on the copy that moved in, as far as the host enforces them.
        `pid`: as it is inside."""
        ...

    async def empty(self, wall: Wall) -> bool | None:
        """Ends everything behind a wall but its agent and the branches inside; False if something
        is left, None if only the agent can do it."""
        ...


class DoorEngine(MountingEngine, Protocol):
    """Where `capabilities.doors`. Copies of a sandbox share its doors."""

    async def open_doors(self, wall: Wall, doors: Doors) -> None:
        """Doors for a sandbox that lives and had none, or whose gateway has gone."""
        ...

    def strays(self, wall: Wall) -> int:
        """How often code in there has dialled or sent past its doors, to where nothing leads."""
        ...

    async def name_hosts(self, wall: Wall, hosts: Mapping[str, str]) -> None:
        """Changes /etc/hosts in a sandbox that has doors, and nothing else."""
        ...
