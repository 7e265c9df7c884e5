"""Real processes in real groups: bombs stop at the limit, nothing is left (L1-L3, L7, R3)."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from belljar.engines.linux import cgroups
from belljar.engines.linux.cgroups import Absent, Group, Hierarchy
from belljar.engines.linux.cgroups.find import parse_mounts
from belljar.engines.linux.cgroups.hierarchy import CONTROLLERS
from belljar.engines.linux.cgroups.owner import started
from belljar.model import MIB, Limits

TASKS = {1: "tasks", 2: "cgroup.threads"}
SOURCE = Path(cgroups.__file__).parents[4]


class Children:
    """Forked children that wait for `go`, and are all dead at the end of the test."""

    def __init__(self) -> None:
        self.gates: dict[int, int] = {}

    def fork(self, body: Callable[[], object]) -> int:
        gate, opener = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                os.close(opener)
                if os.read(gate, 1):
                    body()
                    code = 0
            except BaseException:
                code = 98
            finally:
                os._exit(code)
        os.close(gate)
        self.gates[pid] = opener
        return pid

    def go(self, pid: int) -> None:
        os.write(self.gates[pid], b"x")

    def wait(self, pid: int, *, timeout_s: float = 20) -> int:
        """The exit code, negative for a signal; a child that hangs fails the test."""
        fd = os.pidfd_open(pid)
        try:
            assert select.select([fd], [], [], timeout_s)[0], f"{pid} hangs"
        finally:
            os.close(fd)
        os.close(self.gates.pop(pid))
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def end(self) -> None:
        for pid, gate in self.gates.items():
            os.kill(pid, signal.SIGKILL)
            os.close(gate)
            os.waitpid(pid, 0)


@pytest.fixture
def children() -> Iterator[Children]:
    family = Children()
    yield family
    family.end()


@pytest.fixture
def hierarchy() -> Iterator[Hierarchy]:
    place = cgroups.detect()
    if isinstance(place, Absent):
        pytest.skip(f"no groups on this machine: {place.reason}")
    place.claim()
    yield place
    owner, places = place.owner, place.places
    place.close()
    assert not [at for at in places if os.path.exists(f"{at}/{owner}")]


@pytest.fixture
def group(hierarchy: Hierarchy) -> Iterator[Group]:
    made = Group.create(hierarchy, "test")
    yield made
    assert clear(made)


def put(group: Group, pid: int) -> None:
    """Moves a process, with its threads but not its children, into the group."""
    place = group.hierarchy
    for at in place.places:
        Path(at, place.owner, group.name, "cgroup.procs").write_text(str(pid))


def memory_bytes(group: Group) -> int:
    """What is charged right now."""
    place = group.hierarchy
    file = "memory.usage_in_bytes" if place.version == 1 else "memory.current"
    folder = Path(place.folders["memory"], place.owner, group.name)
    return int((folder / file).read_text())


def clear(group: Group, *, timeout_s: float = 10) -> bool:
    deadline = time.monotonic() + timeout_s
    group.kill()
    while not group.remove():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def touch(size_bytes: int) -> bytearray:
    block = bytearray(size_bytes)
    block[:: resource.getpagesize()] = b"x" * len(block[:: resource.getpagesize()])
    return block


def spin(seconds: float) -> float:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return seconds


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def gone(pid: int) -> bool:
    return started(pid) is None


def until(condition: Callable[[], bool], *, timeout_s: float = 10) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


# -- memory ------------------------------------------------------------------------------------


def test_a_memory_bomb_is_killed_and_counted(group: Group, children: Children) -> None:
    """L2: 300 MB over a limit of 64."""
    group.apply(Limits(memory_bytes=64 * MIB))
    pid = children.fork(lambda: touch(300 * MIB))
    put(group, pid)
    group.baseline()
    children.go(pid)
    assert children.wait(pid) == -signal.SIGKILL
    assert group.oom_kills() == 1
    assert 60 * MIB < group.usage().peak_memory_bytes <= 64 * MIB


def test_the_same_bomb_outside_a_group_is_no_bomb(children: Children) -> None:
    """The test above can fail: without the limit the child lives."""
    pid = children.fork(lambda: touch(300 * MIB))
    children.go(pid)
    assert children.wait(pid) == 0


def test_a_well_behaved_neighbour_does_not_notice(
    hierarchy: Hierarchy, group: Group, children: Children
) -> None:
    """L2: the bomb ends its own group's run only."""
    neighbour = Group.create(hierarchy, "neighbour")
    try:
        for each in (group, neighbour):
            each.apply(Limits(memory_bytes=64 * MIB))
        good = children.fork(lambda: [touch(30 * MIB), nap(0.5)])
        bad = children.fork(lambda: touch(300 * MIB))
        put(neighbour, good)
        put(group, bad)
        children.go(good)
        children.go(bad)
        assert children.wait(bad) == -signal.SIGKILL
        assert children.wait(good) == 0
        assert (group.oom_kills(), neighbour.oom_kills()) == (1, 0)
    finally:
        assert clear(neighbour)


