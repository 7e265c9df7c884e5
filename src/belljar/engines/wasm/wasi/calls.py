"""What a guest may call: WASI preview 1, one method per function, each returning its errno."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol

from . import abi, files
from .abi import WasiError
from .memory import Memory, NoMemory

PIECE = 1 << 20
"""Content is copied in pieces of this size: a guest cannot make the host copy its whole memory."""
MAX_SUBSCRIPTIONS = 1024
MAX_VECTORS = 1024


class Stream(Protocol):
    """Standard input or output."""

    def read(self, count: int) -> bytes:
        """Waits for something; b"" is the end."""
        ...

    def write(self, data: bytes) -> None: ...

    def ready(self, timeout_s: float | None) -> bool:
        """Waits until reading would not, at most so long; None: for ever."""
        ...


class Descriptor:
    def __init__(
        self,
        node: files.Node | None = None,
        *,
        stream: Stream | None = None,
        readable: bool = True,
        writable: bool = True,
        append: bool = False,
        name: str = "",
    ) -> None:
        self.node = node
        self.stream = stream
        self.readable = readable
        self.writable = writable
        self.append = append
        self.name = name
        """Of a folder that is open from the start, its path."""
        self.position = 0
        self.listing: list[tuple[str, files.Node]] = []


class Wasi:
    """The state of one guest. `leave` ends it; `pause` sleeps for it."""

    def __init__(
        self,
        *,
        file_system: files.FileSystem,
        streams: Mapping[int, Stream],
        argv: Sequence[str],
        env: Mapping[str, str],
        open_files: int,
        leave: Callable[[int], NoReturn],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.files = file_system
        self.open_files = open_files
        self.memory: Memory = NoMemory()
        """To be set once the module is instantiated."""
        self._argv = [os.fsencode(word) + b"\0" for word in argv]
        self._env = [os.fsencode(f"{name}={value}") + b"\0" for name, value in env.items()]
        self._leave = leave
        self._pause = pause
        self._monotonic_ns = time.monotonic_ns()
        self._open: dict[int, Descriptor] = {
            number: Descriptor(stream=stream, readable=number == 0)
            for number, stream in streams.items()
        }
        self._open[3] = Descriptor(file_system.root, name="/")

    def functions(self) -> dict[str, Callable[..., int]]:
        return {name: self._checked(getattr(self, name)) for name in abi.SIGNATURES}

    def restart_clock(self) -> None:
        """A fork is a new machine: its clock starts again and tells nothing about the host's."""
        self._monotonic_ns = time.monotonic_ns()

    @staticmethod
    def _checked(function: Callable[..., int]) -> Callable[..., int]:
        def call(*arguments: int) -> int:
            try:
                # Numbers arrive signed; those of 32 bits and of 64 mean the same once masked.
                return function(*arguments) or 0
            except WasiError as error:
                return error.errno

        return call

    # -- arguments, clocks, chance ---------------------------------------------------------------

    def args_get(self, table: int, texts: int) -> int:
        return self._put_texts(self._argv, table, texts)

    def args_sizes_get(self, count: int, size: int) -> int:
        return self._put_sizes(self._argv, count, size)

    def environ_get(self, table: int, texts: int) -> int:
        return self._put_texts(self._env, table, texts)

    def environ_sizes_get(self, count: int, size: int) -> int:
        return self._put_sizes(self._env, count, size)

    def clock_res_get(self, clock: int, result: int) -> int:
        self._now(clock)
        self.memory.put_u64(_u(result), 1000)
        return 0

    def clock_time_get(self, clock: int, precision: int, result: int) -> int:
        self.memory.put_u64(_u(result), self._now(clock))
        return 0

    def random_get(self, address: int, count: int) -> int:
        address, count = _u(address), _u(count)
        for start in range(0, count, PIECE):
            self.memory.write(address + start, os.urandom(min(PIECE, count - start)))
        return 0

    def sched_yield(self) -> int:
        return 0

    def proc_exit(self, code: int) -> int:
        self._leave(_u(code))

    def proc_raise(self, signal: int) -> int:
        return abi.ENOSYS

    def poll_oneoff(self, subscriptions: int, events: int, count: int, result: int) -> int:
        count = _u(count)
        if not 0 < count <= MAX_SUBSCRIPTIONS:
            return abi.EINVAL
        size = abi.SUBSCRIPTION.size
        raw = self.memory.read(_u(subscriptions), size * count)
        asked = [abi.SUBSCRIPTION.unpack_from(raw, index * size) for index in range(count)]
        happened = self._happened(asked)
        self.memory.write(_u(events), b"".join(happened))
        self.memory.put_u32(_u(result), len(happened))
        return 0

    def _happened(self, asked: list[tuple[Any, ...]]) -> list[bytes]:
        begun = time.monotonic_ns()
        waits: list[tuple[int, int]] = []
        inputs: list[tuple[int, Stream]] = []
        now: list[bytes] = []
        for user, tag, what, timeout, _, flags in asked:
            if tag == abi.ON_CLOCK:
                left = timeout - self._now(what) if flags & abi.ABSOLUTE else timeout
                waits.append((max(0, left), user))
                continue
            descriptor = self._open.get(what)
            if descriptor is None:
                now.append(abi.EVENT.pack(user, abi.EBADF, tag, 0, 0))
            elif tag == abi.ON_READ and descriptor.stream is not None:
                inputs.append((user, descriptor.stream))
            else:
                now.append(abi.EVENT.pack(user, 0, tag, 1, 0))
        for user, stream in inputs:
            if stream.ready(0):
                now.append(abi.EVENT.pack(user, 0, abi.ON_READ, 1, 0))
        if now:
            return now
        timeout_s = min(waits)[0] / 1e9 if waits else None
        if inputs:
            user, stream = inputs[0]
            if stream.ready(timeout_s):
                return [abi.EVENT.pack(user, 0, abi.ON_READ, 1, 0)]
        elif timeout_s is not None:
            self._pause(timeout_s)
        passed = time.monotonic_ns() - begun
        return [
            abi.EVENT.pack(user, 0, abi.ON_CLOCK, 0, 0)
            for left, user in waits
            if left <= passed or left == min(waits)[0]
        ]

    # -- descriptors -----------------------------------------------------------------------------

    def fd_advise(self, fd: int, offset: int, length: int, advice: int) -> int:
        self._get(fd)
        return 0

    def fd_allocate(self, fd: int, offset: int, length: int) -> int:
        file = self._writable_file(fd)
        end = _u64(offset) + _u64(length)
        if end > file.size:
            self.files.resize(file, end)
        return 0

    def fd_close(self, fd: int) -> int:
        descriptor = self._get(fd)
        del self._open[_u(fd)]
        if descriptor.node is not None:
            self.files.closed(descriptor.node)
        return 0

    def fd_datasync(self, fd: int) -> int:
        self._get(fd)
        return 0

    fd_sync = fd_datasync

    def fd_fdstat_get(self, fd: int, result: int) -> int:
        descriptor = self._get(fd)
        kind = descriptor.node.kind if descriptor.node else abi.UNKNOWN
        rights = abi.ALL_RIGHTS
        if not descriptor.readable:
            rights &= ~abi.RIGHT_READ
        if not descriptor.writable:
            rights &= ~abi.RIGHT_WRITE
        if descriptor.stream:
            rights &= ~(abi.RIGHT_SEEK | abi.RIGHT_TELL)
        flags = abi.APPEND if descriptor.append else 0
        self.memory.write(_u(result), abi.FDSTAT.pack(kind, flags, rights, abi.ALL_RIGHTS))
        return 0

    def fd_fdstat_set_flags(self, fd: int, flags: int) -> int:
        self._get(fd).append = bool(flags & abi.APPEND)
        return 0

    def fd_fdstat_set_rights(self, fd: int, base: int, inheriting: int) -> int:
        self._get(fd)
        return abi.ENOTSUP

    def fd_filestat_get(self, fd: int, result: int) -> int:
        descriptor = self._get(fd)
        self._put_status(descriptor.node or files.Node(), _u(result))
        return 0

    def fd_filestat_set_size(self, fd: int, size: int) -> int:
        self.files.resize(self._writable_file(fd), _u64(size))
        return 0

    def fd_filestat_set_times(self, fd: int, accessed: int, modified: int, flags: int) -> int:
        node = self._get(fd).node
        if node is None:
            return abi.EINVAL
        return _set_times(node, _u64(accessed), _u64(modified), flags)

    def fd_prestat_get(self, fd: int, result: int) -> int:
        name = self._preopened(fd)
        self.memory.write(_u(result), abi.PRESTAT.pack(0, len(name)))
        return 0

    def fd_prestat_dir_name(self, fd: int, address: int, size: int) -> int:
        name = self._preopened(fd)
        if _u(size) < len(name):
            return abi.ENAMETOOLONG
        self.memory.write(_u(address), name)
        return 0

    def fd_renumber(self, fd: int, to: int) -> int:
        descriptor = self._get(fd)
        self._get(to)
        if _u(fd) != _u(to):
            self.fd_close(to)
            self._open[_u(to)] = descriptor
            del self._open[_u(fd)]
        return 0

    def fd_seek(self, fd: int, offset: int, whence: int, result: int) -> int:
        descriptor = self._get(fd)
        if descriptor.stream is not None:
            return abi.ESPIPE
        if descriptor.node is None or whence not in (abi.SET, abi.CURRENT, abi.END):
            return abi.EINVAL
        start = (0, descriptor.position, descriptor.node.size)[whence]
        if start + offset < 0 or start + offset >= 1 << 63:
            return abi.EINVAL
        descriptor.position = start + offset
        self.memory.put_u64(_u(result), descriptor.position)
        return 0

    def fd_tell(self, fd: int, result: int) -> int:
        descriptor = self._get(fd)
        if descriptor.stream is not None:
            return abi.ESPIPE
        self.memory.put_u64(_u(result), descriptor.position)
        return 0

    # -- content ---------------------------------------------------------------------------------

    def fd_read(self, fd: int, vectors: int, count: int, result: int) -> int:
        descriptor = self._get(fd)
        if not descriptor.readable:
            return abi.EBADF
        done = 0
        for address, length in self._vectors(vectors, count):
            wanted = min(length, PIECE)
            if descriptor.stream is not None:
                self.memory.read(address, min(1, wanted))  # before input is taken for it
                data = descriptor.stream.read(wanted) if wanted else b""
            else:
                data = self._content(descriptor.node, descriptor.position, wanted)
                descriptor.position += len(data)
            self.memory.write(address, data)
            done += len(data)
            if len(data) < length:
                break
        self.memory.put_u32(_u(result), done)
        return 0

    def fd_pread(self, fd: int, vectors: int, count: int, offset: int, result: int) -> int:
        descriptor = self._get(fd)
        if not descriptor.readable or descriptor.stream is not None:
            return abi.ESPIPE if descriptor.stream else abi.EBADF
        done = 0
        for address, length in self._vectors(vectors, count):
            data = self._content(descriptor.node, _u64(offset) + done, min(length, PIECE))
            self.memory.write(address, data)
            done += len(data)
            if len(data) < length:
                break
        self.memory.put_u32(_u(result), done)
        return 0

    def fd_write(self, fd: int, vectors: int, count: int, result: int) -> int:
        descriptor = self._get(fd)
        if not descriptor.writable:
            return abi.EBADF
        if descriptor.stream is None:
            if descriptor.append and descriptor.node:
                descriptor.position = descriptor.node.size
            done = self._store(descriptor, vectors, count, descriptor.position)
            descriptor.position += done
        else:
            done = 0
            for address, length in self._vectors(vectors, count):
                for start in range(0, length, PIECE):
                    piece = self.memory.read(address + start, min(PIECE, length - start))
                    descriptor.stream.write(piece)
                done += length
        self.memory.put_u32(_u(result), done & 0xFFFF_FFFF)
        return 0

    def fd_pwrite(self, fd: int, vectors: int, count: int, offset: int, result: int) -> int:
        descriptor = self._get(fd)
        if not descriptor.writable or descriptor.stream is not None:
            return abi.ESPIPE if descriptor.stream else abi.EBADF
        self.memory.put_u32(_u(result), self._store(descriptor, vectors, count, _u64(offset)))
        return 0

    def _store(self, descriptor: Descriptor, vectors: int, count: int, offset: int) -> int:
        node = descriptor.node
        done = 0
        for address, length in self._vectors(vectors, count):
            for start in range(0, length, PIECE):
                data = self.memory.read(address + start, min(PIECE, length - start))
                if isinstance(node, files.Null):
                    done += len(data)
                    continue
                if not isinstance(node, files.File):
                    raise WasiError(abi.EISDIR)
                try:
                    written = self.files.write(node, offset + done, data)
                except WasiError:
                    if done:
                        return done
                    raise
                done += written
                if written < len(data):
                    return done
        return done

    def _content(self, node: files.Node | None, offset: int, count: int) -> bytes:
        if isinstance(node, (files.File, files.HostFile, files.Null)):
            return node.read(offset, count)
        raise WasiError(abi.EISDIR)

    # -- folders ---------------------------------------------------------------------------------

    def fd_readdir(self, fd: int, address: int, size: int, cookie: int, result: int) -> int:
        descriptor = self._get(fd)
        folder = _folder(descriptor)
        if not cookie:
            descriptor.listing = [(".", folder), ("..", folder.parent), *folder.entries.items()]
        filled = bytearray()
        size = min(_u(size), PIECE)
        for index, (name, node) in enumerate(descriptor.listing[_u64(cookie) :], _u64(cookie)):
            encoded = os.fsencode(name)
            filled += abi.DIRENT.pack(index + 1, node.inode, len(encoded), node.kind) + encoded
            if len(filled) >= size:
                break
        self.memory.write(_u(address), bytes(filled[:size]))
        self.memory.put_u32(_u(result), min(len(filled), size))
        return 0

    def path_create_directory(self, fd: int, path: int, length: int) -> int:
        self.files.make_folder(self._base(fd), self._path(path, length))
        return 0

    def path_filestat_get(self, fd: int, flags: int, path: int, length: int, result: int) -> int:
        follow = bool(flags & abi.FOLLOW)
        node = self.files.find(self._base(fd), self._path(path, length), follow=follow)
        self._put_status(node, _u(result))
        return 0

    def path_filestat_set_times(
        self, fd: int, flags: int, path: int, length: int, accessed: int, modified: int, what: int
    ) -> int:
        follow = bool(flags & abi.FOLLOW)
        node = self.files.find(self._base(fd), self._path(path, length), follow=follow)
        return _set_times(node, _u64(accessed), _u64(modified), what)

    def path_link(
        self, fd: int, flags: int, path: int, length: int, new_fd: int, new: int, new_length: int
    ) -> int:
        follow = bool(flags & abi.FOLLOW)
        node = self.files.find(self._base(fd), self._path(path, length), follow=follow)
        self.files.make_link(node, self._base(new_fd), self._path(new, new_length))
        return 0

    def path_open(
        self,
        fd: int,
        lookup: int,
        path: int,
        length: int,
        how: int,
        rights: int,
        inheriting: int,
        flags: int,
        result: int,
    ) -> int:
        base, name = self._base(fd), self._path(path, length)
        if len(self._open) >= self.open_files:
            return abi.EMFILE
        reading, writing = bool(rights & abi.RIGHT_READ), bool(rights & abi.RIGHT_WRITE)
        node = self._found(base, name, follow=bool(lookup & abi.FOLLOW), how=how)
        if isinstance(node, files.Symlink):
            return abi.ELOOP
        if how & abi.WANT_DIRECTORY and not isinstance(node, files.Folder):
            return abi.ENOTDIR
        if isinstance(node, files.Folder):
            if how & abi.TRUNCATE or (writing and how & abi.CREATE):
                return abi.EISDIR
        elif (writing or how & abi.TRUNCATE) and not isinstance(node, files.Null):
            if node.frozen:
                return abi.EROFS
            if how & abi.TRUNCATE and isinstance(node, files.File):
                self.files.resize(node, 0)
        number = next(n for n in range(4, 1 << 20) if n not in self._open)
        self.memory.put_u32(_u(result), number)
        self.files.opened(node)
        self._open[number] = Descriptor(
            node, readable=reading, writable=writing, append=bool(flags & abi.APPEND)
        )
        return 0

    def _found(self, base: files.Folder, name: str, *, follow: bool, how: int) -> files.Node:
        """The entry to open, made if that was asked for."""
        try:
            node = self.files.find(base, name, follow=follow)
        except WasiError as error:
            if error.errno != abi.ENOENT or not how & abi.CREATE:
                raise
            folder, last, dangling = self.files.parent(base, name)
            if dangling is not None or name.endswith("/"):
                raise
            return self.files.create(folder, last)
        if how & abi.CREATE and how & abi.EXCLUSIVE:
            raise WasiError(abi.EEXIST)
        return node

    def path_readlink(
        self, fd: int, path: int, length: int, address: int, size: int, result: int
    ) -> int:
        node = self.files.find(self._base(fd), self._path(path, length), follow=False)
        if not isinstance(node, files.Symlink):
            return abi.EINVAL
        target = os.fsencode(node.target)[: _u(size)]
        self.memory.write(_u(address), target)
        self.memory.put_u32(_u(result), len(target))
        return 0

    def path_remove_directory(self, fd: int, path: int, length: int) -> int:
        self.files.remove_folder(self._base(fd), self._path(path, length))
        return 0

    def path_rename(
        self, fd: int, path: int, length: int, new_fd: int, new: int, new_length: int
    ) -> int:
        old, new_path = self._path(path, length), self._path(new, new_length)
        self.files.rename(self._base(fd), old, self._base(new_fd), new_path)
        return 0

    def path_symlink(self, target: int, size: int, fd: int, path: int, length: int) -> int:
        to, name = self._path(target, size), self._path(path, length)
        self.files.make_symlink(to, self._base(fd), name)
        return 0

    def path_unlink_file(self, fd: int, path: int, length: int) -> int:
        self.files.remove(self._base(fd), self._path(path, length))
        return 0

    # -- sockets: there are none -----------------------------------------------------------------

    def sock_accept(self, fd: int, flags: int, result: int) -> int:
        return abi.ENOTSUP

    def sock_recv(self, fd: int, v: int, n: int, flags: int, result: int, out: int) -> int:
        return abi.ENOTSUP

    def sock_send(self, fd: int, vectors: int, count: int, flags: int, result: int) -> int:
        return abi.ENOTSUP

    def sock_shutdown(self, fd: int, how: int) -> int:
        return abi.ENOTSUP

    # -- parts -----------------------------------------------------------------------------------

    def _get(self, fd: int) -> Descriptor:
        try:
            return self._open[_u(fd)]
        except KeyError:
            raise WasiError(abi.EBADF) from None

    def _base(self, fd: int) -> files.Folder:
        return _folder(self._get(fd))

    def _preopened(self, fd: int) -> bytes:
        name = self._get(fd).name
        if not name:
            raise WasiError(abi.EBADF)
        return os.fsencode(name)

    def _writable_file(self, fd: int) -> files.File:
        descriptor = self._get(fd)
        if not descriptor.writable or not isinstance(descriptor.node, files.File):
            raise WasiError(abi.EBADF if descriptor.node is None else abi.EINVAL)
        return descriptor.node

    def _path(self, address: int, length: int) -> str:
        return self.memory.text(_u(address), _u(length))

    def _vectors(self, address: int, count: int) -> list[tuple[int, int]]:
        count = _u(count)
        if count > MAX_VECTORS:
            raise WasiError(abi.EINVAL)
        return list(abi.IOVEC.iter_unpack(self.memory.read(_u(address), 8 * count)))

    def _now(self, clock: int) -> int:
        if clock == abi.REALTIME:
            return time.time_ns()
        if clock == abi.MONOTONIC:
            return time.monotonic_ns() - self._monotonic_ns
        if clock in (abi.PROCESS_CPU, abi.THREAD_CPU):
            return time.process_time_ns()
        raise WasiError(abi.EINVAL)

    def _put_status(self, node: files.Node, address: int) -> None:
        times = (node.accessed_ns, node.modified_ns, node.changed_ns)
        status = abi.FILESTAT.pack(1, node.inode, node.kind, max(1, node.links), node.size, *times)
        self.memory.write(address, status)

    def _put_texts(self, texts: list[bytes], table: int, address: int) -> int:
        table, address = _u(table), _u(address)
        for index, text in enumerate(texts):
            self.memory.put_u32(table + 4 * index, address)
            self.memory.write(address, text)
            address += len(text)
        return 0

    def _put_sizes(self, texts: list[bytes], count: int, size: int) -> int:
        self.memory.put_u32(_u(count), len(texts))
        self.memory.put_u32(_u(size), sum(map(len, texts)))
        return 0


def _u(value: int) -> int:
    return value & 0xFFFF_FFFF


def _u64(value: int) -> int:
    return value & 0xFFFF_FFFF_FFFF_FFFF


def _folder(descriptor: Descriptor) -> files.Folder:
    if not isinstance(descriptor.node, files.Folder):
        raise WasiError(abi.ENOTDIR)
    return descriptor.node


def _set_times(node: files.Node, accessed: int, modified: int, flags: int) -> int:
    if node.frozen:
        return abi.EROFS
    now = time.time_ns()
    if flags & (abi.ATIME | abi.ATIME_NOW):
        node.accessed_ns = now if flags & abi.ATIME_NOW else accessed
    if flags & (abi.MTIME | abi.MTIME_NOW):
        node.modified_ns = now if flags & abi.MTIME_NOW else modified
    return 0
