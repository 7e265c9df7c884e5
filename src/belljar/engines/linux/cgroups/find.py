"""Where groups can be made. It only looks, and where it finds no place it says what to type."""

from __future__ import annotations

import os
import posixpath
import re
from typing import NamedTuple

from .hierarchy import CONTROLLERS, CONTROLLERS_V2, NEEDED_V2, Hierarchy
from .scope import HOST_LEAF, Scope

_HINT_USER = (
    "start Belljar in a group of its own: systemd-run --user --scope -p Delegate=yes <command>"
)
_HINT_USER_CONTROLLERS = (
    "as root: systemctl edit user@.service, add the lines [Service] and Delegate=cpu memory pids, "
    "then log in again"
)
HINT_USER_CPU = f"the user's systemd does not have the cpu controller. {_HINT_USER_CONTROLLERS}"
_HINT_ROOT = (
    "start Belljar in a group of its own: systemd-run --scope -p Delegate=yes <command>; in a "
    "container move the others aside first: mkdir /sys/fs/cgroup/init && "
    "xargs -rn1 < /sys/fs/cgroup/cgroup.procs > /sys/fs/cgroup/init/cgroup.procs"
)
_HINT_KERNEL = (
    "boot with systemd.unified_cgroup_hierarchy=1 (and cgroup_enable=memory where it is off)"
)
# No option of a container: --privileged makes it writable and takes the container's walls down.
_HINT_READ_ONLY = (
    "inside a container leave it so, Belljar then counts by itself; elsewhere, as root: "
    "mount -o remount,rw "
)
_HINT_OUTSIDE = "give the container a cgroup namespace of its own: docker run --cgroupns=private"
_HINT_UNMOUNTED = (
    "as root: mount -t cgroup2 none /sys/fs/cgroup (where that is not there, first: "
    "mkdir -p /sys && mount -t sysfs none /sys)"
)


class Absent(NamedTuple):
    """No groups here: why, and what to type."""

    reason: str
    hint: str


class Mount(NamedTuple):
    kind: str
    root: str
    point: str
    writable: bool
    options: frozenset[str]


class Tree:
    """What `detect` asks of the file system. It only looks."""

    def read(self, path: str) -> str | None:
        try:
            with open(path, encoding="utf-8") as file:
                return file.read()
        except OSError:
            return None

    def writable(self, path: str) -> bool:
        return os.access(path, os.W_OK, effective_ids=True)

    def delegated(self, path: str) -> bool:
        """Whether systemd was told (Delegate=yes) that the group is ours to arrange."""
        for name in ("user.delegate", "trusted.delegate"):
            try:
                if os.getxattr(path, name) == b"1":
                    return True
            except OSError:
                continue
        return False


def parse_mounts(text: str) -> list[Mount]:
    """The cgroup mounts of a /proc/<pid>/mountinfo, without those hidden under a later mount."""
    by_point: dict[str, Mount] = {}
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, tail = left.split(" "), right.split(" ")
        if not separator or len(fields) < 6 or len(tail) < 3:
            continue
        root, point = (_unescape(field) for field in fields[3:5])
        options = frozenset(tail[2].split(","))
        writable = "rw" in fields[5].split(",") and "rw" in options
        by_point[point] = Mount(tail[0], root, point, writable, options)
    return [mount for mount in by_point.values() if mount.kind in ("cgroup", "cgroup2")]


