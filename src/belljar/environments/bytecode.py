"""A layer's bytecode: made from its sources by processes that can do nothing else, written by us.

A source that is no Python, or not this one, stays as it is; so does one that is too large, takes
too long or makes its compiler fall over. Importing it is slower then, and right.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import socket
import stat
import struct
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path

from belljar.environments import trees
from belljar.environments.stopping import LOOK_S
from belljar.environments.watched import Bounds
from belljar.model import MIB
from belljar.runtimes.interpreter import base_interpreter

MOST_SOURCE_BYTES = 4 * MIB
MOST_CODE_BYTES = 64 * MIB
SOURCE_S = 20.0
"""How long one may take."""
MOST_LOST = 20
"""Compilers that a layer may make fall over before the rest of it stays uncompiled."""
_WORKERS = 4
_REQUEST, _ANSWER = struct.Struct(">II"), struct.Struct(">I")
_PYC_HEAD = struct.Struct("<4sIII")
_NO_PLACE = (errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EEXIST)
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
# A program, as uv is one: nothing of it is loaded here.
_PROGRAM = """\
import sys
sys.path[0] = {root!r}
from belljar.engines.linux import source_compiler
source_compiler.live({descriptor})
"""


def compile_sources(files: Path, bounds: Bounds) -> None:
    """Of a layer that holds plain files and folders only."""
    sources = [
        entry.path
        for entry in trees.entries(files)
        if entry.name.endswith(".py") and entry.is_file(follow_symlinks=False)
    ]
    if not sources:
        return
    work = _Work(sources)
    count = min(_WORKERS, os.cpu_count() or 1, len(sources))
    with ThreadPoolExecutor(count, thread_name_prefix="belljar-bytecode") as pool:
        waiting: set[Future[None]] = {pool.submit(_compile_some, files, work) for _ in range(count)}
        try:
            while waiting:
                done, waiting = wait(waiting, LOOK_S)
                for future in done:
                    future.result()
                bounds.check()
        finally:
            work.stop()


class _Work:
    """What is still to do, shared by the threads."""

    def __init__(self, sources: Sequence[str]) -> None:
        self._sources = iter(sources)
        self._lock = threading.Lock()
        self._lost = 0
        self._stopped = False
        self._compilers: set[_Compiler] = set()

    def next(self) -> str | None:
        with self._lock:
            return None if self._stopped else next(self._sources, None)

    def compiler(self) -> _Compiler:
        made = _Compiler()
        with self._lock:
            self._compilers.add(made)
            if self._stopped:
                made.kill()
        return made

    def lose(self) -> None:
        with self._lock:
            self._lost += 1
            self._stopped = self._stopped or self._lost >= MOST_LOST

    def stop(self) -> None:
        """Nobody waits for an answer any more."""
        with self._lock:
            self._stopped = True
            for compiler in self._compilers:
                compiler.kill()


def _compile_some(files: Path, work: _Work) -> None:
    with ExitStack() as stack:
        compiler: _Compiler | None = None
        while source := work.next():
            if compiler is None:
                compiler = work.compiler()
                stack.callback(compiler.close)
            with open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_SOURCE_BYTES:
                    continue
                text = file.read(MOST_SOURCE_BYTES)
            try:
                code = compiler.ask(os.path.relpath(source, files), text)
            except (OSError, ValueError):  # it fell over, or took too long
                compiler.kill()
                compiler = None
                work.lose()
                continue
            if code:
                _write(source, found, code)


def _write(source: str, found: os.stat_result, code: bytes) -> None:
    """As an import looks for it: by the date and size of its source."""
    target = importlib.util.cache_from_source(source, optimization="")
    date, size = int(found.st_mtime) & 0xFFFF_FFFF, found.st_size & 0xFFFF_FFFF
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).unlink(missing_ok=True)
        with open(target, "xb") as file:
            file.write(_PYC_HEAD.pack(importlib.util.MAGIC_NUMBER, 0, date, size) + code)
    except OSError as error:
        if error.errno not in _NO_PLACE:  # something of the wheel's own lies there
            raise


class _Compiler:
    """One process; see source_compiler."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        with theirs:
            program = _PROGRAM.format(root=_PACKAGE_ROOT, descriptor=theirs.fileno())
            self._process = subprocess.Popen(
                [base_interpreter(), "-SsEB", "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"LANG": "C.UTF-8"},
                cwd="/",
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        self._ours.settimeout(SOURCE_S)

    def ask(self, name: str, source: bytes) -> bytes:
        title = os.fsencode(name)
        self._ours.sendall(_REQUEST.pack(len(title), len(source)) + title + source)
        (length,) = _ANSWER.unpack(b"".join(self._take(_ANSWER.size)))
        if length > MOST_CODE_BYTES:
            raise ValueError("more code than a source can have")
        return b"".join(self._take(length))

    def _take(self, count: int) -> Iterator[bytes]:
        while count:
            data = self._ours.recv(min(count, MIB))
            if not data:
                raise ConnectionResetError
            count -= len(data)
            yield data

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._ours.close()
        self._process.kill()
        self._process.wait()
