"""This engine's folder on the host, and what a dead Belljar left in its own.

<home>/gvisor/<pid>-<starttime>-<n>/    one per engine, locked while it lives
    root-…/                             a private root, one per environment
    image-…/                            a snapshot of a warm sandbox
    <sandbox>/                          config.json, what runsc remembers, inputs
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
from pathlib import Path

from belljar.engines.linux.cgroups.owner import looks_dead, new_owner
from belljar.engines.linux.root import Step
from belljar.errors import EngineError

NAME = "gvisor"


class Folder:
    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def claim(cls, home: Path) -> Folder:
        """A new one, of this process."""
        path = home / NAME / new_owner()
        try:
            path.mkdir(parents=True, mode=0o700)
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_SH)
        except OSError as error:
            raise EngineError(
                f"gVisor's folder could not be made: {error}",
                hint="is BELLJAR_HOME writable, and the disk not full?",
            ) from error
        return cls(path, lock)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()
        os.close(self._lock)


def sweep(home: Path) -> int:
    """Removes the folders of dead owners, after killing what still runs from there; how many."""
    removed = 0
    try:
        owners = [entry for entry in (home / NAME).iterdir() if looks_dead(entry.name)]
    except OSError:
        return 0
    for path in owners:
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                kill_users(path)
                shutil.rmtree(path, ignore_errors=True)
                removed += 1
            finally:
                os.close(lock)
    return removed


def kill_users(path: Path) -> None:
    """Kills the processes of gVisor that were started with a folder below `path`; the code's own
    are theirs and end with them."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or not _uses(entry, path):
            continue
        try:
            pidfd = os.pidfd_open(int(entry))
        except OSError:
            continue
        try:
            if _uses(entry, path):  # the number may be another process's by now
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except OSError:
            pass
        finally:
            os.close(pidfd)


def _uses(pid: str, path: Path) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word.startswith(b"--root=" + os.fsencode(path) + b"/") for word in words)


def write(root: Path, steps: list[Step], *, closed: str) -> None:
    """Makes a root of these files, links, folders and copies. `closed`: a folder for root only."""
    for kind, target, *rest in steps:
        path = root / target.lstrip("/")
        if kind == "folder":
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "link":
            path.symlink_to(rest[0])
        elif kind == "file":
            path.write_text(rest[0])
        elif os.path.isdir(rest[0]):
            shutil.copytree(rest[0], path, symlinks=True, ignore_dangling_symlinks=True)
        else:
            shutil.copyfile(rest[0], path)
    (root / closed.lstrip("/")).chmod(0o700)
