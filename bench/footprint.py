"""What idle sandboxes hold in memory, what making and taking them down costs.

Runs in a process of its own (`python -m bench.footprint base 500`) that adopts the zygote, so that
every process counted is known to be ours. Prints JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from belljar import Belljar, Settings

MIB = 1024 * 1024
TICKS = os.sysconf("SC_CLK_TCK")
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """The process that starts a zygote exits; this makes the zygote our child, not init's."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """The living ones; an adopted zygote that ended stays a zombie, for nobody waits for it."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            state, parent = stat.rpartition(")")[2].split()[:2]
            if state != "Z":
                parents.setdefault(int(parent), []).append(int(entry))
    found, queue = [], [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


def _field_kib(path: str, names: tuple[str, ...]) -> int:
    total = 0
    for line in Path(path).read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in names:
            total += int(rest.split()[0])
    return total


def held(pids: Iterable[int]) -> dict[str, float | int | None]:
    """Proportional size (shared pages divided among those who share them) and page tables."""
    pss = tables = unreadable = count = 0
    for pid in pids:
        count += 1
        try:
            pss += _field_kib(f"/proc/{pid}/smaps_rollup", ("Pss",))
            tables += _field_kib(f"/proc/{pid}/status", ("VmPTE",))
        except OSError:  # the agent is closed to an ordinary user, as it should be
            unreadable += 1
    return {
        "processes": count,
        "unreadable": unreadable,
        "pss_bytes": pss * 1024,
        "page_table_bytes": tables * 1024,
    }


def group_bytes(pid: int) -> int | None:
    """What the memory controller charges to the group of this process."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        candidates = []
        if number == "0":
            candidates = [f"/sys/fs/cgroup{path}/memory.current"]
        elif "memory" in controllers.split(","):
            candidates = [f"/sys/fs/cgroup/memory{path}/memory.usage_in_bytes"]
        for candidate in candidates:
            try:
                return int(Path(candidate).read_text())
            except (OSError, ValueError):
                continue
    return None


def available_bytes() -> int:
    return _field_kib("/proc/meminfo", ("MemAvailable",)) * 1024


def machine_cpu_s() -> float:
    """Processor time that the whole machine has spent, in anything but idling."""
    numbers = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(numbers) - numbers[3] - numbers[4]) / TICKS


class Meter:
    """Wall time and machine-wide processor time of a block."""

    def __enter__(self) -> Meter:
        self._wall, self._cpu = time.perf_counter(), machine_cpu_s()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_ms = (time.perf_counter() - self._wall) * 1000
        self.cpu_ms = (machine_cpu_s() - self._cpu) * 1000

    def per(self, count: int) -> dict[str, float]:
        return {"wall_ms": self.wall_ms / count, "cpu_ms": self.cpu_ms / count}


def idle(environment: str, count: int) -> dict[str, Any]:
    """`count` sandboxes at once, doing nothing; then all of them ended."""
    jar = Belljar(Settings(pool_size=1, pool_maximum=count, pool_idle_s=3600))
    jar.run("print(1)", environment=environment)
    jar.warm(environment, 1)
    time.sleep(0.5)
    zygotes = children(os.getpid())
    few, before = agents(zygotes), available_bytes()
    with Meter() as making:
        jar.warm(environment, count)
    time.sleep(1.0)
    many = agents(zygotes)
    inside = [pid for pid in descendants(os.getpid()) if pid not in zygotes]
    groups = [size for pid in many if (size := group_bytes(pid)) is not None]
    report = {
        "environment": environment,
        "sandboxes": len(many),
        "inside": held(inside),
        "zygotes": held(zygotes),
        "host_process": held([os.getpid()]),
        "cgroup_bytes": sum(groups) if len(groups) == len(many) else None,
        "machine_bytes": (before - available_bytes()) / (len(many) - len(few)) * len(many),
        "making": making.per(len(many) - len(few)),
    }
    with Meter() as ending:
        jar.close()
    time.sleep(1.0)
    return report | {"ending": ending.per(len(many)), "left": len(descendants(os.getpid()))}


def agents(zygotes: Iterable[int]) -> list[int]:
    """Pid 1 of each sandbox."""
    return [child for zygote in zygotes for child in children(zygote)]


def children(pid: int) -> list[int]:
    return [child for child in descendants(pid) if _parent(child) == pid]


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def gone(environment: str, rounds: int) -> list[float]:
    """Milliseconds from the answer until no process of the sandbox is left, pool off."""
    samples = []
    with Belljar(Settings(pool_size=0)) as jar:
        jar.run("print(1)", environment=environment)
        time.sleep(0.5)
        lists = [Path(f"/proc/{pid}/task/{pid}/children") for pid in children(os.getpid())]
        for _ in range(rounds):
            jar.run("print(1)", environment=environment)
            answered = time.perf_counter()
            while any(path.read_text() for path in lists):
                time.sleep(0.0002)
            samples.append((time.perf_counter() - answered) * 1000)
            time.sleep(0.01)
    return samples


def main() -> None:
    environment, count, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    adopt_orphans()
    json.dump({"idle": idle(environment, count), "gone_ms": gone(environment, rounds)}, sys.stdout)


if __name__ == "__main__":
    main()
