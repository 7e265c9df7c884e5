"""Long work on files in short steps: each function is a generator that pauses after every step.

Whoever drives it decides how many steps fit; closing it gives back what it holds.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Iterator

from .ways import FOLDER, READING, Refused, refused

_PIECE = 1 << 20


def remove(parent: int, name: bytes, where: str) -> Iterator[None]:
    """Removes whatever is there; owns the descriptor `parent`.

    A tree is made flat while it goes: folders in a folder are moved up to the top one and are
    emptied there. So two descriptors are enough for any depth, and no path gets too long."""
    try:
        if _unlink(parent, name):
            return
        top = _open_for_removal(parent, name)
        try:
            yield from _empty(top)
        finally:
            os.close(top)
        os.rmdir(name, dir_fd=parent)
    except OSError as error:
        raise refused(error, where) from None
    finally:
        os.close(parent)


def _empty(top: int) -> Iterator[None]:
    numbers = itertools.count()
    found = True
    while found:
        found = False
        # A folder that changes while it is read may hide an entry: look again until none is left.
        with os.scandir(top) as entries:
            for entry in entries:
                found = True
                name = os.fsencode(entry.name)
                if not _unlink(top, name):
                    yield from _lift(top, name, numbers)
                yield


def _lift(top: int, name: bytes, numbers: Iterator[int]) -> Iterator[None]:
    """Empties the folder `name` of `top`: its files go, its folders move up beside it."""
    try:
        folder = _open_for_removal(top, name)
    except FileNotFoundError:
        return
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                inner = os.fsencode(entry.name)
                if not _unlink(folder, inner):
                    _move_up(folder, inner, top, numbers)
                yield
    finally:
        os.close(folder)
    _unlink(top, name)


def _move_up(folder: int, name: bytes, top: int, numbers: Iterator[int]) -> None:
    loosened = False
    for number in numbers:
        try:
            os.rename(name, b".removed-%d" % number, src_dir_fd=folder, dst_dir_fd=top)
            return
        except FileNotFoundError:
            return
        except PermissionError:
            # A folder that may not be written to cannot be moved: its ".." would change.
            if loosened:
                raise
            os.close(_open_for_removal(folder, name))
            loosened = True
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise


def _unlink(folder: int, name: bytes) -> bool:
    """False: a folder that is not empty."""
    try:
        os.unlink(name, dir_fd=folder)
        return True
    except FileNotFoundError:
        return True
    except (IsADirectoryError, PermissionError) as error:
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return True
        if not stat.S_ISDIR(mode):
            raise error from None
    try:
        os.rmdir(name, dir_fd=folder)
        return True
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise


def _open_for_removal(parent: int, name: bytes) -> int:
    """Also when its owner has closed it to himself."""
    path = os.open(name, FOLDER | getattr(os, "O_PATH", 0), dir_fd=parent)
    try:
        if os.fstat(path).st_mode & 0o700 != 0o700:
            try:
                os.chmod("/proc/self/fd/%d" % path, 0o700)
            except OSError:
                pass
        return os.open(b".", FOLDER, dir_fd=path)
    finally:
        os.close(path)


def move(
    source: int,
    name: bytes,
    target: int,
    new_name: bytes,
    *,
    replace: bool,
    where: str,
    unique: int,
) -> Iterator[None]:
    """Renames, or copies where the places are on different file systems; owns both descriptors."""
    try:
        if not replace and _there(target, new_name):
            raise Refused("exists", "%s exists already" % where)
        try:
            os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)
            return
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        status = os.stat(name, dir_fd=source, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), new_name, dir_fd=target)
        elif stat.S_ISREG(status.st_mode):
            yield from _copy(source, name, target, new_name, b".moving-%d" % unique)
        else:
            raise Refused("elsewhere", "%s is on another file system" % where)
        os.unlink(name, dir_fd=source)
    except OSError as error:
        raise refused(error, where) from None
    finally:
        os.close(source)
        os.close(target)


def _there(folder: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
        return True
    except FileNotFoundError:
        return False


def _copy(source: int, name: bytes, target: int, new_name: bytes, partial: bytes) -> Iterator[None]:
    """Has the name `partial` until it is whole."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    writing = -1
    reading = os.open(name, READING, dir_fd=source)
    try:
        status = os.fstat(reading)
        if not stat.S_ISREG(status.st_mode):
            raise Refused("not_a_file", "it is not a file any more")
        writing = os.open(partial, flags, 0o600, dir_fd=target)
        while True:
            piece = os.read(reading, _PIECE)
            if not piece:
                break
            write_all(writing, piece)
            yield
        if os.geteuid() == 0:
            os.fchown(writing, status.st_uid, status.st_gid)
        os.fchmod(writing, stat.S_IMODE(status.st_mode) & 0o777)
        os.utime(writing, ns=(status.st_atime_ns, status.st_mtime_ns))
        os.rename(partial, new_name, src_dir_fd=target, dst_dir_fd=target)
    except BaseException:
        if writing >= 0:
            os.unlink(partial, dir_fd=target)
        raise
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)


def write_all(file: int, data: bytes) -> None:
    """Fails when the disk is full, also after a part of it."""
    written = os.write(file, data)
    while written < len(data):
        written += os.write(file, memoryview(data)[written:])