def test_pages_of_a_tmpfs_are_charged_and_die_with_it(group: Group, children: Children) -> None:
    """L2, L4: files in memory are memory; they outlive the process, not the file."""
    group.apply(Limits(memory_bytes=64 * MIB))
    fd = os.memfd_create("pages")

    def fill(mebibytes: int) -> None:
        for _ in range(mebibytes):
            os.write(fd, bytes(MIB))

    try:
        pid = children.fork(lambda: fill(30))
        put(group, pid)
        group.baseline()
        children.go(pid)
        assert children.wait(pid) == 0
        assert memory_bytes(group) >= 30 * MIB
        assert 30 * MIB <= group.usage().peak_memory_bytes < 50 * MIB
        pid = children.fork(lambda: fill(100))
        put(group, pid)
        children.go(pid)
        assert children.wait(pid) == -signal.SIGKILL
        assert group.oom_kills() == 1
    finally:
        os.close(fd)
    assert until(lambda: memory_bytes(group) < 5 * MIB)


def test_kernel_memory_is_charged_and_its_bomb_does_not_hang(
    group: Group, children: Children
) -> None:
    """L2: full pipes are the kernel's memory, not the process's own."""
    group.apply(Limits(memory_bytes=24 * MIB))
    most = min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])

    def pipes() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        for _ in range(8):
            if os.fork() == 0:
                for _ in range(most // 2 - 50):
                    _, writer = os.pipe()
                    os.set_blocking(writer, False)
                    try:
                        while os.write(writer, bytes(4096)):
                            pass
                    except BlockingIOError:
                        continue
                time.sleep(20)
                os._exit(0)
        for _ in range(8):
            os.wait()

    pid = children.fork(pipes)
    put(group, pid)
    children.go(pid)
    assert until(lambda: group.oom_kills() > 0)
    assert group.usage().peak_memory_bytes <= 24 * MIB
    group.kill()
    children.wait(pid)


def test_limits_can_be_raised_and_lowered_on_a_live_group(group: Group, children: Children) -> None:
    group.apply(Limits(memory_bytes=64 * MIB, processes=5))
    group.apply(Limits(memory_bytes=256 * MIB, processes=50))
    pid = children.fork(lambda: touch(128 * MIB))
    put(group, pid)
    children.go(pid)
    assert children.wait(pid) == 0
    group.apply(Limits(memory_bytes=32 * MIB, processes=5))
    pid = children.fork(lambda: touch(128 * MIB))
    put(group, pid)
    children.go(pid)
    assert children.wait(pid) == -signal.SIGKILL


# -- processes ---------------------------------------------------------------------------------


def test_a_fork_bomb_stops_at_the_limit(group: Group, children: Children) -> None:
    """L3: a hundred attempts, twenty and the reserve get through."""
    group.apply(Limits(processes=20), reserve=1)
    reader, writer = os.pipe()

    def bomb() -> None:
        forked = 0
        for _ in range(100):
            try:
                if os.fork() == 0:
                    time.sleep(30)
                    os._exit(0)
                forked += 1
            except BlockingIOError:
                pass
        os.write(writer, bytes([forked]))
        time.sleep(30)

    pid = children.fork(bomb)
    put(group, pid)
    group.baseline()
    children.go(pid)
    assert os.read(reader, 1) == bytes([20])
    assert group.usage().processes == 21
    assert group.usage().peak_processes in (21, None)
    os.close(reader)
    os.close(writer)


# -- processor ---------------------------------------------------------------------------------


def test_processor_time_is_counted_from_the_baseline(group: Group, children: Children) -> None:
    """L7."""
    group.apply(Limits())
    pid = children.fork(lambda: [spin(0.2), nap(0.4), spin(0.1)])
    put(group, pid)
    children.go(pid)
    time.sleep(0.4)
    whole = group.usage().cpu_ms
    group.baseline()
    assert children.wait(pid) == 0
    rest = group.usage().cpu_ms
    assert whole > 20, "the first spin"
    assert 0 < rest < whole + 200, "what came after, not all of it again"


def test_a_fraction_of_a_processor(group: Group, children: Children) -> None:
    """L1: two spinners with a fifth of a core between them."""
    group.apply(Limits(cpus=0.2))
    pids = [children.fork(lambda: spin(1.0)) for _ in range(2)]
    for pid in pids:
        put(group, pid)
    group.baseline()
    for pid in pids:
        children.go(pid)
    for pid in pids:
        children.wait(pid)
    assert group.usage().cpu_ms < 450


def test_the_memory_peak_starts_anew_at_the_baseline(group: Group, children: Children) -> None:
    """L7: the warm-up of a pooled sandbox is not its user's."""
    group.apply(Limits(memory_bytes=256 * MIB))
    pid = children.fork(lambda: touch(100 * MIB))
    put(group, pid)
    children.go(pid)
    children.wait(pid)
    assert group.usage().peak_memory_bytes > 100 * MIB
    group.baseline()
    assert group.usage().peak_memory_bytes < 50 * MIB


# -- killing, removing -------------------------------------------------------------------------


def test_kill_takes_the_whole_tree_also_while_it_forks(group: Group, children: Children) -> None:
    """R3: sessions, orphans and a running fork bomb."""
    group.apply(Limits(processes=40))

    def tree() -> None:
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(60)
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            try:
                os.fork()
            except BlockingIOError:
                time.sleep(0.001)

    pid = children.fork(tree)
    put(group, pid)
    children.go(pid)
    assert until(lambda: len(group.members()) > 30)
    started = time.perf_counter()
    group.kill()
    took_s = time.perf_counter() - started
    assert children.wait(pid) == -signal.SIGKILL
    assert until(lambda: not group.members())
    assert took_s < 0.5, "kill signals, it does not wait"
    assert until(group.remove)


def test_kill_spares_who_is_not_inside(group: Group, children: Children) -> None:
    inside = children.fork(lambda: time.sleep(60))
    outside = children.fork(lambda: time.sleep(0.2))
    put(group, inside)
    children.go(inside)
    children.go(outside)
    group.kill()
    assert children.wait(inside) == -signal.SIGKILL
    assert children.wait(outside) == 0


def test_kill_finds_who_is_in_some_of_the_groups_only(group: Group, children: Children) -> None:
    """v1: its forks are blocked and it is killed, though no list of processes has it at first."""
    places = group.hierarchy.places[1:]
    if not places:
        pytest.skip("one group is all there is")

    def chain() -> None:
        while True:
            try:
                if os.fork():
                    os._exit(0)
            except BlockingIOError:
                time.sleep(0.001)

    pid = children.fork(chain)
    for at in places:
        Path(at, group.hierarchy.owner, group.name, "cgroup.procs").write_text(str(pid))
    children.go(pid)
    children.wait(pid)
    assert until(lambda: bool(group.members()))
    assert until(group.kill)
    assert until(group.remove)


def test_empty_spares_one_and_blocks_forks(group: Group, children: Children) -> None:
    group.apply(Limits(processes=40))

    def fork_on() -> None:
        while True:
            try:
                if os.fork():
                    os._exit(0)
            except BlockingIOError:
                time.sleep(0.001)

    spared = children.fork(lambda: time.sleep(60))
    chain = children.fork(fork_on)
    for pid in (spared, chain):
        put(group, pid)
        children.go(pid)
    children.wait(chain)
    assert until(lambda: group.empty(spared))
    assert group.members() == {spared}
    place = group.hierarchy
    if place.limits_cpu:
        file = "cpu.cfs_quota_us" if place.version == 1 else "cpu.max"
        quota = Path(place.folders["cpu"], place.owner, group.name, file).read_text()
        assert quota.split()[0] not in ("-1", "max"), "it is limited as before"


def test_remove_does_not_wait_for_the_living(group: Group, children: Children) -> None:
    pid = children.fork(lambda: time.sleep(60))
    put(group, pid)
    assert group.remove() is False
    assert group.members() == {pid}
    group.kill()
    children.wait(pid)
    assert until(group.remove)
    assert group.kill() is True


def test_a_zombie_does_not_hold_its_group(group: Group, children: Children) -> None:
    """R3: the group can go before its processes are reaped."""
    pid = children.fork(lambda: None)
    put(group, pid)
    children.go(pid)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert until(group.remove, timeout_s=1)


def test_a_child_can_enter_by_itself(group: Group, children: Children) -> None:
    entrances = group.open_entrances()

    def enter() -> None:
        for fd in entrances:
            os.write(fd, b"0")
        time.sleep(60)

    pid = children.fork(enter)
    children.go(pid)
    assert until(lambda: group.members() == {pid})
    for fd in entrances:
        os.close(fd)
    owner, places = group.hierarchy.owner, group.hierarchy.places
    lists = [Path(at, owner, group.name, "cgroup.procs") for at in places]
    assert until(lambda: all(each.read_text().split() == [str(pid)] for each in lists))


def test_another_process_is_moved_with_its_threads(group: Group, children: Children) -> None:
    """By a third one, which may itself be nobody."""

    def crowd() -> None:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        time.sleep(60)

    pid = children.fork(crowd)
    children.go(pid)
    assert until(lambda: len(os.listdir(f"/proc/{pid}/task")) == 2)
    entrances = group.open_entrances(for_others=True)

    def move() -> None:
        if os.geteuid() == 0:
            os.setresuid(65534, 65534, 65534)
        for fd in entrances:
            os.write(fd, b"%d" % pid)

    mover = children.fork(move)
    children.go(mover)
    assert children.wait(mover) == 0
    for fd in entrances:
        os.close(fd)
    owner, places = group.hierarchy.owner, group.hierarchy.places
    for at in places:
        threads = Path(at, owner, group.name, TASKS[group.hierarchy.version]).read_text()
        assert len(threads.split()) == 2


# -- what a crash leaves -----------------------------------------------------------------------

HOST = """
import os, sys, time
from belljar.engines.linux import cgroups
from belljar.engines.linux.cgroups import hierarchy
place = eval(sys.argv[1], {**vars(hierarchy), **vars(cgroups)})
group = cgroups.Group.create(place, "left")
gate, opener = os.pipe()
pid = os.fork()
if pid == 0:
    os.closerange(0, 200)  # as a zygote is: without the host's descriptors, so without its lock
    time.sleep(120)
    os._exit(0)
os.close(opener)
os.read(gate, 1)
for at in place.places:
    with open(f"{at}/{place.owner}/left/cgroup.procs", "w") as procs:
        procs.write(str(pid))
print(place.owner, pid, flush=True)
time.sleep(120)
"""


def a_host(expression: str) -> tuple[subprocess.Popen[str], str, int]:
    """Another program with a Belljar: it makes a group with a process inside, then waits."""
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, expression],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert host.stdout is not None
    owner, pid = host.stdout.readline().split()
    return host, owner, int(pid)


