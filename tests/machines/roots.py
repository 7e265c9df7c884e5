"""A guest's root: made once by mmdebstrap, kept as a folder and as an ext4 image.

It is never changed, and made anew when its recipe changes or its age is past the guest's limit.
"""

from __future__ import annotations

import inspect
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from pathlib import Path

from .archive import Archives, require_programs
from .errors import CannotBeHad, SetupFailed, mount_error, setup_error
from .guests import Guest

SIZE = "6G"
"""Of the image, which is sparse."""
CONTAINER = "var/lib/belljar-machines/container.tar"
SSH_KEY = "root/.ssh/id_ed25519"
_UNIT = """\
[Unit]
Description=Runs the commands of the test machine's host
After=multi-user.target systemd-user-sessions.service ssh.service
[Service]
ExecStartPre=-/sbin/modprobe -q virtio_console
ExecStartPre=/bin/mount -o noatime /dev/vdb /srv
ExecStart=/usr/bin/python3 /srv/agent.py
KillMode=process
TasksMax=infinity
[Install]
WantedBy=multi-user.target
"""
MASKED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "fstrim.timer",
    "motd-news.timer",
    "systemd-networkd-wait-online.service",
)
"""They would only compete with the tests: a guest lives for an hour and has no network."""


def key(guest: Guest) -> str:
    """Of whatever decides what is in a root: its packages, and the text of what makes it."""
    recipe = [inspect.getsource(part) for part in (bootstrap, prepare, filesystem)]
    return guest.key("\n".join([*recipe, _UNIT, *MASKED, SIZE]))


def folder(guest: Guest, cache: Path, day: date) -> Path:
    return cache / "roots" / f"{guest.name}-{key(guest)}-{day:%Y%m%d}"


def image(root: Path) -> Path:
    return root.with_suffix(".ext4")


def newest(guest: Guest, cache: Path) -> tuple[Path, date] | None:
    """The root in the cache that this recipe made, and the day it was made."""
    for ext4 in sorted(cache.glob(f"roots/{guest.name}-{key(guest)}-*.ext4"), reverse=True):
        return ext4.with_suffix(""), datetime.strptime(ext4.stem[-8:], "%Y%m%d").date()
    return None


def ensure(guest: Guest, cache: Path, archives: Archives, say: Callable[[str], None]) -> Path:
    """Makes the root unless it is there. One past its age is made anew, so that a guest has the
    kernel and the Python that people get today; without a network the old one is taken."""
    found, today = newest(guest, cache), datetime.now(UTC).date()
    if found and (today - found[1]).days < guest.fresh_days:
        return found[0]
    try:
        return build(guest, folder(guest, cache, today), archives, say)
    except CannotBeHad as error:
        if not found:
            raise
        say(f"{guest.title}: its root of {found[1]}, as a newer one cannot be had: {error}")
        return found[0]


def build(guest: Guest, made: Path, archives: Archives, say: Callable[[str], None]) -> Path:
    if platform.machine() != "x86_64":
        raise CannotBeHad("guests are made for x86-64 only")
    if os.geteuid() != 0:
        raise CannotBeHad("only root can make a guest's root")
    require_programs()
    made.parent.mkdir(parents=True, exist_ok=True)
    prefix = f"making-{guest.name}-"
    for left in made.parent.glob(f"{prefix}*"):  # by a build that was killed
        remove(left)
    with tempfile.TemporaryDirectory(dir=made.parent, prefix=prefix) as place:
        scratch = Path(place, "scratch")
        scratch.mkdir()
        root = Path(place, "root")
        say(f"{guest.title}: packages from the archive")
        bootstrap(guest, root, archives, include=guest.includes, variant="minbase", place=scratch)
        if guest.image:
            say(f"{guest.title}: a container's root from the archive")
            tar = root / CONTAINER
            tar.parent.mkdir(parents=True)
            bootstrap(guest, tar, archives, include=guest.image, variant="essential", place=scratch)
        prepare(root)
        kernel(root)
        say(f"{guest.title}: its image")
        filesystem(root, Path(place, "image"), label="root", size=SIZE)
        for old in made.parent.glob(f"{guest.name}-*"):
            remove(old)
        os.rename(root, made)
        os.rename(Path(place, "image"), image(made))
    return made


