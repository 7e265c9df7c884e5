"""Real sandboxes for every test here, and ways to look at them from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest

import belljar

if TYPE_CHECKING:
    from belljar.testing.cluster import Cluster

Bare = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def jar() -> Iterator[belljar.Belljar]:
    with belljar.Belljar() as jar:
        yield jar


@pytest.fixture(scope="session")
def isolation(jar: belljar.Belljar) -> Mapping[str, str]:
    """Which mechanism is in force on this machine, as every result says."""
    return jar.run("pass").isolation


@pytest.fixture(scope="session")
def has_groups(isolation: Mapping[str, str]) -> bool:
    """Whether the kernel counts (cgroups) or the agent watches (rlimits and watchdog).

    Never both and never neither: a machine without groups must say what stands in for them.
    """
    if isolation["memory"].startswith("cgroup-v"):
        assert isolation["processes"] == isolation["memory"]
        # Some distributions do not hand the controller cpu to users.
        assert isolation["cpu"] in (isolation["memory"], "affinity")
        return True
    stand_ins = {"memory": "watchdog", "processes": "rlimit", "cpu": "affinity"}
    assert {name: isolation[name] for name in stand_ins} == stand_ins
    return False


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """PostgreSQL, started for whoever asks first."""
    from belljar.testing import cluster

    found = cluster.binaries()
    if found is None:
        why = "PostgreSQL is not installed (Debian: apt-get install postgresql)"
        if os.environ.get("BELLJAR_REQUIRE_ENGINES"):
            pytest.fail(why)
        pytest.skip(why)
    made = cluster.Cluster(found)
    yield made
    made.close()


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Waits for something that happens in the background, and fails with what it saw last."""

    def wait(look: Callable[[], object], wanted: object, *, within_s: float = 5.0) -> None:
        deadline = time.monotonic() + within_s
        while (seen := look()) != wanted and time.monotonic() < deadline:
            time.sleep(0.01)
        assert seen == wanted

    return wait


@pytest.fixture
def bare(tmp_path: Path) -> Bare:
    """Runs code with the same interpreter on the bare host; paths come back as inside a sandbox."""

    def run(code: str, *, stdin: str = "") -> subprocess.CompletedProcess[str]:
        folder = tmp_path / "bare"
        folder.mkdir(exist_ok=True)
        (folder / "main.py").write_text(code)
        interpreter = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
        done = subprocess.run(
            [interpreter, "-s", str(folder / "main.py")],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
            timeout=60,
        )
        done.stdout = done.stdout.replace(str(folder), "/workspace")
        done.stderr = done.stderr.replace(str(folder), "/workspace")
        return done

    return run


class Traces:
    """What a Belljar has on this machine: its processes, groups, mounts and descriptors.

    Everything that was there before this object was made belongs to somebody else.
    """

    def __init__(self) -> None:
        self._zygotes = zygotes()
        self._owners = owners()
        self._mounts = mounts()

    def zygotes(self) -> set[int]:
        return zygotes() - self._zygotes

    def processes(self) -> set[int]:
        """Everything that came from our zygotes: agents, runners, and what the code started."""
        return below(self.zygotes())

    def sandboxes(self) -> set[int]:
        """The first process of each: the children of our zygotes."""
        zygotes = self.zygotes()
        return {pid for pid in below(zygotes) if int(_status(pid).get("PPid", 0)) in zygotes}

    def groups(self) -> set[str]:
        found = set()
        for owner in self.folders():
            try:
                found |= {entry.path for entry in os.scandir(owner) if entry.is_dir()}
            except FileNotFoundError:
                continue
        return found

    def folders(self) -> set[str]:
        return owners() - self._owners

    def mounts(self) -> set[str]:
        return mounts() - self._mounts

    @staticmethod
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))


@pytest.fixture(scope="session")
def make_traces(jar: belljar.Belljar, has_groups: bool) -> Callable[[], Traces]:
    """Makes them when the session's own jar is at rest."""

    def make() -> Traces:
        deadline = time.monotonic() + 5
        last, quiet = below(zygotes()), 0
        while quiet < 4 and time.monotonic() < deadline:
            time.sleep(0.02)
            now = below(zygotes())
            quiet = quiet + 1 if now == last else 0
            last = now
        return Traces()

    return make


@pytest.fixture
def traces(make_traces: Callable[[], Traces]) -> Traces:
    return make_traces()


def zygotes() -> set[int]:
    """Processes this one holds a pidfd of that are in a pid namespace right below ours."""
    own_depth = len(_status(os.getpid())["NSpid"].split())
    found = set()
    for name in os.listdir("/proc/self/fdinfo"):
        try:
            text = Path("/proc/self/fdinfo", name).read_text()
        except OSError:
            continue
        pid = next((line.split()[1] for line in text.splitlines() if line.startswith("Pid:")), "-1")
        if int(pid) > 0 and len(_status(int(pid)).get("NSpid", "").split()) == own_depth + 1:
            found.add(int(pid))
    return found


def below(roots: set[int]) -> set[int]:
    """The living descendants of these processes, without themselves."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            status = _status(int(name))
            if status and not status["State"].startswith("Z"):
                parents[int(name)] = int(status["PPid"])
    found: set[int] = set()
    while more := {pid for pid, parent in parents.items() if parent in roots | found} - found:
        found |= more
    return found


def owners() -> set[str]:
    """The folders of this process among the machine's control groups: in ours or in one above."""
    points = {
        line.split()[4]
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if line.partition(" - ")[2].startswith("cgroup")
    }
    groups = [
        PurePosixPath(line.split(":", 2)[2])
        for line in Path("/proc/self/cgroup").read_text().splitlines()
    ]
    above = {str(path) for group in groups for path in (group, *group.parents)}
    return {
        str(path)
        for point in points
        for group in above
        for path in Path(f"{point}{group}", "belljar").glob(f"{os.getpid()}-*/")
    }


def mounts() -> set[str]:
    return set(Path("/proc/self/mountinfo").read_text().splitlines())


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
