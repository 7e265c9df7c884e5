"""Runs a command in a guest's root, on this machine's kernel: to prepare a checkout at full speed.

The root is the lower layer of an overlay in a mount namespace of its own: nothing in it changes,
and when the command ends no mount is left. It is pivoted to, because a chroot could not make user
namespaces.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from .errors import mount_error, setup_error
from .indexes import Indexes

_NO_PLACE = 97
"""The status when a mount fails, which the command itself hardly ends with."""
DEVICES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def run(root: Path, command: str, *, srv: Path, indexes: Indexes, log: Path) -> None:
    """`srv` is writable as /srv; what the command prints goes to `log`."""
    script = plan(root, srv=srv, indexes=indexes)
    environment = {"HOME": "/root", "PATH": PATH, "LANG": "C.UTF-8", **indexes.environment}
    settings = [f"{name}={value}" for name, value in environment.items()]
    script += ["exec env -i " + shlex.join([*settings, "bash", "-ec", command])]
    with log.open("w") as printed:
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "bash", "-ec", "\n".join(script)],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        said = log.read_text(errors="replace").strip()
        tail = " / ".join(said.splitlines()[-3:])
        if done.returncode == _NO_PLACE or said.startswith("unshare:"):
            raise mount_error(f"no place to prepare a checkout in: {tail}", said)
        raise setup_error(f"{root.name}: {tail} (see {log})", said)


def plan(root: Path, *, srv: Path, indexes: Indexes) -> list[str]:
    """The mounts, as a script."""
    options = f"lowerdir={root},upperdir=/mnt/upper,workdir=/mnt/work"
    lines = [
        f"trap 'exit {_NO_PLACE}' ERR",
        "mount -t tmpfs tmpfs /mnt",
        "mkdir /mnt/upper /mnt/work /mnt/new",
        f"mount -t overlay -o {shlex.quote(options)} overlay /mnt/new",
        "cd /mnt/new",
        "cp -L /etc/resolv.conf etc/resolv.conf || true",
        "cp -L /etc/hosts etc/hosts",
        f"printf %s {shlex.quote(indexes.configuration)} > etc/pip.conf",
        "mount -t proc proc proc",
        # Devices of its own: a chmod in there must not reach those of this machine.
        "mount -t tmpfs -o mode=755 tmpfs dev",
        "mkdir -m 1777 dev/shm",
        *(f"mknod -m 666 dev/{name} c 1 {minor}" for name, minor in DEVICES.items()),
        "ln -s /proc/self/fd dev/fd",
        # Of its own, too: a bind of this machine's would bring its cgroups, and `-o ro` holds for
        # the top of a tree of mounts only.
        "mount -t sysfs -o ro sysfs sys",
        "mount -t tmpfs -o mode=1777 tmpfs tmp",
        f"mount --bind {shlex.quote(str(srv))} srv",
    ]
    for place in indexes.places:
        target = shlex.quote(f".{place}")
        made = (
            f"mkdir -p {target}"
            if place.is_dir()
            else f"mkdir -p $(dirname {target}); touch {target}"
        )
        lines += [made, f"mount --bind -o ro {shlex.quote(str(place))} {target}"]
    lines += ["mkdir -p .old", "pivot_root . .old", "cd /", "umount -l /.old"]
    return lines