def end_host(host: subprocess.Popen[str]) -> None:
    host.kill()
    host.wait()
    assert host.stdout is not None
    host.stdout.close()


def sweeps_the_dead_only(hierarchy: Hierarchy, expression: str) -> None:
    dead, dead_owner, orphan = a_host(expression)
    live, live_owner, guest = a_host(expression)

    def folders(owner: str) -> list[bool]:
        return [os.path.isdir(f"{at}/{owner}/left") for at in hierarchy.places]

    try:
        cgroups.sweep(hierarchy)
        assert all(folders(dead_owner) + folders(live_owner)), "both live"
        end_host(dead)
        assert not gone(orphan)
        assert cgroups.sweep(hierarchy) >= 1
        assert until(lambda: gone(orphan))
        assert not any(folders(dead_owner))
        assert all(folders(live_owner))
        assert not gone(guest)
    finally:
        end_host(live)
        end_host(dead)
        cgroups.sweep(hierarchy)
    assert until(lambda: gone(guest))
    assert not any(folders(live_owner))


def test_sweep_clears_a_dead_owners_groups_and_leaves_a_live_ones(hierarchy: Hierarchy) -> None:
    """R3: the host program was killed; the next Belljar cleans up."""
    sweeps_the_dead_only(hierarchy, "detect()")


