"""Resource groups without root: what is written, in which order, what is left (L1-L3, L7, R3)."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.engines.linux.cgroups import Group, Hierarchy, removal, sweep
from belljar.engines.linux.cgroups.hierarchy import CONTROLLERS
from belljar.engines.linux.cgroups.owner import started
from belljar.engines.linux.cgroups.plan import Version, Write, plan, weight
from belljar.errors import EngineError
from belljar.model import MIB, Limits

# -- plan --------------------------------------------------------------------------------------

MEMSW = ("memory.memsw.limit_in_bytes",)
SOME = Limits(memory_bytes=64 * MIB, cpus=1.5, processes=10)


def test_the_plan_for_v1() -> None:
    """L1, L2, L3: processor, memory without swap, processes."""
    assert plan(SOME, 1, reserve=2, files=MEMSW) == [
        Write("memory", "memory.limit_in_bytes", "67108864"),
        Write("memory", "memory.memsw.limit_in_bytes", "67108864"),
        Write("pids", "pids.max", "12"),
        Write("cpu", "cpu.cfs_period_us", "100000"),
        Write("cpu", "cpu.cfs_quota_us", "150000"),
    ]


def test_v1_without_swap_accounting_turns_swapping_off() -> None:
    files = [write.file for write in plan(SOME, 1)]
    assert "memory.swappiness" in files
    assert "memory.memsw.limit_in_bytes" not in files


def test_the_plan_for_v2() -> None:
    """L1, L2, L3. memory.oom.group stays 0: it would end the agent with the code."""
    assert plan(SOME, 2, files=("memory.swap.max", "memory.oom.group")) == [
        Write("memory", "memory.max", "67108864"),
        Write("memory", "memory.swap.max", "0"),
        Write("pids", "pids.max", "11"),
        Write("cpu", "cpu.max", "150000 100000"),
    ]


@pytest.mark.parametrize(
    ("busy", "version", "write"),
    [
        (0, 1, Write("cpu", "cpu.shares", "1024")),
        (3, 1, Write("cpu", "cpu.shares", "3072")),
        (50, 1, Write("cpu", "cpu.shares", "4096")),
        (3, 2, Write("cpu", "cpu.weight", "300")),
        (50, 2, Write("cpu", "cpu.weight", "400")),
    ],
)
def test_sandboxes_weigh_as_much_as_processes_up_to_two_a_core(
    busy: int, version: Version, write: Write
) -> None:
    """L1: a busy host does not starve them, and they do not starve it."""
    assert weight(busy, version, cores=2) == write


def test_no_machine_has_more_weight_than_the_kernel_takes() -> None:
    assert weight(1000, 2, cores=128).text == "10000"
    assert weight(1000, 1, cores=512).text == "262144"


def test_only_sandboxes_that_run_code_weigh(plain: Plain) -> None:
    version = plain.hierarchy.version
    file = "cpu.shares" if version == 1 else "cpu.weight"
    folder = plain.root / ("cpu" if version == 1 else "") / plain.hierarchy.owner
    (folder / file).write_text("")
    one, two, waiting = (Group.create(plain.hierarchy, name) for name in "abc")
    for group in (one, two, two):
        group.begin()
    assert (folder / file).read_text() == weight(2, version).text
    for group in (one, two, waiting):
        assert group.remove()
    assert (folder / file).read_text() == weight(0, version).text


def test_v2_leaves_out_what_the_kernel_lacks() -> None:
    assert [write.file for write in plan(SOME, 2)] == ["memory.max", "pids.max", "cpu.max"]


@given(st.lists(st.integers(MIB, 1 << 40), min_size=1, max_size=6))
def test_no_step_of_any_v1_sequence_has_memory_above_memory_plus_swap(sizes: list[int]) -> None:
    """The kernel refuses that with EINVAL, whichever way limits move (L2)."""
    unlimited = 1 << 62
    state = {"memory.limit_in_bytes": unlimited, "memory.memsw.limit_in_bytes": unlimited}
    previous = None
    for size in sizes:
        limits = Limits(memory_bytes=size)
        for write in plan(limits, 1, files=MEMSW, previous=previous):
            if write.file in state:
                state[write.file] = int(write.text)
                assert state["memory.limit_in_bytes"] <= state["memory.memsw.limit_in_bytes"]
        assert set(state.values()) == {size}
        previous = limits


@given(st.floats(0.0001, 4096))
def test_any_share_of_a_processor_is_one_the_kernel_takes(cpus: float) -> None:
    (quota,) = [w.text for w in plan(Limits(cpus=cpus), 1) if w.file == "cpu.cfs_quota_us"]
    assert int(quota) >= 1000
    assert int(quota) == 1000 or abs(int(quota) - cpus * 100_000) <= 0.5


# -- a group on plain files --------------------------------------------------------------------

FILES: dict[int, dict[str, dict[str, str]]] = {
    1: {
        "memory": {
            "memory.limit_in_bytes": "",
            "memory.memsw.limit_in_bytes": "",
            "memory.usage_in_bytes": "1000\n",
            "memory.max_usage_in_bytes": "5000\n",
            "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        },
        "pids": {"pids.max": "", "pids.current": "3\n", "pids.peak": "7\n"},
        "cpu": {"cpu.cfs_period_us": "", "cpu.cfs_quota_us": ""},
        "cpuacct": {"cpuacct.usage": "2000000\n"},
    },
    2: {
        "": {
            "memory.max": "",
            "memory.swap.max": "",
            "memory.oom.group": "",
            "memory.current": "1000\n",
            "memory.peak": "5000\n",
            "memory.events": "low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\n",
            "pids.max": "",
            "pids.current": "3\n",
            "pids.peak": "7\n",
            "cpu.max": "",
            "cpu.stat": "usage_usec 2000\nuser_usec 1500\nsystem_usec 500\n",
        }
    },
}


class Plain:
    """A hierarchy of ordinary folders: the file work without a kernel behind it."""

    def __init__(self, root: Path, version: Version) -> None:
        self.parts = FILES[version]
        folders = {name: root / (name if version == 1 else "") for name in CONTROLLERS}
        for name in self.parts:
            (root / name).mkdir(parents=True, exist_ok=True)
        self.root = root
        self.hierarchy = Hierarchy(version, {k: str(v) for k, v in folders.items()}, enable=())
        self.hierarchy.claim()
        self.hierarchy.files = frozenset(file for files in self.parts.values() for file in files)

    def path(self, group: Group, file: str) -> Path:
        (part,) = [name for name, files in self.parts.items() if file in files]
        return self.root / part / self.hierarchy.owner / group.name / file

    def fill(self, group: Group) -> None:
        for name, files in self.parts.items():
            folder = self.root / name / self.hierarchy.owner / group.name
            (folder / "cgroup.procs").write_text("")
            for file, text in files.items():
                (folder / file).write_text(text)

    def empty(self, group: Group) -> None:
        for name in self.parts:
            folder = self.root / name / self.hierarchy.owner / group.name
            for file in folder.iterdir():
                file.unlink()


@pytest.fixture(params=[1, 2])
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Plain:
    return Plain(tmp_path, request.param)


def test_every_planned_write_lands_in_its_file(plain: Plain) -> None:
    group = Group.create(plain.hierarchy, "s1")
    plain.fill(group)
    group.apply(SOME, reserve=1)
    for write in plan(SOME, plain.hierarchy.version, files=plain.hierarchy.files):
        assert plain.path(group, write.file).read_text() == write.text


def test_usage_counts_from_the_baseline(plain: Plain) -> None:
    """L7: what a pooled sandbox used before it was handed over is not its user's."""
    group = Group.create(plain.hierarchy, "s1")
    plain.fill(group)
    version = plain.hierarchy.version
    before = group.usage()
    assert (before.cpu_ms, before.peak_memory_bytes) == (2.0, 5000)
    assert (before.processes, before.peak_processes) == (3, 7)
    assert group.oom_kills() == 2
    group.baseline()
    peak = "memory.max_usage_in_bytes" if version == 1 else "memory.peak"
    assert plain.path(group, peak).read_text().startswith("0" if version == 1 else "reset")
    plain.path(group, peak).write_text("1200\n")
    used = "cpuacct.usage" if version == 1 else "cpu.stat"
    plain.path(group, used).write_text("7000000" if version == 1 else "usage_usec 7000\n")
    after = group.usage()
    assert (after.cpu_ms, after.peak_memory_bytes) == (5.0, 1200)
    assert after.peak_processes == 3, "the old peak of 7 was not this run's"
    assert group.oom_kills() == 0
    plain.path(group, "pids.peak").write_text("9\n")
    assert group.usage().peak_processes == 9
    group.baseline()
    assert group.oom_kills() == 0


