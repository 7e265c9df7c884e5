"""Calls on an open descriptor: `fd_…`."""

from __future__ import annotations

import os

from . import abi, files
from .abi import WasiError
from .table import PIECE, Descriptor, Guest, folder_of, set_times, u, u64


class Descriptors(Guest):
    def fd_advise(self, fd: int, offset: int, length: int, advice: int) -> int:
        self._get(fd)
        return 0

    def fd_allocate(self, fd: int, offset: int, length: int) -> int:
        file = self._writable_file(fd)
        end = u64(offset) + u64(length)
        if end > file.size:
            self.files.resize(file, end)
        return 0

    def fd_close(self, fd: int) -> int:
        descriptor = self._get(fd)
        del self._open[u(fd)]
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
        self.memory.write(u(result), abi.FDSTAT.pack(kind, flags, rights, abi.ALL_RIGHTS))
        return 0

    def fd_fdstat_set_flags(self, fd: int, flags: int) -> int:
        self._get(fd).append = bool(flags & abi.APPEND)
        return 0

    def fd_fdstat_set_rights(self, fd: int, base: int, inheriting: int) -> int:
        self._get(fd)
        return abi.ENOTSUP

    def fd_filestat_get(self, fd: int, result: int) -> int:
        descriptor = self._get(fd)
        self._put_status(descriptor.node or files.Node(), u(result))
        return 0

    def fd_filestat_set_size(self, fd: int, size: int) -> int:
        self.files.resize(self._writable_file(fd), u64(size))
        return 0

    def fd_filestat_set_times(self, fd: int, accessed: int, modified: int, flags: int) -> int:
        node = self._get(fd).node
        if node is None:
            return abi.EINVAL
        return set_times(node, u64(accessed), u64(modified), flags)

    def fd_prestat_get(self, fd: int, result: int) -> int:
        name = self._preopened(fd)
        self.memory.write(u(result), abi.PRESTAT.pack(0, len(name)))
        return 0

    def fd_prestat_dir_name(self, fd: int, address: int, size: int) -> int:
        name = self._preopened(fd)
        if u(size) < len(name):
            return abi.ENAMETOOLONG
        self.memory.write(u(address), name)
        return 0

    def fd_renumber(self, fd: int, to: int) -> int:
        descriptor = self._get(fd)
        self._get(to)
        if u(fd) != u(to):
            self.fd_close(to)
            self._open[u(to)] = descriptor
            del self._open[u(fd)]
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
        self.memory.put_u64(u(result), descriptor.position)
        return 0

    def fd_tell(self, fd: int, result: int) -> int:
        descriptor = self._get(fd)
        if descriptor.stream is not None:
            return abi.ESPIPE
        self.memory.put_u64(u(result), descriptor.position)
        return 0

    # -- content ---------------------------------------------------------------------------------

    def fd_read(self, fd: int, vectors: int, count: int, result: int) -> int:
        descriptor = self._get(fd)
        if not descriptor.readable:
            return abi.EBADF
        done = 0
        for address, wanted in self._pieces(vectors, count):
            if descriptor.stream is not None:
                self.memory.read(address, 1)  # before input is taken for it
                data = descriptor.stream.read(wanted)
            else:
                data = self._content(descriptor.node, descriptor.position, wanted)
                descriptor.position += len(data)
            self.memory.write(address, data)
            done += len(data)
            # Reading on could wait for input that the guest does not need yet.
            if len(data) < wanted or (descriptor.stream is not None and wanted == PIECE):
                break
        self.memory.put_u32(u(result), done)
        return 0

    def fd_pread(self, fd: int, vectors: int, count: int, offset: int, result: int) -> int:
        descriptor = self._get(fd)
        if not descriptor.readable or descriptor.stream is not None:
            return abi.ESPIPE if descriptor.stream else abi.EBADF
        done = 0
        for address, wanted in self._pieces(vectors, count):
            data = self._content(descriptor.node, u64(offset) + done, wanted)
            self.memory.write(address, data)
            done += len(data)
            if len(data) < wanted:
                break
        self.memory.put_u32(u(result), done)
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
            for address, length in self._pieces(vectors, count):
                descriptor.stream.write(self.memory.read(address, length))
                done += length
        self.memory.put_u32(u(result), done)
        return 0

    def fd_pwrite(self, fd: int, vectors: int, count: int, offset: int, result: int) -> int:
        descriptor = self._get(fd)
        if not descriptor.writable or descriptor.stream is not None:
            return abi.ESPIPE if descriptor.stream else abi.EBADF
        self.memory.put_u32(u(result), self._store(descriptor, vectors, count, u64(offset)))
        return 0

    def _store(self, descriptor: Descriptor, vectors: int, count: int, offset: int) -> int:
        node = descriptor.node
        done = 0
        for address, length in self._pieces(vectors, count):
            data = self.memory.read(address, length)
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
        folder = folder_of(descriptor)
        if not cookie:
            descriptor.listing = folder.listing()
        filled = bytearray()
        size = min(u(size), PIECE)
        for index in range(u64(cookie), len(descriptor.listing)):
            name, node = descriptor.listing[index]
            encoded = os.fsencode(name)
            filled += abi.DIRENT.pack(index + 1, node.inode, len(encoded), node.kind) + encoded
            if len(filled) >= size:
                break
        self.memory.write(u(address), bytes(filled[:size]))
        self.memory.put_u32(u(result), min(len(filled), size))
        return 0