# -- v2 without controllers: a hybrid host has such a tree, good for everything but limits ---------


@pytest.fixture
def bare_v2() -> Iterator[Hierarchy]:
    text = Path("/proc/self/mountinfo").read_text()
    points = [m.point for m in parse_mounts(text) if m.kind == "cgroup2" and m.writable]
    usable = [at for at in points if os.access(at, os.W_OK)]
    if os.geteuid() != 0 or not usable:
        pytest.skip("needs root and a writable cgroup2 mount")
    place = Hierarchy(2, dict.fromkeys(CONTROLLERS, usable[0]), enable=())
    place.claim()
    yield place
    place.close()
    assert not os.path.exists(f"{usable[0]}/{place.owner}")


def test_v2_kills_a_tree_and_is_removed(bare_v2: Hierarchy, children: Children) -> None:
    """R3 on v2."""
    group = Group.create(bare_v2, "test")

    def tree() -> None:
        for _ in range(5):
            os.fork()
        time.sleep(60)

    try:
        pid = children.fork(tree)
        put(group, pid)
        children.go(pid)
        assert until(lambda: len(group.members()) == 32)
        assert group.remove() is False
        group.kill()
        assert children.wait(pid) == -signal.SIGKILL
    finally:
        assert clear(group)


def test_v2_sweeps_the_dead_only(bare_v2: Hierarchy) -> None:
    """R3 on v2."""
    at = bare_v2.folders["memory"]
    sweeps_the_dead_only(bare_v2, f"Hierarchy(2, dict.fromkeys(CONTROLLERS, {at!r}), enable=())")
