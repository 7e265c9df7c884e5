"""The standard streams of an interpreter that lives from run to run.

Code may close them, put others in their place or point their descriptors elsewhere, and the next
run starts with good ones again. The objects stay the same as long as they work, because others
(log handlers) keep them.
"""

from __future__ import annotations

import fcntl
import io
import os
import sys
from typing import TextIO

_NAMES = ("stdin", "stdout", "stderr")
_OUT_OF_THE_WAY = 64


class Streams:
    def __init__(self) -> None:
        self._objects: dict[str, TextIO] = {}
        self._kept: dict[int, int] = {}
        self._identities: dict[int, tuple[int, int]] = {}
        for name in _NAMES:
            stream = getattr(sys, name)
            if isinstance(stream, io.TextIOWrapper) and _works(stream):
                if name == "stdout":
                    stream.reconfigure(line_buffering=True)  # somebody may be watching
                self._objects[name] = stream
        self.begin()

    def begin(self) -> None:
        """Between runs only the agent changes what is behind the descriptors: it is right."""
        for descriptor in range(3):
            try:
                identity = _identity(descriptor)
            except OSError:
                continue  # closed by a thread that a run left behind
            if identity != self._identities.get(descriptor):
                self._keep(descriptor, identity)
                if descriptor == 0:  # what was read ahead and not used belongs to the past
                    self._objects.pop("stdin", None)
        self.restore()

    def _keep(self, descriptor: int, identity: tuple[int, int]) -> None:
        before = self._kept.get(descriptor)
        self._kept[descriptor] = _copy(descriptor)
        self._identities[descriptor] = identity
        if before is not None:
            try:
                os.close(before)
            except OSError:
                pass

    def restore(self) -> None:
        for descriptor, name in enumerate(_NAMES):
            self._restore(descriptor)
            stream = self._objects.get(name)
            if stream is None or not _works(stream):
                stream = self._objects[name] = _open(descriptor, name)
            setattr(sys, name, stream)
            setattr(sys, "__%s__" % name, stream)

    def end(self) -> None:
        """After a run, whose code may have done anything to the descriptors."""
        self.flush()
        for descriptor in range(3):
            self._restore(descriptor)

    def _restore(self, descriptor: int) -> None:
        try:
            right = _identity(descriptor) == self._identities[descriptor]
        except OSError:
            right = False
        try:
            if not right:
                os.dup2(self._kept[descriptor], descriptor)
            os.set_blocking(descriptor, True)  # event loops leave it off
        except OSError:
            pass  # all descriptors were closed: nothing is left to put back

    def flush(self) -> None:
        """Both what the code sees as its output now, and what it had at first."""
        for name in ("stdout", "stderr"):
            own, current = self._objects.get(name), getattr(sys, name, None)
            for stream in (own,) if own is current else (current, own):
                try:
                    if stream is not None:
                        stream.flush()
                except Exception:
                    pass

    def complain(self, text: str) -> None:
        """To standard error, whatever the code has done to it."""
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except Exception:
            self.restore()
            try:
                sys.stderr.write(text)
                sys.stderr.flush()
            except Exception:
                pass


def _copy(descriptor: int) -> int:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY)
    except OSError:  # a limit below that
        return os.dup(descriptor)


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _works(stream: TextIO) -> bool:
    try:
        return not stream.closed
    except ValueError:  # detached
        return False


def _open(descriptor: int, name: str) -> TextIO:
    raw = io.FileIO(descriptor, "r" if descriptor == 0 else "w", closefd=False)
    raw.name = "<%s>" % name
    stream = io.TextIOWrapper(
        io.BufferedReader(raw) if descriptor == 0 else io.BufferedWriter(raw),
        encoding="utf-8",
        errors="backslashreplace" if name == "stderr" else "surrogateescape",
        newline=None if descriptor == 0 else "\n",
        line_buffering=descriptor != 0,
    )
    stream.mode = "r" if descriptor == 0 else "w"  # type: ignore[misc]
    return stream
