"""The few things done to the files of a group, and how their errors are told."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection

from belljar.errors import EngineError


def read(dir_fd: int | None, path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        parts = []
        while part := os.read(fd, 65_536):
            parts.append(part)
        return b"".join(parts)
    except OSError as error:
        if error.errno == errno.ENODEV:  # the group went while we held its file
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
        raise
    finally:
        os.close(fd)


def write(dir_fd: int | None, path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def attempt(dir_fd: int | None, path: str, text: str) -> bool:
    try:
        write(dir_fd, path, text)
    except OSError:
        return False
    return True


def value(text: bytes, key: str) -> int:
    """A value of a flat keyed file such as memory.events; 0 where the kernel has no such key."""
    for line in text.splitlines():
        name, _, number = line.partition(b" ")
        if name == key.encode():
            return int(number)
    return 0


def members(dir_fd: int | None, group: str) -> set[int]:
    try:
        text = read(dir_fd, f"{group}/cgroup.procs")
    except FileNotFoundError:
        return set()
    # 0 stands for a process outside our pid namespace, and would mean ourselves to kill().
    return {int(word) for word in text.split()} - {0}


def enable(group: str, controllers: Collection[str]) -> None:
    if not controllers:
        return
    path = f"{group}/cgroup.subtree_control"
    missing = [name for name in controllers if name not in read(None, path).decode().split()]
    if missing:
        write(None, path, " ".join(f"+{name}" for name in missing))


def mkdir(path: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o755)


def rmdir(path: str, *, dir_fd: int | None = None) -> bool:
    """Whether the folder is gone."""
    try:
        os.rmdir(path, dir_fd=dir_fd)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return -1


def engine_error(step: str, error: OSError) -> EngineError:
    hint = "`belljar doctor` says what is missing"
    if error.errno in (errno.ENOSPC, errno.EAGAIN, errno.ENOMEM):
        hint = "the kernel has no room for more groups: close sandboxes"
    if error.errno == errno.ENOENT:
        hint = "the group was removed, perhaps by systemctl stop: make a new Belljar"
    return EngineError(f"resource group, {step}: {error}", hint=hint)
