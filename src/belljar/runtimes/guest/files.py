"""The host's questions about the files of a kept sandbox, answered from inside.

Paths are absolute below /workspace, /data/output, /tmp and /data/input (which is read only), or
relative to /workspace. No link is followed on the way, and nothing here waits or takes long: what
could is done in slices, and the host asks on with the `handle` it was given.

    stat        {path} → {entry}
    list        {path, limit} or {handle, limit} → {entries, end, handle}: one folder, by name
    mkdir       {path, exist_ok} → {}: with the folders on the way
    remove      {path, recursive} or {handle} → {more, handle}
    move        {path, to, replace} or {handle} → {more, handle}
    read_open   {path, bytes} → {handle, size, bytes, end}: the first bytes come along
    read        {handle, offset, bytes} → {bytes, end}: they precede the answer, as FROM frames
    write_open  {path, mode, append, exclusive} → {handle}: TO frames with that number follow
    write_state {handle} → {written}, or what went wrong
    write_close {handle} → {written, size}, or what went wrong
    changes     {path, depth} or {handle} → {changes, more, partial, handle}
    close       {handle} → {}: gives up; a new file that was not closed by write_close goes away

An entry is [name, kind, size, bytes on disk, time of the last change in ns, permissions], a change
["created", "changed" or "removed", path below, entry or null]. A handle is the id of the ask that
opened it.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from . import sweep, ways
from .contents import Reading, Writing, open_to_read, open_to_write
from .looking import ANSWER_BYTES, MOST_DEPTH, Listing, Watch, cost
from .ways import Refused as Refused
from .ways import Way, refused

MOST_HANDLES = 64
MOST_WATCHES = 8
MOST_READ = 256 * 1024
MOST_PAGE = 2000
SLICE_S = 0.01
"""How long one answer may keep everybody else waiting."""
FILE_STREAM = 3

PutOut = Callable[[int, int, bytes], None]
_T = TypeVar("_T")


class _Work:
    """Something that takes many steps."""

    def __init__(self, steps: Iterator[None]) -> None:
        self.steps = steps

    def close(self) -> None:
        self.steps = iter(())


class Files:
    def __init__(self, roots: dict[str, int], *, owner: tuple[int, int] | None = None) -> None:
        """`roots`: folder descriptors by name. `owner`: who the code is, where that is not we."""
        self._roots = roots
        self._owner = owner
        self._held: dict[int, Reading | Writing | _Work | Listing | Watch] = {}

    def ask(self, ask: dict, put_out: PutOut) -> dict:  # type: ignore[type-arg]
        """Answers, or raises Refused. `put_out(ask id, 3, data)` takes content that was read."""
        op = ask.get("op")
        try:
            if op == "read":
                return self._read(ask, put_out)
            if op == "read_open":
                return self._read_open(ask, put_out)
            answer = _ANSWERS.get(op)  # type: ignore[arg-type]
            if answer is None:
                raise Refused("unsupported", "this sandbox does not know how to do that")
            return answer(self, ask)
        except OSError as error:
            raise refused(error, "files") from None
        except (KeyError, TypeError, ValueError, OverflowError):
            raise Refused("unsupported", "a question that is not well formed") from None

    def content(self, channel: int, data: bytes) -> None:
        """The next piece of a file that is being written; an empty one ends it."""
        writing = self._held.get(channel)
        if not isinstance(writing, Writing):
            return
        if data:
            writing.write(data)
        else:
            writing.ended = True

    # -- asking ----------------------------------------------------------------------------------

    def _stat(self, ask: dict) -> dict:  # type: ignore[type-arg]
        way = self._find(ask["path"])
        name = way.names[-1] if way.names else way.prefix.rpartition("/")[2].encode()
        return {"entry": ways.row(name, way.status())}

    def _list(self, ask: dict) -> dict:  # type: ignore[type-arg]
        limit = _number(ask, "limit", MOST_PAGE)
        handle = ask.get("handle")
        if handle is None:
            handle = self._room(ask)
            self._held[handle] = Listing(self._find(ask["path"]))
        listing = self._get(handle, Listing)
        rows: list = []  # type: ignore[type-arg]
        try:
            _drive(listing.steps(rows, limit))
        except OSError:
            self._drop(handle)
            raise
        if listing.ended:
            self._drop(handle)
        return {"entries": rows, "end": listing.ended, "handle": handle}

    def _changes(self, ask: dict) -> dict:  # type: ignore[type-arg]
        handle = ask.get("handle")
        if handle is None:
            if sum(isinstance(held, Watch) for held in self._held.values()) >= MOST_WATCHES:
                raise Refused("too_many", "at most %d watches at once" % MOST_WATCHES)
            handle = self._room(ask)
            self._held[handle] = Watch(self._find(ask["path"]), _number(ask, "depth", MOST_DEPTH))
        watch = self._get(handle, Watch)
        done = _drive(watch.steps())
        changes = []
        room = ANSWER_BYTES
        while watch.found and room > 0:
            what, path, entry = watch.found.popleft()
            changes.append([what, path.decode("utf-8", "surrogateescape"), entry])
            room -= 2 * cost(path)
        more = bool(watch.found) or not done
        return {"changes": changes, "more": more, "partial": watch.partial, "handle": handle}

    # -- changing --------------------------------------------------------------------------------

    def _mkdir(self, ask: dict) -> dict:  # type: ignore[type-arg]
        way = self._find(ask["path"]).writable()
        if ask["exist_ok"]:
            os.close(way.make_folders(len(way.names), self._owner))
            return {}
        here = way.below().make_folders(len(way.names) - 1, self._owner)
        try:
            ways.make_folder(here, way.names[-1], self._owner)
        except OSError as error:
            raise refused(error, way.shown()) from None
        finally:
            os.close(here)
        return {}

    def _remove(self, ask: dict) -> dict:  # type: ignore[type-arg]
        if ask.get("handle") is not None:
            return self._work_on(ask["handle"])
        way = self._find(ask["path"]).writable().below()
        handle = self._room(ask)
        folder = stat.S_ISDIR(way.status().st_mode)
        parent, name = way.parent(), way.names[-1]
        if ask["recursive"]:
            self._held[handle] = _Work(sweep.remove(parent, name, way.shown()))
            return self._work_on(handle)
        try:
            if folder:
                os.rmdir(name, dir_fd=parent)
            else:
                os.unlink(name, dir_fd=parent)
        except OSError as error:
            raise refused(error, way.shown()) from None
        finally:
            os.close(parent)
        return {"more": False, "handle": handle}

    def _move(self, ask: dict) -> dict:  # type: ignore[type-arg]
        if ask.get("handle") is not None:
            return self._work_on(ask["handle"])
        source = self._find(ask["path"]).writable().below()
        target = self._find(ask["to"]).writable().below()
        handle = self._room(ask)
        source.status()
        here = source.parent()
        try:
            there = target.make_folders(len(target.names) - 1, self._owner)
        except BaseException:
            os.close(here)
            raise
        steps = sweep.move(
            here,
            source.names[-1],
            there,
            target.names[-1],
            replace=bool(ask["replace"]),
            where=target.shown(),
            unique=handle,
        )
        self._held[handle] = _Work(steps)
        return self._work_on(handle)

    def _work_on(self, handle: int) -> dict:  # type: ignore[type-arg]
        work = self._get(handle, _Work)
        done = True
        try:
            done = _drive(work.steps)
        finally:
            if done:
                self._drop(handle)
        return {"more": not done, "handle": handle}

    # -- content ---------------------------------------------------------------------------------

    def _read_open(self, ask: dict, put_out: PutOut) -> dict:  # type: ignore[type-arg]
        way = self._find(ask["path"])
        count = _number(ask, "bytes", MOST_READ)
        handle = self._room(ask)
        file = open_to_read(way)
        self._held[handle] = Reading(file)
        size = os.fstat(file).st_size
        data = os.pread(file, count, 0)
        end = len(data) >= size
        if end:
            self._drop(handle)
        put_out(handle, FILE_STREAM, data)
        return {"handle": handle, "size": size, "bytes": len(data), "end": end}

    def _read(self, ask: dict, put_out: PutOut) -> dict:  # type: ignore[type-arg]
        reading = self._get(ask["handle"], Reading)
        count, offset = _number(ask, "bytes", MOST_READ), _number(ask, "offset", 1 << 62)
        data = os.pread(reading.file, count, offset)
        end = len(data) < count or offset + len(data) >= os.fstat(reading.file).st_size
        put_out(ask["id"], FILE_STREAM, data)
        return {"bytes": len(data), "end": end}

    def _write_open(self, ask: dict) -> dict:  # type: ignore[type-arg]
        way = self._find(ask["path"]).writable().below()
        append, exclusive = bool(ask["append"]), bool(ask["exclusive"])
        mode = None if ask["mode"] is None else _number(ask, "mode", 0o777)
        handle = self._room(ask)
        parent = way.make_folders(len(way.names) - 1, self._owner)
        try:
            file, new = open_to_write(parent, way, append=append, exclusive=exclusive)
            writing = Writing(file, way.shown(), (parent, way.names[-1]) if new else None)
        except BaseException as error:
            os.close(parent)
            if isinstance(error, OSError):
                raise refused(error, way.shown()) from None
            raise
        if not new:
            os.close(parent)
        self._held[handle] = writing
        try:
            if new and self._owner:
                os.fchown(file, *self._owner)
            if mode is not None:
                os.fchmod(file, mode)
            if not new and not append:
                os.ftruncate(file, 0)
        except OSError as error:
            self._drop(handle)
            raise refused(error, way.shown()) from None
        return {"handle": handle}

    def _write_state(self, ask: dict) -> dict:  # type: ignore[type-arg]
        writing = self._get(ask["handle"], Writing)
        writing.check()
        return {"written": writing.written}

    def _write_close(self, ask: dict) -> dict:  # type: ignore[type-arg]
        writing = self._get(ask["handle"], Writing)
        try:
            return writing.finish()
        finally:
            self._drop(ask["handle"])

    def _close(self, ask: dict) -> dict:  # type: ignore[type-arg]
        if ask["handle"] in self._held:
            self._drop(ask["handle"])
        return {}

    # -- what is held ----------------------------------------------------------------------------

    def _find(self, path: object) -> Way:
        return ways.find(self._roots, path)

    def _room(self, ask: dict) -> int:  # type: ignore[type-arg]
        """The handle of what is about to be opened."""
        handle = ask["id"]
        if type(handle) is not int or handle in self._held:
            raise Refused("unsupported", "an id that is in use")
        if len(self._held) >= MOST_HANDLES:
            raise Refused("too_many", "at most %d files and folders at once" % MOST_HANDLES)
        return handle

    def _get(self, handle: object, kind: type[_T]) -> _T:
        held = self._held.get(handle) if type(handle) is int else None
        if not isinstance(held, kind):
            raise Refused("closed", "there is nothing open with that handle")
        return held

    def _drop(self, handle: int) -> None:
        self._held.pop(handle).close()


_ANSWERS: dict[str, Callable[[Files, dict], dict]] = {  # type: ignore[type-arg]
    "stat": Files._stat,
    "list": Files._list,
    "changes": Files._changes,
    "mkdir": Files._mkdir,
    "remove": Files._remove,
    "move": Files._move,
    "write_open": Files._write_open,
    "write_state": Files._write_state,
    "write_close": Files._write_close,
    "close": Files._close,
}


def _drive(steps: Iterator[None]) -> bool:
    """True when it is done, False when its time is up."""
    until = time.monotonic() + SLICE_S
    return all(time.monotonic() < until for _ in steps)


def _number(ask: dict, field: str, most: int) -> int:  # type: ignore[type-arg]
    number = ask[field]
    if type(number) is not int or not 0 <= number <= most:
        raise Refused("unsupported", "%s is a number up to %d" % (field, most))
    return number
