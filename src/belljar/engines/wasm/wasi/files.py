"""A file system in memory, bounded in bytes and entries (L4). Nothing in it is a file of the host.

Entries that are `frozen` cannot be changed by the guest; what it makes itself never is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from belljar.runtimes.guest import places

from . import abi
from .abi import WasiError

MAX_NAME = 255
MAX_PATH = 4096
MAX_HOPS = 40


class Quota:
    """What may still be stored."""

    def __init__(self, *, disk_bytes: int, disk_files: int) -> None:
        self.bytes_left = disk_bytes
        self.files_left = disk_files
        self.used_bytes = 0
        self.peak_bytes = 0

    def take_bytes(self, count: int) -> None:
        if count > self.bytes_left:
            raise WasiError(abi.ENOSPC)
        self.bytes_left -= count
        self.used_bytes += count
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def take_file(self) -> None:
        if self.files_left < 1:
            raise WasiError(abi.ENOSPC)
        self.files_left -= 1

    def give_back(self, count: int) -> None:
        self.bytes_left += count
        self.used_bytes -= count


class Node:
    kind = abi.UNKNOWN
    _last = 0

    def __init__(self, *, frozen: bool = False) -> None:
        Node._last += 1
        self.inode = Node._last
        self.frozen = frozen
        self.links = 0
        self.opened = 0
        self.accessed_ns = self.modified_ns = self.changed_ns = time.time_ns()

    @property
    def size(self) -> int:
        return 0

    def touch(self) -> None:
        self.modified_ns = self.changed_ns = time.time_ns()


class File(Node):
    kind = abi.REGULAR_FILE

    def __init__(self, *, frozen: bool = False) -> None:
        super().__init__(frozen=frozen)
        self.data = bytearray()

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, count: int) -> bytes:
        return bytes(self.data[offset : offset + count])


class HostFile(Node):
    """A file below a folder of the host, read in place and never through a link."""

    kind = abi.REGULAR_FILE

    def __init__(self, root: int, path: str, size: int) -> None:
        super().__init__(frozen=True)
        self._root = root
        self._path = path
        self._size = size
        self._descriptor = -1

    @property
    def size(self) -> int:
        return self._size

    def read(self, offset: int, count: int) -> bytes:
        try:
            if self._descriptor < 0:
                self._descriptor = places.read(self._root, self._path)
            return os.pread(self._descriptor, count, offset)
        except (OSError, OverflowError):
            raise WasiError(abi.EIO) from None

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Null(Node):
    """/dev/null"""

    kind = abi.CHARACTER_DEVICE

    def read(self, offset: int, count: int) -> bytes:
        return b""


class Symlink(Node):
    kind = abi.SYMBOLIC_LINK

    def __init__(self, target: str) -> None:
        super().__init__()
        self.target = target

    @property
    def size(self) -> int:
        return len(os.fsencode(self.target))


class Folder(Node):
    kind = abi.DIRECTORY

    def __init__(self, parent: Folder | None = None, *, frozen: bool = False) -> None:
        super().__init__(frozen=frozen)
        self.parent = parent or self
        self.entries: dict[str, Node] = {}
        self._listing: tuple[tuple[str, Node], ...] | None = None

    def touch(self) -> None:
        super().touch()
        self._listing = None

    def move(self, parent: Folder) -> None:
        self.parent = parent
        self._listing = None

    def listing(self) -> tuple[tuple[str, Node], ...]:
        """Its entries as they are now, the same tuple until they change: 256 descriptors of a
        folder of the host with many files must not each hold a copy."""
        if self._listing is None:
            self._listing = ((".", self), ("..", self.parent), *self.entries.items())
        return self._listing


class FileSystem:
    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self.root = Folder(frozen=True)
        self.root.links = 1

    # -- the host's side -------------------------------------------------------------------------

    def folder(self, path: str, *, frozen: bool = False) -> Folder:
        """The folder of this name, made with those above it if need be."""
        here = self.root
        for part in path.strip("/").split("/"):
            below = here.entries.get(part)
            if below is None:
                below = Folder(here, frozen=True)
                self._enter(here, part, below)
            if not isinstance(below, Folder):
                raise WasiError(abi.ENOTDIR)
            here = below
        here.frozen = frozen
        return here

    def device(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        self._enter(self.folder(folder, frozen=True), name, Null(frozen=True))

    def place(self, folder: Folder, path: str) -> File:
        """A new empty file of the host's below `folder`, in the quota like the guest's own."""
        *folders, name = path.split("/")
        here = folder
        for part in folders:
            below = here.entries.get(part)
            if below is None:
                self.quota.take_file()
                below = Folder(here, frozen=folder.frozen)
                self._enter(here, part, below)
            if not isinstance(below, Folder):
                raise WasiError(abi.ENOTDIR)
            here = below
        if name in here.entries:
            self._drop(here, name)
        self.quota.take_file()
        file = File(frozen=folder.frozen)
        self._enter(here, name, file)
        return file

    def show(self, root: int, folder: Folder) -> None:
        """Lets `folder` show the files below the host's folder `root`; links are left out."""
        for path, status, unreadable in places.scan(root, ""):
            if unreadable:
                continue
            *above, name = path.split("/")
            here = folder
            for part in above:
                below = here.entries.get(part)
                if not isinstance(below, Folder):
                    below = Folder(here, frozen=True)
                    self._enter(here, part, below)
                here = below
            self._enter(here, name, HostFile(root, path, status.st_size))

    def walk(self, folder: Folder) -> Iterator[tuple[str, Node]]:
        """Everything below that is not a folder, in the order of names within each folder."""
        stack: list[tuple[str, Folder]] = [("", folder)]
        while stack:
            prefix, here = stack.pop()
            # A copy, taken at once: the code may still be running when this is asked.
            entries = dict(here.entries)
            for name in sorted(entries, key=os.fsencode):
                node = entries[name]
                if isinstance(node, Folder):
                    stack.append((prefix + name + "/", node))
                else:
                    yield prefix + name, node

    # -- finding ---------------------------------------------------------------------------------

    def find(self, base: Folder, path: str, *, follow: bool = True) -> Node:
        node, _, _ = self._walk(base, path, follow=follow)
        if node is None:
            raise WasiError(abi.ENOENT)
        return node

    def parent(self, base: Folder, path: str) -> tuple[Folder, str, Node | None]:
        """The folder of an entry, its name there, and the entry if it exists (links as such)."""
        node, folder, name = self._walk(base, path, follow=False)
        if name in ("", ".", ".."):
            raise WasiError(abi.EINVAL if node is None else abi.EEXIST)
        return folder, name, node

    def _walk(self, base: Folder, path: str, *, follow: bool) -> tuple[Node | None, Folder, str]:
        if len(path) > MAX_PATH:
            raise WasiError(abi.ENAMETOOLONG)
        if not path or "\0" in path:
            raise WasiError(abi.ENOENT if not path else abi.EINVAL)
        must_be_folder = path.endswith("/")
        here = self.root if path.startswith("/") else base
        parts = [part for part in path.split("/") if part not in ("", ".")][::-1]
        node: Node | None = here
        name = "."
        hops = 0
        while parts:
            name = parts.pop()
            if len(os.fsencode(name)) > MAX_NAME:
                raise WasiError(abi.ENAMETOOLONG)
            node = here.parent if name == ".." else here.entries.get(name)
            last = not parts
            if isinstance(node, Symlink) and (not last or follow or must_be_folder):
                hops += 1
                if hops > MAX_HOPS:
                    raise WasiError(abi.ELOOP)
                if node.target.startswith("/"):
                    here = self.root
                parts += [part for part in node.target.split("/") if part not in ("", ".")][::-1]
                node = here
                continue
            if last:
                break
            if node is None:
                raise WasiError(abi.ENOENT)
            if not isinstance(node, Folder):
                raise WasiError(abi.ENOTDIR)
            here = node
        if must_be_folder and node is not None and not isinstance(node, Folder):
            raise WasiError(abi.ENOTDIR)
        return node, here, name

    # -- the guest's changes ---------------------------------------------------------------------

    def create(self, folder: Folder, name: str) -> File:
        if name in folder.entries:
            raise WasiError(abi.EEXIST)
        self._changeable(folder)
        self.quota.take_file()
        file = File()
        self._enter(folder, name, file)
        return file

    def make_folder(self, base: Folder, path: str) -> None:
        folder, name, node = self.parent(base, path.rstrip("/") or path)
        if node is not None:
            raise WasiError(abi.EEXIST)
        self._changeable(folder)
        self.quota.take_file()
        self._enter(folder, name, Folder(folder))

    def make_symlink(self, target: str, base: Folder, path: str) -> None:
        folder, name, node = self.parent(base, path)
        if node is not None:
            raise WasiError(abi.EEXIST)
        if len(target) > MAX_PATH or not target or "\0" in target:
            raise WasiError(abi.EINVAL)
        self._changeable(folder)
        self.quota.take_file()
        self._enter(folder, name, Symlink(target))

    def make_link(self, node: Node, base: Folder, path: str) -> None:
        folder, name, existing = self.parent(base, path)
        if existing is not None:
            raise WasiError(abi.EEXIST)
        if isinstance(node, Folder) or node.frozen:
            raise WasiError(abi.EPERM)
        self._changeable(folder)
        self.quota.take_file()  # a name costs memory too
        self._enter(folder, name, node)

    def remove(self, base: Folder, path: str) -> None:
        folder, name, node = self.parent(base, path)
        if node is None:
            raise WasiError(abi.ENOENT)
        if isinstance(node, Folder):
            raise WasiError(abi.EISDIR)
        self._changeable(folder)
        self._drop(folder, name)

    def remove_folder(self, base: Folder, path: str) -> None:
        folder, name, node = self.parent(base, path.rstrip("/") or path)
        if node is None:
            raise WasiError(abi.ENOENT)
        if not isinstance(node, Folder):
            raise WasiError(abi.ENOTDIR)
        if node.entries:
            raise WasiError(abi.ENOTEMPTY)
        self._changeable(folder)
        self._drop(folder, name)

    def rename(self, base: Folder, path: str, new_base: Folder, new_path: str) -> None:
        folder, name, node = self.parent(base, path.rstrip("/") or path)
        new_folder, new_name, existing = self.parent(new_base, new_path.rstrip("/") or new_path)
        if node is None:
            raise WasiError(abi.ENOENT)
        self._changeable(folder)
        self._changeable(new_folder)
        if node is existing:
            return
        if isinstance(node, Folder):
            above: Folder = new_folder
            while above.parent is not above:
                if above is node:
                    raise WasiError(abi.EINVAL)
                above = above.parent
        if existing is not None:
            if isinstance(node, Folder) != isinstance(existing, Folder):
                raise WasiError(abi.EISDIR if isinstance(existing, Folder) else abi.ENOTDIR)
            if isinstance(existing, Folder) and existing.entries:
                raise WasiError(abi.ENOTEMPTY)
            self._drop(new_folder, new_name)
        del folder.entries[name]
        new_folder.entries[new_name] = node
        if isinstance(node, Folder):
            node.move(new_folder)
        folder.touch()
        new_folder.touch()

    # -- content ---------------------------------------------------------------------------------

    def write(self, file: File, offset: int, data: bytes) -> int:
        """Writes what there is room for, and fails only when that is nothing."""
        room = file.size + self.quota.bytes_left
        data = data[: max(0, room - offset)]
        if not data:
            raise WasiError(abi.ENOSPC)
        end = offset + len(data)
        if end > file.size:
            self.resize(file, end)
        file.data[offset:end] = data
        file.touch()
        return len(data)

    def resize(self, file: File, size: int) -> None:
        grown = size - file.size
        if grown > 0:
            self.quota.take_bytes(grown)
            file.data.extend(bytes(grown))
        else:
            del file.data[size:]
            self.quota.give_back(-grown)
        file.touch()

    def opened(self, node: Node) -> None:
        node.opened += 1

    def closed(self, node: Node) -> None:
        node.opened -= 1
        self._free(node)

    def _changeable(self, folder: Folder) -> None:
        if folder.frozen:
            raise WasiError(abi.EROFS)
        if folder.links == 0:  # removed while it was open
            raise WasiError(abi.ENOENT)

    def _enter(self, folder: Folder, name: str, node: Node) -> None:
        if len(os.fsencode(name)) > MAX_NAME:
            raise WasiError(abi.ENAMETOOLONG)
        folder.entries[name] = node
        node.links += 1
        folder.touch()

    def _drop(self, folder: Folder, name: str) -> None:
        node = folder.entries.pop(name)
        node.links -= 1
        self.quota.files_left += 1
        folder.touch()
        self._free(node)

    def _free(self, node: Node) -> None:
        """A file's bytes are free when no name and no descriptor is left."""
        if isinstance(node, File) and node.links == 0 and node.opened == 0:
            self.quota.give_back(node.size)
            node.data = bytearray()
        elif isinstance(node, HostFile) and node.opened == 0:
            node.close()
