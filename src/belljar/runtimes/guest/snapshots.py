"""The files of a kept sandbox as they were before a run, to go back to or to give to a branch.

Each file's content is kept once, in a folder that only the agent can reach, on the same quota as
the files themselves. A file that has not changed since the last look is not read again.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from . import places

MOST_ENTRIES = 20_000
_PLACES = ("workspace", "output", "tmp", "shm")
_COPY = 1 << 30

Entry = list[Any]
"""[kind, mode, blob or link target, stamp]: plain, because a manifest travels to a branch."""


class Snapshots:
    def __init__(self, roots: dict[str, int]) -> None:
        self._roots = {name: roots[name] for name in _PLACES if name in roots}
        self._store = roots.get("store", -1)
        self._taken: dict[int, dict[str, Entry]] = {}
        self._latest: dict[str, Entry] = {}
        self._used: dict[str, int] = {}
        self._next = 0

    @property
    def possible(self) -> bool:
        return self._store >= 0

    def take(self, run: int) -> bool:
        """Before a run. False when there is no room: then there is no way back to here either."""
        if self._store < 0:
            return True
        try:
            manifest = self._look()
        except OSError:
            return False
        self._taken[run] = manifest
        for entry in manifest.values():
            self._count(entry, 1)
        return True

    def manifest(self, run: int | None) -> dict[str, Entry]:
        """Of a checkpoint, or of this moment."""
        if self._store < 0:
            return {}
        return self._look() if run is None else self._taken[run]

    def drop(self, run: int) -> None:
        for entry in self._taken.pop(run, {}).values():
            self._count(entry, -1)
        self._forget_unused()

    def restore(self, run: int) -> bool:
        """Puts every file back; False where files cannot be kept."""
        manifest = self._taken.pop(run, None)
        if manifest is None:
            return False
        now = self._look()
        for path in sorted(now, reverse=True):
            if path not in manifest or now[path][:3] != manifest[path][:3]:
                _remove(self._roots, path, folder=now[path][0] == "d")
        self.lay_out({p: e for p, e in manifest.items() if now.get(p, [None])[:3] != e[:3]})
        for entry in manifest.values():
            self._count(entry, -1)
        return True

    def lay_out(self, manifest: dict[str, Entry], store: int = -1) -> None:
        """Makes the files of a manifest, folders before what is in them."""
        source = self._store if store < 0 else store
        for path in sorted(manifest):
            kind, mode, what, _ = manifest[path]
            root, _, relative = path.partition("/")
            if root in self._roots:
                _make(self._roots[root], relative, kind, mode, what, source)

    # -- looking ---------------------------------------------------------------------------------

    def _look(self) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        for name, root in self._roots.items():
            self._walk(os.dup(root), name, found)
        self._latest = found
        return found

    def _walk(self, folder: int, path: str, found: dict[str, Entry], depth: int = 0) -> None:
        try:
            with os.scandir(folder) as entries:
                names = sorted(entry.name for entry in entries)
            for name in names:
                if len(found) >= MOST_ENTRIES or depth > places.MAX_DEPTH:
                    raise OSError("too many files for a checkpoint")
                self._entry(folder, name, path + "/" + name, found, depth)
        finally:
            os.close(folder)

    def _entry(
        self, folder: int, name: str, path: str, found: dict[str, Entry], depth: int
    ) -> None:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISDIR(status.st_mode):
            found[path] = ["d", mode, "", None]
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            self._walk(os.open(name, flags, dir_fd=folder), path, found, depth + 1)
        elif stat.S_ISLNK(status.st_mode):
            found[path] = ["l", 0, os.readlink(name, dir_fd=folder), None]
        elif stat.S_ISREG(status.st_mode):
            stamp = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
            before = self._latest.get(path)
            known = before is not None and before[0] == "f" and before[3] == stamp
            blob = before[2] if known and before else self._copy(folder, name)
            found[path] = ["f", mode, blob, stamp]

    def _copy(self, folder: int, name: str) -> str:
        self._next += 1
        blob = str(self._next)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        source = os.open(name, flags, dir_fd=folder)
        try:
            target = os.open(blob, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self._store)
            try:
                _pour(source, target)
            except OSError:
                os.unlink(blob, dir_fd=self._store)
                raise
            finally:
                os.close(target)
        finally:
            os.close(source)
        return blob

    def _count(self, entry: Entry, by: int) -> None:
        if entry[0] == "f":
            self._used[entry[2]] = self._used.get(entry[2], 0) + by

    def _forget_unused(self) -> None:
        latest = {entry[2] for entry in self._latest.values() if entry[0] == "f"}
        for blob in [b for b, uses in self._used.items() if uses <= 0 and b not in latest]:
            del self._used[blob]
            try:
                os.unlink(blob, dir_fd=self._store)
            except OSError:
                pass


def _pour(source: int, target: int) -> None:
    while os.sendfile(target, source, None, _COPY):
        pass


def _make(root: int, relative: str, kind: str, mode: int, what: str, store: int) -> None:
    folder, _, name = relative.rpartition("/")
    here = places.descend(root, folder)
    try:
        if kind == "d":
            try:
                os.mkdir(name, mode, dir_fd=here)
            except FileExistsError:
                pass
        elif kind == "l":
            os.symlink(what, name, dir_fd=here)
        else:
            source = os.open(what, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=store)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            target = os.open(name, flags, mode, dir_fd=here)
            try:
                _pour(source, target)
                os.fchmod(target, mode)
            finally:
                os.close(source)
                os.close(target)
    finally:
        os.close(here)


def _remove(roots: dict[str, int], path: str, *, folder: bool) -> None:
    root, _, relative = path.partition("/")
    parent, _, name = relative.rpartition("/")
    try:
        here = places.descend(roots[root], parent)
    except OSError:
        return
    try:
        if folder:
            os.rmdir(name, dir_fd=here)
        else:
            os.unlink(name, dir_fd=here)
    except OSError:
        pass  # a folder that is not empty holds what stays
    finally:
        os.close(here)