def test_a_kernel_without_peaks(tmp_path: Path) -> None:
    """L7: before 5.19 v2 keeps no memory peak, before 6.1 none of processes."""
    plain = Plain(tmp_path, 2)
    plain.hierarchy.files -= {"memory.peak", "pids.peak"}
    group = Group.create(plain.hierarchy, "s1")
    plain.fill(group)
    group.baseline()
    plain.path(group, "memory.current").write_text("9000")
    assert group.usage().peak_memory_bytes == 9000
    plain.path(group, "memory.current").write_text("10")
    reading = group.usage()
    assert reading.peak_memory_bytes == 9000
    assert reading.peak_processes is None


def test_a_peak_that_cannot_be_reset_is_only_believed_once_it_rises(tmp_path: Path) -> None:
    plain = Plain(tmp_path, 2)
    group = Group.create(plain.hierarchy, "s1")
    plain.fill(group)
    peak = plain.path(group, "memory.peak")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        group.baseline()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert group.usage().peak_memory_bytes == 1000
    peak.write_text("6000")
    assert group.usage().peak_memory_bytes == 6000


def test_remove_says_no_while_busy_and_yes_later(plain: Plain) -> None:
    """R3: nothing blocks, nothing is forgotten."""
    group = Group.create(plain.hierarchy, "s1")
    plain.fill(group)
    assert group.remove() is False
    plain.empty(group)
    assert group.remove() is True
    assert group.remove() is True
    plain.hierarchy.close()
    assert not list(plain.root.glob(f"**/{plain.hierarchy.owner}"))


