"""What the server has on this machine, looked at from outside: processes, groups, mounts, files.

Others may use the machine meanwhile, so everything is told by the server's own pids and folder.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from .place import Place

OURS = b"\0-SsB\0"
"""How zygotes, lenders and gateways are started."""
GONE_S = 15.0


@dataclass(frozen=True)
class Process:
    """A pid alone may be somebody else's by the time it is looked at again."""

    pid: int
    started: str


def look(pid: int) -> tuple[Process, int] | None:
    """The process and its parent; None if it is dead. Nothing of a zombie runs."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if not fields or fields[0] in "ZX":
        return None
    return Process(pid, fields[19]), int(fields[1])


def alive(processes: Iterable[Process]) -> list[Process]:
    return [one for one in processes if (now := look(one.pid)) and now[0] == one]


def family(server: int) -> set[Process]:
    """The server's descendants, and those of whatever it holds by a pidfd: zygotes are nobody's
    children, and sandboxes are theirs."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    everyone = [seen for pid in numbers if (seen := look(pid))]
    roots = held(server) | {server}
    known, found = set(roots), {one for one, _ in everyone if one.pid in roots}
    while more := {one for one, parent in everyone if parent in known} - found:
        found |= more
        known |= {one.pid for one in more}
    return {one for one in found if one.pid != server}


def held(server: int) -> set[int]:
    """Processes that the server has a pidfd of."""
    found = set()
    for info in Path(f"/proc/{server}/fdinfo").glob("*"):
        for line in _text(str(info)).splitlines():
            if line.startswith("Pid:"):
                found.add(int(line.split()[1]))
    return {pid for pid in found if pid > 0 and pid != server}


def gateways(server: int) -> list[int]:
    """Those of the server's own children that have given up all system calls but a few."""
    return [pid for pid in _children(server) if _status(pid, "Seccomp") == "2"]


def lenders(server: int) -> list[int]:
    """Those that make mounts for sandboxes, and so have not."""
    return [pid for pid in _children(server) if _status(pid, "Seccomp") != "2"]


def _children(server: int) -> list[int]:
    """Started as its own; a zygote leaves its parent at once."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    mine = [pid for pid in numbers if (seen := look(pid)) and seen[1] == server]
    return sorted(pid for pid in mine if OURS in _bytes(f"/proc/{pid}/cmdline"))


def zygotes(server: int) -> list[int]:
    """What the server holds that is pid 1 of a pid namespace right below ours."""
    depth = len(_status(os.getpid(), "NSpid").split())
    found = []
    for pid in held(server):
        names = _status(pid, "NSpid").split()
        if len(names) == depth + 1 and names[-1] == "1":
            found.append(pid)
    return sorted(found)


def memory_bytes(pid: int) -> int:
    words = _status(pid, "VmRSS").split()
    return int(words[0]) * 1024 if words else 0


def threads(pid: int) -> int:
    return int(_status(pid, "Threads") or 0)


def descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def groups(pids: Iterable[int]) -> list[str]:
    """Control groups that a server with one of these pids made: in our groups or in one above."""
    points = {
        line.split()[4]
        for line in _text("/proc/self/mountinfo").splitlines()
        if line.partition(" - ")[2].startswith("cgroup")
    }
    own = [PurePosixPath(line.split(":", 2)[2]) for line in _text("/proc/self/cgroup").splitlines()]
    above = {str(path) for group in own for path in (group, *group.parents)}
    wanted = {str(pid) for pid in pids}
    return sorted(
        str(path)
        for point in points
        for group in above
        for path in Path(f"{point}{group}", "belljar").glob("*-*")
        if path.name.partition("-")[0] in wanted
    )


@dataclass
class Traces:
    """What a server must not leave: gathered while it lives, looked for when it is gone."""

    place: Place
    processes: set[Process] = field(default_factory=set)
    networks: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.networks = _networks()

    def note(self) -> set[Process]:
        found = family(self.place.pid)
        self.processes = {*alive(self.processes), *found}
        return found

    def gone(self, within_s: float = GONE_S) -> list[Process]:
        """Processes that outlive their server; waits until there is none."""
        deadline = time.monotonic() + within_s
        while (left := alive(self.processes)) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.processes.clear()
        return left

    def left(self, pids: Iterable[int]) -> list[str]:
        """Everything there is when the last server has stopped."""
        place = self.place
        own = (str(place.disk), str(place.folder / "docker"))
        found = [f"process {one.pid}: {_command(one.pid)}" for one in self.gone()]
        found += [f"control group {path}" for path in groups(pids)]
        found += [
            f"mount {line.split()[4]}"
            for line in _text("/proc/self/mountinfo").splitlines()
            if str(place.folder) in line and not line.split()[4].startswith(own)
        ]
        found += [f"network namespace {name}" for name in sorted(_networks() - self.networks)]
        found += [
            f"socket {line.split()[-1]}"
            for line in _text("/proc/net/unix").splitlines()
            if str(place.folder) in line and not line.split()[-1].startswith(own)
        ]
        found += [f"temporary file {path.name}" for path in place.temporary.iterdir()]
        for folder in (place.home, place.disk):
            for path in _own_files(folder):
                if _is_temporary(path):
                    found.append(f"file {path.relative_to(place.folder)}")
        return found


def _own_files(folder: Path) -> Iterable[Path]:
    """Without what is linked in: environments were built by somebody else."""
    for where, folders, names in os.walk(folder, followlinks=False):
        for name in (*folders, *names):
            yield Path(where, name)


def _is_temporary(path: Path) -> bool:
    """Half of an upload, half of a written file, or the mark of a process that is no more."""
    half = path.name.endswith((".new", ".tmp", ".part"))
    upload = path.parent.name == "datasets" and path.name.startswith(".")
    return half or upload or path.parent.name.endswith("-owners")


def _networks() -> set[str]:
    """Network namespaces that have a name; others end with their last process."""
    mounts = _text("/proc/self/mountinfo").splitlines()
    named = {line.split()[4] for line in mounts if " nsfs " in line}
    return {name for name in named if "belljar" in name}


def _command(pid: int) -> str:
    return _bytes(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode("utf-8", "replace")[:200]


def _status(pid: int, name: str) -> str:
    for line in _text(f"/proc/{pid}/status").splitlines():
        if line.startswith(f"{name}:"):
            return line.partition(":")[2].strip()
    return ""


def _text(path: str) -> str:
    return _bytes(path).decode("utf-8", "replace")


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