def parse_membership(text: str) -> dict[str, str]:
    """/proc/<pid>/cgroup as controller → path; the v2 tree is the controller with no name."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        if line.count(":") >= 2:
            _, controllers, path = line.split(":", 2)
            paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def detect(
    *,
    mounts: str | None = None,
    membership: str | None = None,
    tree: Tree | None = None,
    uid: int | None = None,
    pid: int | None = None,
) -> Hierarchy | Absent:
    """Where groups can be made: v2 where it has the controllers, else v1, else why not."""
    tree = tree or Tree()
    uid = os.geteuid() if uid is None else uid
    pid = os.getpid() if pid is None else pid
    mounted = parse_mounts(_given(mounts, "/proc/self/mountinfo", tree))
    own = parse_membership(_given(membership, "/proc/self/cgroup", tree)).get("", "/")
    answers: list[Absent] = []
    for mount in mounted:
        if mount.kind == "cgroup2":
            found = _detect_v2(mount, own, tree=tree, uid=uid, pid=pid)
            if isinstance(found, Hierarchy):
                return found
            answers.append(found)
    version_1 = [mount for mount in mounted if mount.kind == "cgroup"]
    if any(controller in m.options for m in version_1 for controller in CONTROLLERS):
        found = _detect_v1(version_1, tree=tree, uid=uid)
        if isinstance(found, Hierarchy):
            return found
        answers.insert(0, found)
    return answers[0] if answers else Absent("no cgroup file system is mounted", _HINT_UNMOUNTED)


def _detect_v1(mounts: list[Mount], *, tree: Tree, uid: int) -> Hierarchy | Absent:
    folders: dict[str, str] = {}
    for controller in CONTROLLERS:
        places = [mount for mount in mounts if controller in mount.options]
        if not places:
            return Absent(f"the cgroup v1 controller {controller} is not mounted", _HINT_KERNEL)
        usable = [m.point for m in places if m.writable and tree.writable(m.point)]
        if not usable and not any(mount.writable for mount in places):
            return _read_only(places[0])
        if not usable:
            return Absent(
                f"{places[0].point} (cgroup v1) cannot be written by uid {uid}",
                _HINT_KERNEL if uid == 0 else f"run Belljar as root, or {_HINT_KERNEL}",
            )
        folders[controller] = usable[0]
    return Hierarchy(1, folders)


def _detect_v2(
    mount: Mount, own_path: str, *, tree: Tree, uid: int, pid: int
) -> Hierarchy | Absent:
    if not mount.writable:
        return _read_only(mount)
    own = _visible(mount, own_path)
    parent = posixpath.dirname(own) if own and own != mount.point else ""
    groups: list[tuple[str, bool]] = []
    if parent and posixpath.basename(own) == HOST_LEAF:
        groups.append((parent, True))
    if own and (uid != 0 or own == mount.point or tree.delegated(own)):
        groups.append((own, False))
    if uid == 0:
        groups.append((mount.point, True))
    if parent:
        groups.append((parent, True))
    answers = [_judge(at, shared=shared, tree=tree, uid=uid, pid=pid) for at, shared in groups]
    for answer in answers:
        if isinstance(answer, Hierarchy):
            return answer
    outside = Absent(f"our own group is not below {mount.point}", _HINT_OUTSIDE)
    return answers[0] if answers else outside


def _read_only(mount: Mount) -> Absent:
    return Absent(f"{mount.point} is mounted read-only", _HINT_READ_ONLY + mount.point)


def _judge(folder: str, *, shared: bool, tree: Tree, uid: int, pid: int) -> Hierarchy | Absent:
    """Whether our folder can live in this group; a `shared` one we take only as it is."""

    def words(file: str) -> list[str]:
        return (tree.read(f"{folder}/{file}") or "").split()

    hint = _HINT_ROOT if uid == 0 else _HINT_USER
    if not all(map(tree.writable, (folder, f"{folder}/cgroup.procs"))):
        return Absent(f"{folder} is not delegated to uid {uid}", hint)
    there = [name for name in CONTROLLERS_V2 if name in words("cgroup.controllers")]
    missing = [name for name in NEEDED_V2 if name not in there]
    if missing:
        return Absent(
            f"{folder} lacks the controllers {', '.join(missing)}",
            _HINT_KERNEL if uid == 0 else _HINT_USER_CONTROLLERS,
        )
    # Only the true root of the tree has no cgroup.events; it alone may hold processes and groups.
    is_root = tree.read(f"{folder}/cgroup.events") is None
    enabled = set(there) <= set(words("cgroup.subtree_control"))
    if enabled or is_root:
        return _v2(folder, there)
    if shared:
        return Absent(f"{folder} does not hand its controllers to the groups below it", hint)
    inside = words("cgroup.procs")
    if not inside or inside == [str(pid)]:
        return _v2(folder, there, step_aside=bool(inside))
    return Absent(
        f"{folder} holds other processes, and a group with processes cannot limit groups below it",
        hint,
    )


def has_v2() -> bool:
    """Whether there is a v2 tree that can limit memory: systemd's scopes are in it."""
    tree = Tree()
    mounts = parse_mounts(_given(None, "/proc/self/mountinfo", tree))
    points = [mount.point for mount in mounts if mount.kind == "cgroup2"]
    return any("memory" in (tree.read(f"{at}/cgroup.controllers") or "") for at in points)


def in_scope(scope: Scope) -> Hierarchy | Absent:
    """The place that systemd gave us."""
    tree = Tree()
    for mount in parse_mounts(_given(None, "/proc/self/mountinfo", tree)):
        folder = _visible(mount, scope.path) if mount.kind == "cgroup2" else ""
        words = (tree.read(f"{folder}/cgroup.controllers") or "").split() if folder else []
        if set(NEEDED_V2) <= set(words):
            return _v2(folder, [name for name in CONTROLLERS_V2 if name in words], scope=scope)
    return Absent(
        f"systemd's scope lacks one of the controllers {', '.join(NEEDED_V2)}",
        _HINT_USER_CONTROLLERS,
    )


def _v2(
    folder: str,
    controllers: list[str],
    *,
    step_aside: bool = False,
    scope: Scope | None = None,
) -> Hierarchy:
    return Hierarchy(
        2,
        dict.fromkeys(CONTROLLERS, folder),
        step_aside=step_aside,
        enable=controllers,
        limits_cpu="cpu" in controllers,
        scope=scope,
    )


def _given(text: str | None, path: str, tree: Tree) -> str:
    return (tree.read(path) or "") if text is None else text


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _visible(mount: Mount, path: str) -> str:
    """Where a group's path is found below a mount; empty when it is outside of it."""
    relative = posixpath.relpath(path, mount.root)
    if path.startswith("/..") or relative.startswith(".."):
        return ""
    return mount.point if relative == "." else posixpath.join(mount.point, relative)
