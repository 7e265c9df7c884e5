"""Files in and out of the sandbox, from the inside: never through a link, never without a bound."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_DEPTH = 64
MAX_ENTRIES = 20_000


def create(root: int, path: str, mode: int, owner: tuple[int, int] | None = None) -> int:
    """Opens a new file below the folder `root`, making the folders on the way.

    `owner`: (uid, gid) of what is made, where that is not who we are."""
    *folders, name = path.split("/")
    here = os.dup(root)
    try:
        for folder in folders:
            try:
                os.mkdir(folder, 0o755, dir_fd=here)
                if owner:
                    os.chown(folder, *owner, dir_fd=here, follow_symlinks=False)
            except FileExistsError:
                pass
            deeper = os.open(folder, _FOLDER, dir_fd=here)
            os.close(here)
            here = deeper
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(name, flags, mode, dir_fd=here)
    finally:
        os.close(here)
    if owner:
        os.fchown(file, *owner)
    return file


def stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def scan(root: int, prefix: str) -> Iterator[tuple[str, os.stat_result, str]]:
    """Every entry below `root` that is not a folder: (path, lstat, why it cannot be read or "")."""
    left = MAX_ENTRIES
    stack: list[tuple[str, int, os.stat_result]] = [("", 0, os.fstat(root))]
    while stack:
        relative, depth, folder = stack.pop()
        try:
            here = descend(root, relative)
        except OSError as error:
            yield prefix + relative, folder, "a folder that cannot be read: %s" % error.strerror
            continue
        try:
            with os.scandir(here) as entries:
                found = sorted((entry.name for entry in entries), key=os.fsencode)
            for name in found:
                left -= 1
                if left < 0:
                    return
                path = relative + "/" + name if relative else name
                try:
                    status = os.stat(name, dir_fd=here, follow_symlinks=False)
                except OSError:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    if depth + 1 < MAX_DEPTH:
                        stack.append((path, depth + 1, status))
                    else:
                        yield prefix + path, status, "folders nested deeper than %d" % MAX_DEPTH
                elif stat.S_ISREG(status.st_mode):
                    yield prefix + path, status, ""
                else:
                    yield prefix + path, status, _kind(status.st_mode)
        finally:
            os.close(here)


def read(root: int, path: str) -> int:
    """Opens a regular file for reading; a FIFO or a link swapped in meanwhile is refused."""
    folder, _, name = path.rpartition("/")
    here = descend(root, folder)
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(name, flags, dir_fd=here)
    finally:
        os.close(here)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError("not a regular file")
    return file


def descend(root: int, relative: str) -> int:
    here = os.dup(root)
    for part in relative.split("/") if relative else ():
        try:
            deeper = os.open(part, _FOLDER, dir_fd=here)
        finally:
            os.close(here)
        here = deeper
    return here


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a device"
