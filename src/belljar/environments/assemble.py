"""Building a package layer: whole or not at all, once, and with nothing in it that acts by itself.

The steps: resolve, install from wheels, drop what an interpreter would run or take for its own,
compile, make read-only, give it its name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from belljar.environments import (
    bytecode,
    inspect_layer,
    install,
    layers,
    stopping,
    trees,
    watched,
)
from belljar.environments.build import build, flush
from belljar.environments.catalogue import Environment
from belljar.environments.folders import Progress
from belljar.environments.layers import FILES, MANIFEST, Layer
from belljar.environments.resolve import Pin, resolve, unavailable
from belljar.environments.watched import Bounds
from belljar.errors import Busy, EnvironmentUnavailable, PackageRefused
from belljar.model import MIB, NOBODY, Caller
from belljar.runtimes.interpreter import base_interpreter
from belljar.settings import Settings

T = TypeVar("T")
LANES = 8
"""How many builders may work at once on one data directory; each holds the lock of a lane."""
_BUILDING = ".building"
_WAIT_S = 0.05
_SPARE_BYTES = 64 * MIB
"""For uv's notes on the index, which are deleted with its cache."""


def build_layer(
    requirements: Sequence[str],
    settings: Settings,
    *,
    environment: Environment,
    earlier: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    caller: Caller = NOBODY,
    refresh: bool = False,
) -> Layer:
    """As `layers.layer`, whatever `build_environments` says. `refresh` asks the index again."""
    layers.check(requirements, environment)
    report = progress or (lambda _text, _fraction: None)
    if environment.needs_build:
        build(environment, settings, progress=progress)
    versions = layers.provided(environment, settings)
    if versions is None:
        raise EnvironmentUnavailable(f"the environment {environment.name!r} is damaged")
    versions.update(earlier or {})
    request = layers.request_path(requirements, settings, environment, versions)
    try:
        request.parent.mkdir(parents=True, exist_ok=True)
        with _lane(request, settings, report) as bounds:
            found = layers.locate(requirements, settings, environment=environment, earlier=earlier)
            if found is None or refresh:
                pins = resolve(requirements, provided=versions, bounds=bounds, progress=report)
                found = _layer(pins, settings, caller, bounds=bounds, progress=report)
                facts = {
                    "requirements": list(requirements),
                    "environment": environment.name,
                    "layer": found.key,
                }
                _write(request, facts, bounds.scratch)
            return found
    except OSError as error:
        raise EnvironmentUnavailable(
            f"packages: {error}", hint=install.hint_for(str(error))
        ) from error


def remove(key: str, settings: Settings) -> bool:
    """Delete a layer, and what was noted of requests for it. Busy while a sandbox has it mounted:
    its files would be gone for that one, too."""
    top = layers.root(settings)
    with _sole_use(key, settings) as there:
        for path, asked in list(layers.requests(settings)):
            if asked.layer == key:
                path.unlink(missing_ok=True)
        if not there:
            return False
        # Renamed first, so that no one can find it half deleted.
        grave = Path(tempfile.mkdtemp(prefix=".removed.", suffix=_BUILDING, dir=top))
        (top / key).rename(grave / key)
        trees.delete(grave)
        return True


@contextlib.contextmanager
def _sole_use(key: str, settings: Settings) -> Iterator[bool]:
    """Nobody has leased the layer, and nobody will; False if there is none."""
    if layers.read(key, settings) is None:
        yield False
        return
    lock_fd = os.open(layers.root(settings) / key / MANIFEST, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        raise Busy(f"{key} is mounted in a sandbox", hint="close it first") from None
    finally:
        os.close(lock_fd)


@contextlib.contextmanager
def _lane(request: Path, settings: Settings, progress: Progress) -> Iterator[Bounds]:
    """Builders of the same set take turns. Builders of different sets have a lane each, so that
    nobody can choose a set that keeps another's builder waiting. A lane has one scratch folder at
    a time."""
    top = layers.root(settings)
    until = time.monotonic() + settings.package_build_s
    with contextlib.ExitStack() as stack:
        sets_fd = _opened(top / ".sets.lock", stack)
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, int(request.stem[:15], 16), 1, 0)
        _wait_for(lambda: _locked(fcntl.fcntl, sets_fd, fcntl.F_OFD_SETLK, asked), until, progress)
        lanes = [(number, _opened(top / f".lane{number}.lock", stack)) for number in range(LANES)]
        number, lock_fd = _wait_for(lambda: _free(lanes), until, progress)
        for leftover in top.glob(f".lane{number}.*{_BUILDING}"):
            trees.delete(leftover)
        scratch = Path(tempfile.mkdtemp(prefix=f".lane{number}.", suffix=_BUILDING, dir=top))
        try:
            yield Bounds(
                scratch=scratch,
                deadline=time.monotonic() + settings.package_build_s,
                seconds=settings.package_build_s,
                most_bytes=settings.package_bytes,
                spare_bytes=_SPARE_BYTES,
                lock_fds=(sets_fd, lock_fd),
            )
        finally:
            trees.delete(scratch)


