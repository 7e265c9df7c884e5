"""The state of one guest: its open descriptors, its clock, and the parts that its calls share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NoReturn, Protocol

from . import abi, files
from .abi import WasiError
from .memory import Memory, NoMemory

PIECE = 1 << 20
"""Content is copied in pieces of this size: a guest cannot make the host copy its whole memory."""
MAX_TRANSFER = 64 * PIECE
"""What one call reads or writes at most. 1,024 vectors may all name the same megabytes, and a short
count is legal: the guest asks again."""
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
        self.listing: tuple[tuple[str, files.Node], ...] = ()


class Guest:
    """The state of one guest. `leave` ends it; `pause` sleeps for it; `check` is called at the
    start of every call and between the pieces of a long one, and raises when its time is up."""

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
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.files = file_system
        self.open_files = open_files
        self.memory: Memory = NoMemory()
        """To be set once the module is instantiated."""
        self._argv = [os.fsencode(word) + b"\0" for word in argv]
        self._env = [os.fsencode(f"{name}={value}") + b"\0" for name, value in env.items()]
        self._leave = leave
        self._pause = pause
        self._check = check
        self._monotonic_ns = time.monotonic_ns()
        self._open: dict[int, Descriptor] = {
            number: Descriptor(stream=stream, readable=number == 0)
            for number, stream in streams.items()
        }
        self._open[3] = Descriptor(file_system.root, name="/")

    def _get(self, fd: int) -> Descriptor:
        try:
            return self._open[u(fd)]
        except KeyError:
            raise WasiError(abi.EBADF) from None

    def _base(self, fd: int) -> files.Folder:
        return folder_of(self._get(fd))

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
        return self.memory.text(u(address), u(length))

    def _vectors(self, address: int, count: int) -> list[tuple[int, int]]:
        count = u(count)
        if count > MAX_VECTORS:
            raise WasiError(abi.EINVAL)
        return list(abi.IOVEC.iter_unpack(self.memory.read(u(address), 8 * count)))

    def _pieces(self, vectors: int, count: int) -> Iterator[tuple[int, int]]:
        """The places that vectors name, in pieces, as far as one call goes."""
        left = MAX_TRANSFER
        for address, length in self._vectors(vectors, count):
            for start in range(0, min(length, left), PIECE):
                self._check()
                yield address + start, min(PIECE, length - start, left - start)
            left -= min(length, left)

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
        table, address = u(table), u(address)
        for index, text in enumerate(texts):
            self.memory.put_u32(table + 4 * index, address)
            self.memory.write(address, text)
            address += len(text)
        return 0

    def _put_sizes(self, texts: list[bytes], count: int, size: int) -> int:
        self.memory.put_u32(u(count), len(texts))
        self.memory.put_u32(u(size), sum(map(len, texts)))
        return 0


def u(value: int) -> int:
    return value & 0xFFFF_FFFF


def u64(value: int) -> int:
    return value & 0xFFFF_FFFF_FFFF_FFFF


def folder_of(descriptor: Descriptor) -> files.Folder:
    if not isinstance(descriptor.node, files.Folder):
        raise WasiError(abi.ENOTDIR)
    return descriptor.node


def set_times(node: files.Node, accessed: int, modified: int, flags: int) -> int:
    if node.frozen:
        return abi.EROFS
    now = time.time_ns()
    if flags & (abi.ATIME | abi.ATIME_NOW):
        node.accessed_ns = now if flags & abi.ATIME_NOW else accessed
    if flags & (abi.MTIME | abi.MTIME_NOW):
        node.modified_ns = now if flags & abi.MTIME_NOW else modified
    return 0
