"""Building environments on the host: once, whole or not at all, readable by every sandbox."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

from belljar.environments import stopping, toolchain
from belljar.environments.catalogue import Environment
from belljar.environments.folders import (
    BUILDER_VERSION,
    MANIFEST,
    Progress,
    folder_of,
    installed,
    locate,
)
from belljar.environments.install import hint_for, install_packages
from belljar.errors import EnvironmentUnavailable
from belljar.runtimes.interpreter import base_interpreter
from belljar.settings import Settings

__all__ = ["Progress", "build", "installed", "locate", "remove"]

_BUILDING = ".building"


def build(
    environment: Environment, settings: Settings, *, progress: Progress | None = None
) -> Path:
    """Build it unless it is there. Concurrent callers, also in other processes, build once."""
    if not environment.needs_build:
        raise ValueError(f"the environment {environment.name!r} has nothing to build")
    report = progress or (lambda _text, _fraction: None)
    path = folder_of(environment, settings)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path, report) as lock_fd:
            if locate(environment, settings) is None:
                _build_locked(environment, path, lock_fd=lock_fd, progress=report)
    except EnvironmentUnavailable as error:
        message = f"cannot build the environment {environment.name!r}: {error.message}"
        raise EnvironmentUnavailable(message, hint=error.hint) from error
    except OSError as error:
        raise EnvironmentUnavailable(
            f"cannot build the environment {environment.name!r}: {error}",
            hint=hint_for(str(error)),
        ) from error
    return path


def remove(name: str, settings: Settings) -> int:
    """Delete the environment in all its versions; how many there were.

    Sandboxes that have it mounted lose their files: close them first.
    """
    doomed = [built.path for built in installed(settings) if built.name == name]
    for path in doomed:
        # Renamed first, so that no one can find it half deleted.
        grave = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=_BUILDING, dir=path.parent))
        path.rename(grave / path.name)
        _delete(grave)
    return len(doomed)


@contextlib.contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[int]:
    # The file stays: were it deleted, two builders could each lock one of the same name.
    lock_path = path.parent / f".{path.name}.lock"
    lock_fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another builder", None)
            _wait_for(lock_fd)
        yield lock_fd
    finally:
        os.close(lock_fd)


def _wait_for(lock_fd: int) -> None:
    while True:
        stopping.check()
        try:
            return fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(stopping.LOOK_S)


def _build_locked(
    environment: Environment, path: Path, *, lock_fd: int, progress: Progress
) -> None:
    for leftover in path.parent.glob(f".{path.name}.*{_BUILDING}"):
        _delete(leftover)
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=_BUILDING, dir=path.parent))
    try:
        folder = scratch / path.name
        folder.mkdir()
        _fill(environment, folder, lock_fd=lock_fd, progress=progress)
        progress("finishing", None)
        _write_manifest(environment, folder)
        _make_readable(folder)
        flush(folder)
        _delete(path)  # in the way only if someone damaged it
        folder.rename(path)
    finally:
        _delete(scratch)


def _fill(environment: Environment, folder: Path, *, lock_fd: int, progress: Progress) -> None:
    install_packages(
        environment.packages,
        folder,
        bytecode=environment.runtime == "python",
        lock_fd=lock_fd,
        progress=progress,
    )
    # Scripts there would start an interpreter by a path that sandboxes do not have.
    _delete(folder / "bin")
    (folder / ".lock").unlink(missing_ok=True)
    for name, file in environment.executables.items():
        command = folder / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.symlink_to(Path("..") / file)
        (folder / file).chmod(0o755)
    if environment.runtime == "go":
        toolchain.prepare(folder, mount=environment.mount_path, lock_fd=lock_fd, progress=progress)
    for part in environment.drop:
        _delete(folder / part)


def _write_manifest(environment: Environment, folder: Path) -> None:
    facts = {
        "name": environment.name,
        "packages": environment.packages,
        "versions": {
            item.name: item.version
            for item in sorted(distributions(path=[str(folder)]), key=lambda item: item.name)
        },
        "python": platform.python_version(),
        "interpreter": base_interpreter(),
        "builder": BUILDER_VERSION,
    }
    (folder / MANIFEST).write_text(json.dumps(facts, indent=1) + "\n")


def _make_readable(folder: Path) -> None:
    """Readable by the foreign user a sandbox runs as, writable by none but the owner."""
    for parent, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            path = os.path.join(parent, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                continue
            right = 0o755 if stat.S_ISDIR(mode) or mode & stat.S_IXUSR else 0o644
            if stat.S_IMODE(mode) != right:
                os.chmod(path, right)


def flush(folder: Path) -> None:
    """To the disk before the name appears: after a power cut it is whole or not there."""
    import ctypes  # only builders pay for it

    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # One call for the file system; fsync on each of ten thousand files takes minutes.
        if ctypes.CDLL(None, use_errno=True).syncfs(folder_fd) != 0:
            raise OSError(ctypes.get_errno(), "syncfs", str(folder))
    finally:
        os.close(folder_fd)


def _delete(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
