"""What a copy of an interpreter still shares with its original, and how it gets its own of it.

A fork shares every open file, and memory that is mapped as shared. When the copy goes on beside
the original, as a branch, it must have none of that: each could change what is the other's. When it
goes on in the original's place, after a rollback, the files it had open are others by now.

This is for code that does not work against it. Code that does can keep what it likes in a process
that it shows nobody; it then shares with itself.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import socket
import stat

PLACES = ("/workspace", "/data/output", "/tmp", "/dev/shm")
"""Where a branch has copies of the files, and a rollback puts them back."""
_OWN_TERMINALS = ("/dev/pts/", "/dev/ptmx")
_KEPT_FLAGS = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | os.O_SYNC | os.O_DIRECT | os.O_NOATIME
_ANONYMOUS = ("/dev/zero (deleted)", "/SYSV")
_MAP_FIXED = 0x10
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
_FAILED = ctypes.c_void_p(-1).value
_PIECE = 1 << 20

Identity = tuple[int, int]
"""Device and inode."""
Position = tuple[str, int, int]
"""Path, flags and offset."""

_libc = ctypes.CDLL(None, use_errno=True)
_size, _address = ctypes.c_size_t, ctypes.c_void_p
_libc.mmap.restype = _libc.mremap.restype = _address
_libc.mmap.argtypes = (_address, _size, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.mremap.argtypes = (_address, _size, _size, ctypes.c_int, _address)
_libc.mprotect.argtypes = (_address, _size, ctypes.c_int)
_libc.pwrite.restype = ctypes.c_ssize_t
_libc.pwrite.argtypes = (ctypes.c_int, _address, _size, ctypes.c_long)


def held() -> dict[int, Identity]:
    """The open descriptors and what they are."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            status = os.fstat(int(name))
        except OSError:
            continue  # the one that this list was read from
        found[int(name)] = (status.st_dev, status.st_ino)
    return found


def positions() -> dict[int, Position]:
    """How far files are read or written: copies share that with the original, too. Between two
    runs, so it looks at names last: that takes longest."""
    found = {}
    devices = {os.stat(place).st_dev for place in PLACES if os.path.exists(place)}
    for name in os.listdir("/proc/self/fd"):
        try:
            status = os.fstat(int(name))
            if status.st_dev not in devices or not stat.S_ISREG(status.st_mode):
                continue
            path = os.readlink("/proc/self/fd/" + name)
            if _is_copied(path):
                found[int(name)] = (path, *_state(int(name)))
        except OSError:
            continue
    return found


def stay_behind(
    before: dict[int, Identity],
    noted: dict[int, Position],
    theirs: int,
    *,
    current: bool,
    spared: int,
) -> None:
    """In a branch, once its files are there: nothing is shared with the parent from here on.

    `before`: what was open when the copy was made; what was opened since is our own. `noted`: how
    far files were at the moment that the branch is to start from; `current`: that is now. `theirs`:
    the parent's device of files. `spared`: a descriptor that stays. Raises OSError if there is no
    room for a copy."""
    mine = _Own(theirs, current=current)
    kept = os.fstat(spared)
    with open(os.devnull, "rb") as null:
        os.dup2(null.fileno(), 0)
    try:
        for descriptor, identity in held().items():
            if before.get(descriptor) != identity or descriptor <= 2:
                continue
            if identity != (kept.st_dev, kept.st_ino):
                mine.replace(descriptor, noted.get(descriptor))
        mine.remap()
    finally:
        mine.close()


def come_back(noted: dict[int, Position], folder: str) -> None:
    """In a checkpoint that is the current state again: its files, as they were then. What is not a
    file, or had no name, is as it was left."""
    names: dict[Identity, str] = {}
    for descriptor, (path, flags, offset) in noted.items():
        try:
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) and os.path.isfile(path):
                _put(descriptor, _opened(path, flags, offset))
                names[status.st_dev, status.st_ino] = path
        except OSError:
            continue
    for place in _shared_mappings() if names else ():
        path = names.get((place.device, place.inode), "")
        if place.private or not path:
            continue
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            place.map(file, place.offset)
            os.close(file)
        except OSError:
            continue
    return_to(folder)


def return_to(folder: str) -> None:
    """The folder of that name is another one now."""
    for one in (folder, "/workspace"):
        try:
            os.chdir(one)
            return
        except OSError:
            continue


