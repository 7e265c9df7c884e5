"""Folders as they are and as they change, looked at in short steps and with bounded memory.

Files in a sandbox cannot be watched by the kernel for us (another wall may not have it, and the
code could use up the few watches there are), so a watch compares what it sees now and then.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterator

from .ways import FOLDER, Refused, Way, refused, row

WINDOW = 20_000
"""Names of one folder that are held at once; a larger folder is read again for the next ones."""
ANSWER_BYTES = 256 * 1024
MOST_WATCHED = 20_000
MOST_DEPTH = 64
_OFTEN = 64
"""Names after which a look into a folder pauses."""


def cost(name: bytes) -> int:
    """About what an entry takes in an answer: JSON writes a byte that is not ASCII as six."""
    return 100 + (len(name) if name.isascii() else 6 * len(name))


def open_to_list(way: Way) -> int:
    here = way.folder()
    try:
        return os.open(b".", FOLDER, dir_fd=here)
    except OSError as error:
        raise refused(error, way.shown()) from None
    finally:
        os.close(here)


class Listing:
    """A folder's entries in the order of their names, a page at a time."""

    def __init__(self, way: Way) -> None:
        self._folder = open_to_list(way)
        self._after = b""
        self._window: deque[bytes] = deque()
        self._last = False
        self._reading: Iterator[None] | None = None
        self.ended = False

    def close(self) -> None:
        self._reading = None
        os.close(self._folder)

    def steps(self, rows: list, limit: int) -> Iterator[None]:  # type: ignore[type-arg]
        """Fills `rows`; pauses between entries, ends when the page or the folder is full."""
        room = ANSWER_BYTES
        while len(rows) < limit and room > 0:
            if not self._window:
                if self._last:
                    self.ended = True
                    return
                if self._reading is None:
                    self._reading = self._read()
                for _ in self._reading:
                    yield
                self._reading = None
                continue
            name = self._window.popleft()
            self._after = name
            try:
                status = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
            except OSError:  # it went away meanwhile
                continue
            rows.append(row(name, status))
            room -= cost(name)
            yield
        self.ended = self._last and not self._window

    def _read(self) -> Iterator[None]:
        """The next names in order, at most WINDOW of them."""
        found: list[bytes] = []
        complete = True
        bound = None
        # A description of our own for each look: its position in the folder is nobody else's.
        with os.scandir(self._folder) as entries:
            for number, entry in enumerate(entries):
                name = os.fsencode(entry.name)
                if name > self._after and (bound is None or name < bound):
                    found.append(name)
                if len(found) >= 2 * WINDOW:
                    found.sort()
                    del found[WINDOW:]
                    bound = found[-1]
                    complete = False
                if number % _OFTEN == 0:
                    yield
        found.sort()
        self._last = complete and len(found) <= WINDOW
        self._window.extend(found[:WINDOW])


class Watch:
    """What was created, changed and removed below a path since the last time it was asked."""

    def __init__(self, way: Way, depth: int) -> None:
        self._way = way
        self._depth = min(depth, MOST_DEPTH)
        self._seen: dict[bytes, int] | None = None
        self._look: Iterator[None] | None = None
        self.found: deque[tuple[str, bytes, list | None]] = deque()  # type: ignore[type-arg]
        """What happened, where, and for what is still there its row."""
        self.partial = False
        """There was more than is watched."""

    def close(self) -> None:
        self._look = None

    def steps(self) -> Iterator[None]:
        """One whole look, unless there is something left to tell from the last one."""
        if self._look is None:
            if self.found:
                return
            self._look = self._compare()
        for _ in self._look:
            yield
        self._look = None

    def _compare(self) -> Iterator[None]:
        before, now = self._seen, {}
        left = MOST_WATCHED
        partial = False
        for path, status in self._entries():
            yield
            if status is None:
                partial = True
                continue
            left -= 1
            if left < 0:
                partial = True
                break
            stamp = now[path] = _stamp(status)
            if before is not None and before.get(path) != stamp:
                what = "changed" if path in before else "created"
                self.found.append((what, path, row(path, status)))
        for path in before or ():
            # What fell off the end of a look that is not whole may still be there.
            if path not in now and not (partial and self._there(path)):
                self.found.append(("removed", path, None))
            yield
        self._seen = now
        self.partial = partial

    def _there(self, path: bytes) -> bool:
        way = self._way
        names = way.names + (path.split(b"/") if path else [])
        try:
            Way(way.root, way.place, way.prefix, names).status()
            return True
        except Refused:
            return False

    def _entries(self) -> Iterator[tuple[bytes, os.stat_result | None]]:
        """Every entry below; no status: what could not be looked into."""
        try:
            status = self._way.status()
        except Refused:
            return
        if not stat.S_ISDIR(status.st_mode):
            yield b"", status
            return
        stack: list[tuple[bytes, int]] = [(b"", 0)]
        while stack:
            relative, depth = stack.pop()
            names = self._way.names + (relative.split(b"/") if relative else [])
            way = Way(self._way.root, self._way.place, self._way.prefix, names)
            try:
                folder = open_to_list(way)
            except Refused:
                yield relative, None
                continue
            try:
                for name, status in _statuses(folder):
                    path = relative + b"/" + name if relative else name
                    yield path, status
                    if stat.S_ISDIR(status.st_mode):
                        if depth + 1 < self._depth:
                            stack.append((path, depth + 1))
                        elif self._depth == MOST_DEPTH:
                            yield path, None
            finally:
                os.close(folder)


def _statuses(folder: int) -> Iterator[tuple[bytes, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            name = os.fsencode(entry.name)
            try:
                yield name, os.stat(name, dir_fd=folder, follow_symlinks=False)
            except OSError:
                continue


def _stamp(status: os.stat_result) -> int:
    """A number instead of five saves most of a watch's memory."""
    if stat.S_ISDIR(status.st_mode):  # its time changes with every entry, which is told anyway
        return hash((status.st_mode, status.st_ino))
    return hash(
        (status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    )
