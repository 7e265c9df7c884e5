"""Modules compiled ahead: once per module, wasmtime and kind of processor.

A compiled module is machine code that this machine executes with our privileges, so it is only
ever read from a file that nobody else could have written.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import stat
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from belljar.errors import EngineError

from .runtimes import Runtime

if TYPE_CHECKING:  # large: the host loads it only to compile, which is seldom
    import wasmtime

_STACK_BYTES = 2 << 20


def engine() -> wasmtime.Engine:
    """The one configuration for interpreters. No fuel and no epochs, which would slow every loop
    down: a sandbox is a process of its own and ends when that is killed."""
    import wasmtime

    config = wasmtime.Config()
    config.max_wasm_stack = _STACK_BYTES
    config.wasm_threads = False
    config.parallel_compilation = True
    return wasmtime.Engine(config)


def path_for(runtime: Runtime, folder: Path) -> Path:
    """Where the compiled form of an interpreter is, or will be."""
    facts = (runtime.integrity, version("wasmtime"), str(_STACK_BYTES), _processor())
    name = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:24]
    return folder / f"{runtime.name}-{runtime.version}-{name}.cwasm"


def compile_module(runtime: Runtime, folder: Path) -> Path:
    """The compiled interpreter, made unless it is there. Concurrent callers make it once."""
    target = path_for(runtime, folder)
    if trusted(target):
        return target
    with _lock(folder):
        if not trusted(target):
            import wasmtime

            source = str(folder / runtime.file_name)
            code = wasmtime.Module.from_file(engine(), source).serialize()
            descriptor, scratch = tempfile.mkstemp(dir=folder, prefix=".", suffix=".compiling")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(code)
                    file.flush()
                    os.fsync(file.fileno())
                os.rename(scratch, target)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(scratch)
                raise
    return target


def load(engine: wasmtime.Engine, path: str) -> wasmtime.Module:
    """Maps a compiled module into this process."""
    import wasmtime

    if not trusted(Path(path)):
        raise EngineError(
            f"{path} is missing, or others could have written it: it is not executed",
            hint="delete it; it is made anew",
        )
    return wasmtime.Module.deserialize_file(engine, path)


def trusted(path: Path) -> bool:
    """True if only we, or root, could have written the file and everything above it."""
    try:
        for place in (path, path.parent):
            status = place.lstat()
            if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o022:
                return False
            if stat.S_ISLNK(status.st_mode):
                return False
    except OSError:
        return False
    return True


def _processor() -> str:
    """Machine code for one processor may not run on another that shares the folder."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith(("flags", "Features")):
                return f"{platform.machine()} {line}"
    return platform.machine()


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
