"""What belongs to which Belljar, and the removal of what a dead one left.

A container carries its owner's name as a label: pid and start time, which together no other process
ever has, and the machine's boot and pid namespace in which they mean something. Its input folder
lies below a folder of that name, locked while the owner lives and closed to other users.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from belljar.engines.linux.cgroups.owner import looks_dead, new_owner
from belljar.errors import EngineError

LABEL = "belljar.owner"
WORLD = "belljar.world"
FILTER = json.dumps({"label": [LABEL]})


def folder(home: Path) -> Path:
    return home.absolute() / "docker"


class Owner:
    """This engine's name, and its folder for inputs; the folder is made on first use."""

    def __init__(self, home: Path) -> None:
        self.name = new_owner()
        self.labels = {LABEL: self.name, WORLD: world()}
        self._folder = folder(home) / self.name
        self._lock = -1

    def new_inputs(self, container: str) -> Path:
        """A folder that the sandbox's user can read."""
        self._claim()
        path = self._folder / container
        path.mkdir()
        path.chmod(0o755)
        return path

    def new_hosts(self, container: str, content: str) -> Path:
        """Its /etc/hosts, to be changed in its place: a mounted file is not followed by name."""
        self._claim()
        path = self._folder / f"{container}.hosts"
        path.write_text(content)
        path.chmod(0o644)
        return path

    def shared(self, name: str, content: str) -> Path:
        """A file for all our containers."""
        self._claim()
        path = self._folder / name
        if not path.exists():
            path.write_text(content)
            path.chmod(0o644)
        return path

    def _claim(self) -> None:
        if self._lock < 0:
            # Closed to other users of the host. What is mounted lies below, open to whatever uid a
            # container has, and the way there is the daemon's: root's, or our own.
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            self._folder.mkdir(mode=0o700)
            self._lock = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_SH)

    def close(self) -> None:
        if self._lock >= 0:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def world() -> str:
    """Where a pid means something: this boot of this machine, this pid namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def is_left(labels: Mapping[str, str]) -> bool:
    """Whether a container's owner is dead for certain."""
    here = world()
    return bool(here) and labels.get(WORLD) == here and looks_dead(labels.get(LABEL, ""))


def left(containers: list[Mapping[str, Any]]) -> list[str]:
    """The ids of those in the daemon's list that nobody owns any more."""
    return [str(item["Id"]) for item in containers if is_left(item.get("Labels") or {})]


def sweep_folders(home: Path) -> None:
    for path in _folders(home):
        if not looks_dead(path.name):
            continue
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            # The second witness: an owner in another pid namespace looks dead from here.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass
        finally:
            os.close(lock)


def _folders(home: Path) -> list[Path]:
    try:
        return [path for path in folder(home).iterdir() if path.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise EngineError(f"the data directory cannot be read: {error}") from error