def test_who_cannot_be_ended_stays_limited_and_is_named(
    plain: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3: here it is this process, which no list can make us kill."""
    monkeypatch.setattr(removal, "LAST_PAUSES_S", (0,))
    group = Group.create(plain.hierarchy, "s1")
    plain.fill(group)
    group.apply(Limits(cpus=0.5))
    processes = plain.path(group, "pids.max").with_name("cgroup.procs")
    processes.write_text(f"{os.getpid()}\n")
    share = plain.path(group, "cpu.cfs_quota_us" if plain.hierarchy.version == 1 else "cpu.max")
    with pytest.raises(EngineError, match=f"have not ended: {os.getpid()}"):
        asyncio.run(removal.removed(group, pauses_s=(0, 0)))
    assert share.read_text().startswith("50000")
    plain.empty(group)
    assert group.remove()


def test_a_failed_creation_leaves_nothing(tmp_path: Path) -> None:
    plain = Plain(tmp_path, 1)
    plain.hierarchy.claim()
    taken = tmp_path / "cpuacct" / plain.hierarchy.owner / "s1"
    taken.mkdir()
    with pytest.raises(EngineError, match="create"):
        Group.create(plain.hierarchy, "s1")
    assert list(tmp_path.glob("**/s1")) == [taken]


def test_a_failed_write_names_the_step(plain: Plain) -> None:
    group = Group.create(plain.hierarchy, "s1")
    plain.fill(group)
    plain.path(group, "pids.max").unlink()
    with pytest.raises(EngineError, match=r"apply pids\.max=11") as caught:
        group.apply(SOME)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../other"])
def test_names_that_would_leave_the_folder(plain: Plain, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        Group.create(plain.hierarchy, name)


def test_no_descriptor_is_held_per_sandbox(plain: Plain) -> None:
    """F2: five hundred sandboxes fit the usual limit of 1024 open files."""
    plain.hierarchy.claim()
    before = len(os.listdir("/proc/self/fd"))
    groups = [Group.create(plain.hierarchy, f"s{number}") for number in range(50)]
    for group in groups:
        plain.fill(group)
        group.apply(SOME)
        group.usage()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_two_belljars_in_one_process_do_not_share_a_folder(tmp_path: Path) -> None:
    first = Plain(tmp_path, 2).hierarchy
    second = Hierarchy(2, first.folders, enable=())
    group = Group.create(first, "same")
    Group.create(second, "same")
    first.claim()
    second.close()
    assert group.remove()


def test_a_forked_copy_of_the_host_does_not_take_the_hosts_folder_away(plain: Plain) -> None:
    plain.hierarchy.claim()
    pid = os.fork()
    if pid == 0:
        plain.hierarchy.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    group = Group.create(plain.hierarchy, "s1")
    assert group.remove()


# -- sweep -------------------------------------------------------------------------------------


def a_dead_owner() -> str:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        ticks = started(child.pid)
        child.communicate(b"\n")
    return f"belljar-{child.pid}-{ticks}-0"


def test_sweep_takes_only_what_the_dead_left(tmp_path: Path) -> None:
    """R3: also after a crash; and never a live Belljar's, nor a folder that is not ours."""
    hierarchy = Plain(tmp_path, 2).hierarchy
    top = tmp_path
    mine = Group.create(hierarchy, "mine")
    dead, other = a_dead_owner(), "not-an-owner"
    reused = f"belljar-{os.getpid()}-1-0"
    for name in (f"{dead}/a", f"{dead}/b", f"{reused}/c", f"{other}/d"):
        (top / name).mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    assert sweep(hierarchy) == 3
    assert not (top / dead).exists()
    assert not (top / reused).exists()
    assert (top / other / "d").is_dir()
    assert (tmp_path / "elsewhere").is_dir()
    assert (top / hierarchy.owner / "mine").is_dir()
    assert mine.remove()


def test_sweep_believes_the_lock_of_an_owner_whose_pid_it_cannot_see(tmp_path: Path) -> None:
    """R3: two containers may share a tree and see each other's pids as nobody's."""
    hierarchy = Plain(tmp_path, 2).hierarchy
    group = tmp_path / a_dead_owner() / "a"
    group.mkdir(parents=True)
    fd = os.open(group.parent, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    assert sweep(hierarchy) == 0
    assert group.is_dir()
    os.close(fd)
    assert sweep(hierarchy) == 1
    assert not group.exists()


def test_a_zombie_owner_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert started(child.pid) is not None
    assert child.stdin is not None
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert started(child.pid) is None
    child.wait()