def bootstrap(
    guest: Guest,
    target: Path,
    archives: Archives,
    *,
    include: Iterable[str],
    variant: str,
    place: Path,
) -> None:
    base, keyring = archives.mirror(guest.archive), archives.keyring(guest.archive)
    # Its mounts are in a namespace of their own: were it killed, whoever clears up the unfinished
    # root must not meet this machine's /proc and /sys in it.
    command = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
    command += ["mmdebstrap", "--mode=root", f"--variant={variant}"]
    command += ['--aptopt=Acquire::Languages "none"', '--aptopt=APT::Install-Recommends "false"']
    if guest.may_be_stale:
        command.append('--aptopt=Acquire::Check-Valid-Until "false"')
    command += [f"--include={','.join(include)}", guest.suites[0], str(target)]
    for suite in guest.suites:
        command.append(f"deb [signed-by={keyring}] {base} {suite} {' '.join(guest.components)}")
    # Its scratch folder is beside the target: /tmp may be small.
    environment = {**os.environ, "TMPDIR": str(place)}
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith(("E:", "Err:"))]
        message = f"{guest.title}: {' '.join(said) or done.stderr[-500:]}"
        if done.stderr.startswith("unshare:"):
            raise mount_error(message, done.stderr)
        raise setup_error(message, done.stderr)


def prepare(root: Path) -> None:
    """Users, keys, the agent, and nothing that would wait for a network."""
    write(root / "etc/hostname", "guest\n")
    write(root / "etc/hosts", "127.0.0.1 localhost guest\n::1 localhost\n")
    write(root / "etc/fstab", "")
    write(root / "etc/resolv.conf", "nameserver 127.0.0.1\n")
    units = root / "etc/systemd/system"
    write(units / "belljar-agent.service", _UNIT)
    link(units / "multi-user.target.wants/belljar-agent.service", "../belljar-agent.service")
    for unit in MASKED:
        link(units / unit, "/dev/null")
    for unit in ("docker.service", "docker.socket", "containerd.service"):
        # Only the cells in containers start it: it costs a minute of every boot.
        (units / "multi-user.target.wants" / unit).unlink(missing_ok=True)
        (units / "sockets.target.wants" / unit).unlink(missing_ok=True)
    in_root(
        root, "getent passwd ubuntu && userdel -r ubuntu; useradd -m -s /bin/bash -u 1000 alice"
    )
    in_root(root, "ssh-keygen -A; mkdir -p /root/.ssh")
    in_root(root, f"ssh-keygen -q -t ed25519 -N '' -f /{SSH_KEY}")
    in_root(
        root,
        "umask 077; mkdir -p /home/alice/.ssh; cd /root/.ssh; cat *.pub > authorized_keys;"
        "cp authorized_keys /home/alice/.ssh/; chown -R alice: /home/alice/.ssh",
    )
    write(root / "root/.ssh/config", "Host *\n  StrictHostKeyChecking no\n  LogLevel ERROR\n")


def in_root(root: Path, script: str) -> None:
    command = ["chroot", str(root), "bash", "-ec", script]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SetupFailed(f"{script}: {done.stderr.strip()}")


def filesystem(root: Path, target: Path, *, label: str, size: str) -> None:
    """A folder as an image, with owners and modes as they are."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    with target.open("wb") as file:
        file.truncate(in_bytes(size))
    command = ["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-L", label, "-d"]
    command += [str(root), str(target)]
    done = subprocess.run(
        command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SetupFailed(f"mke2fs: {done.stderr.strip()}")


def in_bytes(size: str) -> int:
    return int(size[:-1]) * {"M": 1 << 20, "G": 1 << 30}[size[-1]]


def kernel(root: Path) -> tuple[Path, Path | None]:
    """The newest kernel of a root, and its initial file system.

    Ubuntu's packages only recommend what makes one; noble's kernel has what it needs built in.
    """
    found = sorted(root.glob("boot/vmlinuz-*"))
    if not found:
        raise SetupFailed(f"no kernel in {root}")
    newest = found[-1]
    initrd = newest.with_name(f"initrd.img-{newest.name.removeprefix('vmlinuz-')}")
    return newest, initrd if initrd.is_file() else None


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text)


def link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def remove(path: Path) -> None:
    """Never with something mounted in it, which might be this machine's /proc or /dev."""
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    if any(place.startswith(f"{path}/") for place in mounted):
        raise SetupFailed(f"something is mounted in {path}: umount it first")
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
