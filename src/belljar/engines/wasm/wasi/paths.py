"""Calls that name a path below an open folder: `path_…`."""

from __future__ import annotations

import os

from . import abi, files
from .abi import WasiError
from .table import Descriptor, Guest, set_times, u, u64


class Paths(Guest):
    def path_create_directory(self, fd: int, path: int, length: int) -> int:
        self.files.make_folder(self._base(fd), self._path(path, length))
        return 0

    def path_filestat_get(self, fd: int, flags: int, path: int, length: int, result: int) -> int:
        follow = bool(flags & abi.FOLLOW)
        node = self.files.find(self._base(fd), self._path(path, length), follow=follow)
        self._put_status(node, u(result))
        return 0

    def path_filestat_set_times(
        self, fd: int, flags: int, path: int, length: int, accessed: int, modified: int, what: int
    ) -> int:
        follow = bool(flags & abi.FOLLOW)
        node = self.files.find(self._base(fd), self._path(path, length), follow=follow)
        return set_times(node, u64(accessed), u64(modified), what)

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
        self.memory.put_u32(u(result), number)
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
        target = os.fsencode(node.target)[: u(size)]
        self.memory.write(u(address), target)
        self.memory.put_u32(u(result), len(target))
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
