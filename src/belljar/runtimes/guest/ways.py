"""Paths of a kept sandbox, walked from inside: name by name, never through a link."""

from __future__ import annotations

import errno
import os
import stat

PLACES = {
    "/workspace": "workspace",
    "/data/output": "output",
    "/data/input": "input",
    "/tmp": "tmp",
}
READ_ONLY = "input"
MOST_PATH_BYTES = 128 * 1024
"""Six times that, as JSON may write a name that is not UTF-8, still fits a frame."""
MOST_NAMES = 4096
"""Folders within folders that one path may name. Opening so many takes some ten milliseconds."""

_PATH = getattr(os, "O_PATH", 0)
_WALK = _PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Not blocking: nobody may write to a FIFO that we look at."""

_KINDS = {
    errno.ENOENT: "missing",
    errno.EEXIST: "exists",
    errno.ENOTDIR: "not_a_folder",
    errno.ELOOP: "link",
    errno.EISDIR: "not_a_file",
    errno.ENXIO: "not_a_file",
    errno.ENOTEMPTY: "not_empty",
    errno.EACCES: "forbidden",
    errno.EPERM: "forbidden",
    errno.EROFS: "read_only",
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EFBIG: "full",
    errno.ENAMETOOLONG: "name",
    errno.EMFILE: "too_many",
    errno.EBUSY: "busy",
    errno.EXDEV: "elsewhere",
}


class Refused(Exception):
    """A question that is answered with a no. `kind` is for programs, the text for people."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def refused(error: OSError, where: str) -> Refused:
    reason = error.strerror or str(error)
    return Refused(_KINDS.get(error.errno or 0, "os"), "%s: %s" % (where, reason))


class Way:
    """Where a path leads: a place, and names below it."""

    def __init__(self, root: int, place: str, prefix: str, names: list[bytes]) -> None:
        self.root = root
        self.place = place
        self.prefix = prefix
        self.names = names

    def shown(self, most: int | None = None) -> str:
        """The first `most` names as text that can be printed anywhere."""
        below = b"/".join(self.names[:most]).decode("utf-8", "backslashreplace")
        text = self.prefix + "/" + below if below else self.prefix
        if len(text) > 300:
            text = text[:140] + "…" + text[-140:]
        return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)

    def writable(self) -> Way:
        if self.place == READ_ONLY:
            raise Refused("read_only", "%s cannot be written to" % self.prefix)
        return self

    def below(self) -> Way:
        if not self.names:
            raise Refused("forbidden", "%s itself stays" % self.prefix)
        return self

    def folder(self) -> int:
        """Opens what it leads to, a folder, to be walked from."""
        return self._descend(len(self.names))

    def parent(self) -> int:
        """Opens the folder that holds the last name."""
        return self._descend(len(self.names) - 1)

    def make_folders(self, count: int, owner: tuple[int, int] | None) -> int:
        """As `folder` for the first `count` names, making those that are not there."""
        return self._descend(count, make=True, owner=owner)

    def status(self) -> os.stat_result:
        if not self.names:
            return os.fstat(self.root)
        here = self.parent()
        try:
            return os.stat(self.names[-1], dir_fd=here, follow_symlinks=False)
        except OSError as error:
            raise refused(error, self.shown()) from None
        finally:
            os.close(here)

    def _descend(
        self, count: int, *, make: bool = False, owner: tuple[int, int] | None = None
    ) -> int:
        here = os.open(b".", _WALK, dir_fd=self.root)
        for position in range(count):
            name = self.names[position]
            try:
                if make:
                    try:
                        make_folder(here, name, owner)
                    except FileExistsError:
                        pass
                deeper = os.open(name, _WALK, dir_fd=here)
            except OSError as error:
                raise self._dead_end(here, position, error) from None
            finally:
                os.close(here)
            here = deeper
        return here

    def _dead_end(self, here: int, position: int, error: OSError) -> Refused:
        where = self.shown(position + 1)
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            return not_a_folder(here, self.names[position], where)
        return refused(error, where)


def make_folder(here: int, name: bytes, owner: tuple[int, int] | None) -> None:
    os.mkdir(name, 0o755, dir_fd=here)
    if owner:
        os.chown(name, *owner, dir_fd=here, follow_symlinks=False)


def not_a_folder(here: int, name: bytes, where: str) -> Refused:
    """Says what it is instead."""
    try:
        mode = os.stat(name, dir_fd=here, follow_symlinks=False).st_mode
    except OSError:
        mode = 0
    if stat.S_ISLNK(mode):
        return linked(where)
    return Refused("not_a_folder", "%s is not a folder" % where)


def linked(where: str) -> Refused:
    return Refused("link", "%s is a symbolic link, and links are not followed" % where)


def find(roots: dict[str, int], path: object) -> Way:
    """Takes a path apart: absolute below one of the places, or relative to /workspace."""
    if not isinstance(path, str) or not path:
        raise Refused("name", "a path is text and not empty")
    try:
        encoded = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Refused("name", "a path that no file can have: it is not Unicode") from None
    if len(encoded) > MOST_PATH_BYTES:
        raise Refused("name", "a path of more than %d bytes" % MOST_PATH_BYTES)
    if b"\0" in encoded:
        raise Refused("name", "a path with a zero byte")
    if not path.startswith("/"):
        encoded = b"/workspace" + (b"" if path == "." else b"/" + encoded)
    for prefix in PLACES:
        if (encoded + b"/").startswith(prefix.encode() + b"/"):
            break
    else:
        raise Refused("name", "paths are below %s" % ", ".join(PLACES))
    place = PLACES[prefix]
    rest = encoded[len(prefix) + 1 :]
    if rest.endswith(b"/"):
        rest = rest[:-1]
    names = rest.split(b"/") if rest else []
    if len(names) > MOST_NAMES:
        raise Refused("name", "a path of more than %d names" % MOST_NAMES)
    for name in names:
        if name in (b"", b".", b".."):
            raise Refused("name", 'a path with "%s" between its slashes' % name.decode())
        if len(name) > 255:
            raise Refused("name", "a name of more than 255 bytes")
    if place not in roots:
        raise Refused("unsupported", "%s cannot be reached from outside here" % prefix)
    return Way(roots[place], place, prefix, names)


def kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    if stat.S_ISLNK(mode):
        return "link"
    if stat.S_ISFIFO(mode):
        return "fifo"
    if stat.S_ISSOCK(mode):
        return "socket"
    return "device"


def row(name: bytes, status: os.stat_result) -> list:  # type: ignore[type-arg]
    """[name, kind, size, bytes that it really takes, time of the last change, permissions]"""
    return [
        name.decode("utf-8", "surrogateescape"),
        kind(status.st_mode),
        status.st_size,
        status.st_blocks * 512,
        status.st_mtime_ns,
        stat.S_IMODE(status.st_mode),
    ]
