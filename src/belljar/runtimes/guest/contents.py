"""One file's content, read and written from inside: regular files only, however they got there."""

from __future__ import annotations

import os

from . import ways
from .sweep import write_all
from .ways import Refused, Way, refused

_WRITING = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Reading:
    def __init__(self, file: int) -> None:
        self.file = file

    def close(self) -> None:
        os.close(self.file)


class Writing:
    """A file that is being written. Its first error stays: content comes unasked."""

    def __init__(self, file: int, where: str, new: tuple[int, bytes] | None) -> None:
        self.file = file
        self.written = 0
        self.ended = False
        self.problem: Refused | None = None
        self._where = where
        self._new = new
        """The folder and the name of a file that was not there before."""

    def write(self, data: bytes) -> None:
        if self.problem:
            return
        try:
            if self.ended:
                raise Refused("unsupported", "content after its end")
            write_all(self.file, data)
            self.written += len(data)
        except OSError as error:
            self.problem = refused(error, self._where)
        except Refused as problem:
            self.problem = problem

    def finish(self) -> dict:  # type: ignore[type-arg]
        self.check()
        answer = {"written": self.written, "size": os.fstat(self.file).st_size}
        if self._new:
            os.close(self._new[0])
            self._new = None
        return answer

    def check(self) -> None:
        if self.problem:
            raise Refused(self.problem.kind, str(self.problem))

    def close(self) -> None:
        if self._new:
            folder, name = self._new
            try:
                there = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if os.path.samestat(there, os.fstat(self.file)):
                    os.unlink(name, dir_fd=folder)
            except OSError:
                pass
            os.close(folder)
        os.close(self.file)


def open_to_read(way: Way) -> int:
    if not way.names:
        raise Refused("not_a_file", "%s is a folder" % way.prefix)
    here = way.parent()
    try:
        _expect_file(os.stat(way.names[-1], dir_fd=here, follow_symlinks=False), way)
        file = os.open(way.names[-1], ways.READING, dir_fd=here)
    except OSError as error:
        raise refused(error, way.shown()) from None
    finally:
        os.close(here)
    return _expect_file_in(file, way)


def open_to_write(here: int, way: Way, *, append: bool, exclusive: bool) -> tuple[int, bool]:
    """The file, and whether it is new."""
    name = way.names[-1]
    flags = _WRITING | (os.O_APPEND if append else 0)
    while True:
        try:
            return os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=here), True
        except FileExistsError:
            if exclusive:
                raise
        try:
            _expect_file(os.stat(name, dir_fd=here, follow_symlinks=False), way)
            return _expect_file_in(os.open(name, flags, dir_fd=here), way), False
        except FileNotFoundError:
            continue  # it went away between the two


def _expect_file_in(file: int, way: Way) -> int:
    """Looks again: the code may have put something else there since we looked."""
    try:
        _expect_file(os.fstat(file), way)
    except BaseException:
        os.close(file)
        raise
    return file


def _expect_file(status: os.stat_result, way: Way) -> None:
    kind = ways.kind(status.st_mode)
    if kind == "link":
        raise ways.linked(way.shown())
    if kind != "file":
        raise Refused("not_a_file", "%s is a %s, not a file" % (way.shown(), kind))