class _Own:
    """Files of our own in place of the parent's."""

    def __init__(self, theirs: int, *, current: bool) -> None:
        self._theirs = theirs
        self._current = current
        self._names: dict[Identity, str] = {}
        """Of files that are open: since a checkpoint they may have been removed."""
        self._copies: dict[Identity, int] = {}
        """Of files without a name in here: two ways to one file lead to one copy."""
        self._unopened: dict[Identity, int] = {}
        """Those of them that are only mapped."""
        self._dead: dict[str, int] = {}

    def replace(self, descriptor: int, noted: Position | None) -> None:
        status = os.fstat(descriptor)
        path = os.readlink("/proc/self/fd/%d" % descriptor)
        flags, offset = _state(descriptor)
        if noted:
            path, flags, offset = noted
            self._names[status.st_dev, status.st_ino] = path
        try:
            new = self._counterpart(descriptor, status, path, flags, offset)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EMFILE):
                raise
            new = self._closed(status, flags)
        _put(descriptor, new)

    def _counterpart(
        self, descriptor: int, status: os.stat_result, path: str, flags: int, offset: int
    ) -> int:
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            # Also one outside our own places: from any folder of the parent a way leads to all.
            return os.open(path, os.O_DIRECTORY | os.O_CLOEXEC | flags & os.O_PATH)
        if stat.S_ISREG(mode):
            if _is_copied(path) and os.path.isfile(path):
                return _opened(path, flags, offset)
            if _is_copied(path) or path.startswith("/memfd:"):
                copy = self._copy(descriptor, status)
                return _opened("/proc/self/fd/%d" % copy, flags, offset)
            here = os.stat(path)
            if (here.st_dev, here.st_ino) == (status.st_dev, status.st_ino):
                return _opened(path, flags, offset)
        terminal = path.startswith(_OWN_TERMINALS)
        if stat.S_ISCHR(mode) and not terminal and os.stat(path).st_rdev == status.st_rdev:
            return os.open(path, flags & (_KEPT_FLAGS | os.O_PATH) | os.O_CLOEXEC)
        return self._closed(status, flags)

    def _copy(self, descriptor: int, status: os.stat_result) -> int:
        identity = (status.st_dev, status.st_ino)
        if identity not in self._copies:
            copy = self._copies[identity] = _nameless()
            source = os.open("/proc/self/fd/%d" % descriptor, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.ftruncate(copy, status.st_size)
                _pour(source, copy)
            finally:
                os.close(source)
        return self._copies[identity]

    def _closed(self, status: os.stat_result, flags: int) -> int:
        """As if the other side had closed it; where there is no other side, closed itself."""
        kind = "nothing"
        if stat.S_ISSOCK(status.st_mode):
            kind = "socket"
        elif stat.S_ISFIFO(status.st_mode) and not flags & os.O_PATH:
            kind = "source" if flags & os.O_ACCMODE == os.O_RDONLY else "sink"
        if kind not in self._dead:
            self._dead[kind] = _dead(kind)
        return os.dup(self._dead[kind])

    def remap(self) -> None:
        for place in _shared_mappings():
            if place.path.startswith(_ANONYMOUS):
                place.make_anonymous()
            elif place.private and "x" in place.rights:
                continue  # a library's code
            elif place.device == self._theirs or place.path.startswith("/memfd:"):
                self._remap(place)

    def _remap(self, place: _Mapping) -> None:
        if place.private:
            file = _nameless()
            os.ftruncate(file, place.size)
            place.write_to(file, 0, place.size)
            place.map(file, 0)
            os.close(file)
            return
        named = -1
        identity = (place.device, place.inode)
        path = self._names.get(identity, place.path)
        if _is_copied(path) and os.path.isfile(path):
            try:
                named = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            except PermissionError:
                pass
        if named >= 0:
            if self._current:
                # What was written through the mapping may not have been seen as a change.
                most = os.fstat(named).st_size - place.offset
                place.write_to(named, place.offset, min(place.size, most))
            place.map(named, place.offset)
            os.close(named)
            return
        copy = self._copies.get(identity, -1)
        if copy < 0:
            copy = self._copies[identity] = self._unopened[identity] = _nameless()
        if identity in self._unopened:  # nobody has it open who could tell how large it is
            end = max(os.fstat(copy).st_size, place.offset + place.size)
            os.ftruncate(copy, end)
            place.write_to(copy, place.offset, place.size)
        place.map(copy, place.offset)

    def close(self) -> None:
        for descriptor in (*self._copies.values(), *self._dead.values()):
            os.close(descriptor)


class _Mapping:
    def __init__(self, line: str) -> None:
        span, self.rights, offset, device, inode, *path = line.split(None, 5)
        start, end = (int(bound, 16) for bound in span.split("-"))
        self.start, self.size = start, end - start
        self.offset = int(offset, 16)
        major, minor = (int(number, 16) for number in device.split(":"))
        self.device = os.makedev(major, minor)
        self.inode = int(inode)
        self.path = path[0].rstrip("\n") if path else ""
        self.private = self.rights[3] == "p"
        wanted = {"r": mmap.PROT_READ, "w": mmap.PROT_WRITE, "x": mmap.PROT_EXEC}
        self.protection = sum(bit for letter, bit in wanted.items() if letter in self.rights)

    def map(self, file: int, offset: int) -> None:
        kind = mmap.MAP_PRIVATE if self.private else mmap.MAP_SHARED
        self._map(self.start, self.protection, kind | _MAP_FIXED, file, offset)

    def make_anonymous(self) -> None:
        kind = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS
        new = self._map(None, mmap.PROT_READ | mmap.PROT_WRITE, kind, -1, 0)
        self._make_readable()
        ctypes.memmove(new, self.start, self.size)
        _checked(_libc.mprotect(new, self.size, self.protection), -1)
        how = _MREMAP_MAYMOVE | _MREMAP_FIXED
        _checked(_libc.mremap(new, self.size, self.size, how, self.start), _FAILED)

    def write_to(self, file: int, offset: int, size: int) -> None:
        """By a system call: what lies beyond the end of its file must not end us."""
        self._make_readable()
        done = 0
        while done < size:
            wrote = _libc.pwrite(file, self.start + done, min(_PIECE, size - done), offset + done)
            if wrote < 0:
                code = ctypes.get_errno()
                if code == errno.EFAULT:
                    return
                raise OSError(code, os.strerror(code))
            done += wrote

    def _make_readable(self) -> None:
        if "r" not in self.rights:
            _checked(_libc.mprotect(self.start, self.size, mmap.PROT_READ), -1)

    def _map(self, at: int | None, protection: int, kind: int, file: int, offset: int) -> int:
        return _checked(_libc.mmap(at, self.size, protection, kind, file, offset), _FAILED)


def _shared_mappings() -> list[_Mapping]:
    """Memory that is a file's, or shared. A private mapping of a file follows the file, too, until
    it is written to."""
    with open("/proc/self/maps", errors="surrogateescape") as file:
        lines = [line for line in file if line[line.index(" ") + 4] == "s" or _in_place(line)]
    return [_Mapping(line) for line in lines]


def _in_place(line: str) -> bool:
    return line.count("/") > 0 and _is_copied(line[line.index("/") :].rstrip("\n"))


def _checked(result: int, failure: int | None) -> int:
    if result == failure:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _is_copied(path: str) -> bool:
    return path.startswith(tuple(place + "/" for place in PLACES))


def _state(descriptor: int) -> tuple[int, int]:
    """Flags and offset of an open file."""
    try:
        offset = os.lseek(descriptor, 0, os.SEEK_CUR)
    except OSError:  # of what has none
        offset = 0
    return fcntl.fcntl(descriptor, fcntl.F_GETFL), offset


def _opened(path: str, flags: int, offset: int) -> int:
    if flags & os.O_PATH:
        return os.open(path, os.O_PATH | os.O_CLOEXEC)
    descriptor = os.open(path, flags & _KEPT_FLAGS | os.O_CLOEXEC)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return descriptor


def _put(descriptor: int, new: int) -> None:
    os.dup2(new, descriptor, inheritable=os.get_inheritable(descriptor))
    os.close(new)


def _nameless() -> int:
    """A file that nobody else can open."""
    try:
        return os.memfd_create("copy", os.MFD_CLOEXEC)
    except OSError:  # refused where no cgroup counts it
        return os.open("/tmp", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)


def _pour(source: int, target: int) -> None:
    """Holes stay holes."""
    at = 0
    while True:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError as end:
            if end.errno == errno.ENXIO:
                return
            raise
        end_of_data = os.lseek(source, at, os.SEEK_HOLE)
        while at < end_of_data:
            piece = os.pread(source, min(_PIECE, end_of_data - at), at)
            if not piece:
                return
            at += os.pwrite(target, piece, at)


def _dead(kind: str) -> int:
    if kind == "socket":
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours.detach()
    if kind == "nothing":
        return os.open(os.devnull, os.O_PATH | os.O_CLOEXEC)
    source, sink = os.pipe2(os.O_CLOEXEC)
    os.close(sink if kind == "source" else source)
    return source if kind == "source" else sink
