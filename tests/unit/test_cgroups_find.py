"""Where resource groups go on every kind of host, and what to type where they cannot (L1-L3)."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from belljar.engines.linux.cgroups import Absent, Hierarchy, detect, scope
from belljar.engines.linux.cgroups.find import Tree, parse_membership, parse_mounts
from belljar.engines.linux.cgroups.scope import HOST_LEAF, bus_addresses

V2 = "/sys/fs/cgroup"
V2_MOUNT = (
    f"30 23 0:26 / {V2} rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate"
)
V2_MOUNT_RO = V2_MOUNT.replace(" rw,nosuid", " ro,nosuid")
V1_MOUNTS = "\n".join(
    [
        "31 23 0:28 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755",
        "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct",
        "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory",
        "39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids",
        "40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd",
    ]
)
V1_MEMBERSHIP = "4:memory:/user.slice\n3:pids:/user.slice\n2:cpu,cpuacct:/\n1:name=systemd:/\n"
HYBRID_MOUNTS = "\n".join(
    [
        "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755",
        "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu",
        "33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct",
        "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory",
        "39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids",
        "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw",
    ]
)
DOCKER_V1 = "\n".join(
    f"{100 + number} 99 0:{30 + number} /docker/f00d /sys/fs/cgroup/{name} "
    f"ro,nosuid,nodev,noexec,relatime master:9 - cgroup cgroup rw,{name}"
    for number, name in enumerate(["memory", "pids", "cpu", "cpuacct"])
)
SESSION = "/user.slice/user-1000.slice/session-3.scope"
USER_SERVICE = "/user.slice/user-1000.slice/user@1000.service"
SCOPE = f"{USER_SERVICE}/app.slice/run-r1.scope"
ALL = "cpuset cpu io memory hugetlb pids rdma misc"
PID = 4242


class PaperTree(Tree):
    """A v2 tree on paper: group → its files, and which groups may be written."""

    def __init__(
        self,
        groups: Mapping[str, Mapping[str, str]],
        *,
        writable: tuple[str, ...] = (),
        delegated: tuple[str, ...] = (),
    ) -> None:
        self.groups = groups
        self.writable_below = tuple(V2 + path for path in writable)
        self.delegated_at = tuple(V2 + path for path in delegated)

    def read(self, path: str) -> str | None:
        group, _, file = path.removeprefix(V2).rpartition("/")
        return self.groups.get(group, {}).get(file)

    def writable(self, path: str) -> bool:
        return path.startswith(self.writable_below)

    def delegated(self, path: str) -> bool:
        return path in self.delegated_at


def a_group(*, controllers: str = ALL, handed_on: str = "", procs: str = "") -> dict[str, str]:
    return {
        "cgroup.controllers": controllers,
        "cgroup.subtree_control": handed_on,
        "cgroup.procs": procs,
        "cgroup.events": "populated 1\nfrozen 0\n",
    }


def the_root(*, controllers: str = ALL) -> dict[str, str]:
    root = a_group(controllers=controllers, handed_on="memory pids", procs="1\n2\n")
    del root["cgroup.events"]
    return root


def found(answer: Hierarchy | Absent) -> Hierarchy:
    assert isinstance(answer, Hierarchy), answer
    return answer


def refused(answer: Hierarchy | Absent) -> Absent:
    assert isinstance(answer, Absent), answer.folders
    assert answer.reason
    assert answer.hint
    return answer


def test_root_on_a_systemd_host_uses_the_top_of_the_tree() -> None:
    tree = PaperTree(
        {"": the_root(), SESSION: a_group(controllers="memory pids", procs=f"900\n{PID}\n")},
        writable=("",),
    )
    place = found(detect(mounts=V2_MOUNT, membership=f"0::{SESSION}\n", tree=tree, uid=0, pid=PID))
    assert (place.version, place.places, place.step_aside) == (2, [V2], False)
    assert place.describe() == dict.fromkeys(("memory", "processes", "cpu"), "cgroup-v2")


def test_root_in_a_delegated_service_stays_under_the_services_own_limits() -> None:
    service = "/system.slice/belljar.service"
    tree = PaperTree(
        {"": the_root(), service: a_group(procs=f"{PID}\n")}, writable=("",), delegated=(service,)
    )
    place = found(detect(mounts=V2_MOUNT, membership=f"0::{service}", tree=tree, uid=0, pid=PID))
    assert (place.places, place.step_aside) == ([V2 + service], True)


def test_an_ordinary_login_session_is_told_to_ask_for_delegation() -> None:
    tree = PaperTree({"": the_root(), SESSION: a_group(procs=f"{PID}\n")}, writable=(USER_SERVICE,))
    answer = refused(
        detect(mounts=V2_MOUNT, membership=f"0::{SESSION}\n", tree=tree, uid=1000, pid=PID)
    )
    assert "not delegated to uid 1000" in answer.reason
    assert "systemd-run --user --scope -p Delegate=yes" in answer.hint


def test_an_ordinary_user_alone_in_a_delegated_scope_steps_aside() -> None:
    tree = PaperTree({SCOPE: a_group(procs=f"{PID}\n")}, writable=(USER_SERVICE,))
    place = found(detect(mounts=V2_MOUNT, membership=f"0::{SCOPE}\n", tree=tree, uid=1000, pid=PID))
    assert (place.places, place.step_aside) == ([V2 + SCOPE], True)


def test_company_in_the_only_delegated_group_is_left_where_it_is() -> None:
    tree = PaperTree({SCOPE: a_group(procs=f"17\n{PID}\n")}, writable=(USER_SERVICE,))
    answer = refused(
        detect(mounts=V2_MOUNT, membership=f"0::{SCOPE}\n", tree=tree, uid=1000, pid=PID)
    )
    assert "holds other processes" in answer.reason
    assert "systemd-run --user" in answer.hint


def test_a_scope_without_the_cpu_controller_limits_the_rest() -> None:
    """Ubuntu 22.04 hands users memory and pids only."""
    tree = PaperTree(
        {SCOPE: a_group(controllers="memory pids", procs=f"{PID}\n")}, writable=(USER_SERVICE,)
    )
    place = found(detect(mounts=V2_MOUNT, membership=f"0::{SCOPE}\n", tree=tree, uid=1000, pid=PID))
    assert place.enable == ("memory", "pids") and not place.limits_cpu
    assert place.describe() == {"memory": "cgroup-v2", "processes": "cgroup-v2", "cpu": "affinity"}


def test_a_scope_without_the_memory_controller_names_it_and_the_remedy() -> None:
    tree = PaperTree(
        {SCOPE: a_group(controllers="cpu pids", procs=f"{PID}\n")}, writable=(USER_SERVICE,)
    )
    answer = refused(
        detect(mounts=V2_MOUNT, membership=f"0::{SCOPE}\n", tree=tree, uid=1000, pid=PID)
    )
    assert "lacks the controllers memory" in answer.reason
    assert "Delegate=cpu memory pids" in answer.hint


def test_a_process_that_already_stepped_aside_finds_its_place_again() -> None:
    leaf = f"{SCOPE}/{HOST_LEAF}"
    tree = PaperTree(
        {SCOPE: a_group(handed_on="cpu memory pids"), leaf: a_group(procs=f"{PID}\n")},
        writable=(USER_SERVICE,),
    )
    place = found(detect(mounts=V2_MOUNT, membership=f"0::{leaf}\n", tree=tree, uid=1000, pid=PID))
    assert (place.places, place.step_aside) == ([V2 + SCOPE], False)


def test_a_parent_that_hands_its_controllers_on_will_do() -> None:
    parent = f"{USER_SERVICE}/app.slice"
    tree = PaperTree(
        {parent: a_group(handed_on="cpu memory pids"), SCOPE: a_group(procs=f"17\n{PID}\n")},
        writable=(USER_SERVICE,),
    )
    place = found(detect(mounts=V2_MOUNT, membership=f"0::{SCOPE}\n", tree=tree, uid=1000, pid=PID))
    assert (place.places, place.step_aside) == ([V2 + parent], False)


@pytest.mark.parametrize("uid", [0, 1000])
def test_docker_with_a_read_only_tree(uid: int) -> None:
    tree = PaperTree({"": a_group(procs=f"{PID}\n")})
    answer = refused(detect(mounts=V2_MOUNT_RO, membership="0::/\n", tree=tree, uid=uid, pid=PID))
    assert "read-only" in answer.reason
    assert "mount -o remount,rw /sys/fs/cgroup" in answer.hint
    assert "privileged" not in answer.hint  # the container would be no wall any more


def test_docker_with_a_read_only_v1_tree() -> None:
    answer = refused(
        detect(mounts=DOCKER_V1, membership="4:memory:/docker/f00d", tree=PaperTree({}), uid=0)
    )
    assert "read-only" in answer.reason and "privileged" not in answer.hint


def test_a_privileged_container_where_belljar_is_alone() -> None:
    tree = PaperTree({"": a_group(procs=f"{PID}\n")}, writable=("",))
    place = found(detect(mounts=V2_MOUNT, membership="0::/\n", tree=tree, uid=0, pid=PID))
    assert (place.places, place.step_aside) == ([V2], True)


def test_a_privileged_container_with_company_says_how_to_make_room() -> None:
    tree = PaperTree({"": a_group(procs=f"1\n{PID}\n")}, writable=("",))
    answer = refused(detect(mounts=V2_MOUNT, membership="0::/\n", tree=tree, uid=0, pid=PID))
    assert "other processes" in answer.reason
    assert "mkdir /sys/fs/cgroup/init" in answer.hint


def test_a_privileged_container_whose_processes_were_moved_aside() -> None:
    tree = PaperTree(
        {"": a_group(handed_on="cpu memory pids"), "/init": a_group(procs=f"1\n{PID}\n")},
        writable=("",),
    )
    place = found(detect(mounts=V2_MOUNT, membership="0::/init\n", tree=tree, uid=0, pid=PID))
    assert (place.places, place.step_aside) == ([V2], False)


def test_a_group_outside_our_namespace_is_not_mistaken_for_one_inside() -> None:
    tree = PaperTree({"/else": a_group(procs=f"{PID}\n")}, writable=("",))
    answer = detect(mounts=V2_MOUNT, membership="0::/../else\n", tree=tree, uid=1000, pid=PID)
    assert "not below" in refused(answer).reason and "privileged" not in refused(answer).hint


def test_v1_as_root_with_controllers_mounted_together() -> None:
    tree = PaperTree({}, writable=("",))
    place = found(detect(mounts=V1_MOUNTS, membership=V1_MEMBERSHIP, tree=tree, uid=0))
    assert place.version == 1
    assert place.folders["memory"] == "/sys/fs/cgroup/memory"
    assert place.folders["cpu"] == place.folders["cpuacct"] == "/sys/fs/cgroup/cpu,cpuacct"
    assert len(place.places) == 3
    assert place.describe()["memory"] == "cgroup-v1"


def test_v1_as_an_ordinary_user() -> None:
    answer = refused(
        detect(mounts=V1_MOUNTS, membership=V1_MEMBERSHIP, tree=PaperTree({}), uid=1000)
    )
    assert "uid 1000" in answer.reason
    assert "as root" in answer.hint
    # The root of a user namespace is root already, and may not write either.
    inside = detect(mounts=V1_MOUNTS, membership=V1_MEMBERSHIP, tree=PaperTree({}), uid=0)
    assert "as root" not in refused(inside).hint


def test_v1_without_the_pids_controller_names_it() -> None:
    mounts = "\n".join(line for line in V1_MOUNTS.splitlines() if "pids" not in line)
    answer = refused(
        detect(mounts=mounts, membership="", tree=PaperTree({}, writable=("",)), uid=0)
    )
    assert "controller pids" in answer.reason


def test_a_hybrid_host_with_an_empty_v2_tree_uses_v1() -> None:
    tree = PaperTree({"/unified": the_root(controllers="")}, writable=("",))
    place = found(detect(mounts=HYBRID_MOUNTS, membership="4:memory:/\n0::/\n", tree=tree, uid=0))
    assert place.version == 1
    assert len(place.places) == 4


def test_a_kernel_without_the_memory_controller() -> None:
    tree = PaperTree({"": the_root(controllers="cpu pids")}, writable=("",))
    answer = refused(detect(mounts=V2_MOUNT, membership="0::/\n", tree=tree, uid=0, pid=PID))
    assert "memory" in answer.reason
    assert "cgroup_enable=memory" in answer.hint


def test_nothing_mounted() -> None:
    answer = refused(detect(mounts="22 1 8:1 / / rw - ext4 /dev/sda1 rw\n", membership="", uid=0))
    assert "no cgroup" in answer.reason
    assert "mount -t sysfs none /sys" in answer.hint  # without it there is no place to mount
    assert "mount -t cgroup2" in answer.hint


def test_mounts_with_odd_names_hidden_ones_and_rubbish() -> None:
    text = "\n".join(
        [
            r"30 23 0:26 / /with\040space rw - cgroup2 cgroup2 rw",
            "31 23 0:27 / /hidden rw - cgroup2 cgroup2 rw",
            "32 23 0:28 / /hidden rw - tmpfs tmpfs rw",
            "rubbish",
            "",
        ]
    )
    assert [mount.point for mount in parse_mounts(text)] == ["/with space"]
    assert parse_membership("rubbish\n2:cpu,cpuacct:/a:b\n0::/c\n") == {
        "cpu": "/a:b",
        "cpuacct": "/a:b",
        "": "/c",
    }


# -- the user's systemd ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "addresses"),
    [
        (
            {"DBUS_SESSION_BUS_ADDRESS": "unix:path=/x"},
            ["unix:path=/x", "unix:path=/run/user/1000/bus"],
        ),
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, ["unix:path=/run/user/7/bus"]),
        ({}, ["unix:path=/run/user/1000/bus"]),
    ],
)
def test_the_users_bus_is_found_without_the_variables_of_a_login(
    environment: dict[str, str], addresses: list[str]
) -> None:
    assert bus_addresses(environment, 1000) == addresses


def test_a_bus_that_never_answers_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It accepts the connection and the user, and then says nothing."""
    with socket.socket(socket.AF_UNIX) as bus:
        bus.bind(str(tmp_path / "bus"))
        bus.listen()

        def greet() -> None:
            connection, _ = bus.accept()
            connection.recv(100)
            connection.send(b"OK 00000000000000000000000000000000\r\n")
            while connection.recv(100):
                pass

        threading.Thread(target=greet, daemon=True).start()
        monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", f"unix:path={tmp_path}/bus")
        monkeypatch.setattr(scope, "WAIT_S", 0.5)
        with pytest.raises(scope.NoScope, match="did not answer"):
            scope.Scope()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert "cat" not in [Path(f"/proc/{pid}/comm").read_text().strip() for pid in children]