def _opened(path: Path, stack: contextlib.ExitStack) -> int:
    # The file stays: were it deleted, two builders could each lock one of the same name.
    lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    stack.callback(os.close, lock_fd)
    return lock_fd


def _free(lanes: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    flags = fcntl.LOCK_EX | fcntl.LOCK_NB
    return next((lane for lane in lanes if _locked(fcntl.flock, lane[1], flags)), None)


def _locked(lock: Callable[..., object], *how: object) -> bool:
    try:
        lock(*how)
    except (BlockingIOError, PermissionError):  # POSIX allows both for a lock that others hold
        return False
    return True


def _wait_for(got: Callable[[], T | None], until: float, progress: Progress) -> T:
    told = False
    while not (found := got()):
        if not told:
            progress("waiting for another builder", None)
        told = True
        stopping.check()
        if time.monotonic() > until:
            raise EnvironmentUnavailable(
                "packages: other builders were busy for all of package_build_s",
                hint="try again later",
            )
        time.sleep(_WAIT_S)
    return found


def _layer(
    pins: Sequence[Pin],
    settings: Settings,
    caller: Caller,
    *,
    bounds: Bounds,
    progress: Progress,
) -> Layer:
    key = layers.digest([[pin.name, pin.version, pin.hashes] for pin in pins])
    if there := layers.read(key, settings):
        return there
    taken = sum(item.bytes for item in layers.installed(settings))
    if taken > settings.layers_bytes:
        raise EnvironmentUnavailable(
            f"packages: the sets that are built take {taken / MIB:.0f} MiB, and no more are built",
            hint="belljar env list shows them, belljar env remove deletes them; the operator's "
            "setting layers_bytes decides",
        )
    _check_share(caller, 0, settings)
    made = bounds.scratch / "layer"
    files = made / FILES
    files.mkdir(parents=True)
    made.chmod(0o755)
    if pins:
        _install(pins, files, bounds=bounds, progress=progress)
    progress("checking", None)
    inspect_layer.check(files)
    dropped = inspect_layer.drop(files)
    inspect_layer.mend_commands(files / "bin")
    imports = inspect_layer.imports(files)
    if pins:
        progress("compiling bytecode", None)
        bytecode.compile_sources(files, bounds)
    size_bytes = inspect_layer.seal(files)
    if size_bytes > settings.package_bytes:
        raise watched.too_large(settings.package_bytes)
    _check_share(caller, size_bytes, settings)
    facts = {
        "tenant": caller.tenant,
        "packages": {pin.name: pin.version for pin in pins},
        "bytes": size_bytes,
        "imports": sorted(imports),
        "dropped": dropped,
    }
    (made / MANIFEST).write_text(json.dumps(facts, indent=1) + "\n")
    flush(made)
    _give_name(made, layers.root(settings) / key, settings)
    found = layers.read(key, settings)
    if found is None:
        raise EnvironmentUnavailable("packages: what was just built is gone")
    return found


def _check_share(caller: Caller, more_bytes: int, settings: Settings) -> None:
    """A set counts for the tenant that it was built for; others use it at no cost."""
    if not caller.layers_bytes:
        return
    own = [item.bytes for item in layers.installed(settings) if item.tenant == caller.tenant]
    if sum(own) + more_bytes > caller.layers_bytes:
        raise PackageRefused(
            f"packages: this set would exceed the {caller.layers_bytes / MIB:.4g} MiB that sets "
            "built for this tenant may take",
            hint="use sets that are already built; the operator can raise the quota layers_bytes, "
            "or remove sets with belljar env remove",
        )


def _install(pins: Sequence[Pin], files: Path, *, bounds: Bounds, progress: Progress) -> None:
    exact = bounds.scratch / "exact.txt"
    exact.write_text("".join(f"{pin}\n" for pin in pins))
    command = [install.find_uv(), "pip", "install", "--requirements", exact.name, "--no-deps"]
    command += ["--require-hashes", "--only-binary", ":all:", "--target", str(files)]
    # Linked, for half the disk and no copying: the cache is this build's own and goes with it.
    command += ["--link-mode", "hardlink", "--no-progress", "--color", "never"]
    command += ["--python", base_interpreter()]
    try:
        watched.run(command, bounds, on_line=install.Downloads(progress, bytecode=False).see)
    except watched.Failed as failed:
        names = ", ".join(f"{pin.name} {pin.version}" for pin in pins)
        raise unavailable(f"cannot install {names}", str(failed)) from None
    trees.delete(bounds.scratch / "cache")
    bounds.check()


def _give_name(made: Path, path: Path, settings: Settings) -> None:
    try:
        made.rename(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if layers.read(path.name, settings) is None:  # damaged: somebody took parts of it away
            path.rename(made.parent / "damaged")
            made.rename(path)


def _write(path: Path, facts: object, scratch: Path) -> None:
    """Whole or not at all."""
    draft = scratch / "draft.json"
    with draft.open("w") as file:
        json.dump(facts, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
