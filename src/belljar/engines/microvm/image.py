"""`belljar image build --microvm`: the kernel and the guest's root, made once per installation."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from belljar.errors import EngineUnavailable
from belljar.settings import Settings

from . import contents, cpio, modules

BUILDER_VERSION = 2
"""Raise it when the same machine would build another image."""
PACKAGE = "linux-image-cloud-amd64"
MANIFEST = "image.json"
_HINT = (
    f"on Debian and Ubuntu: apt-get update, then again; elsewhere give --kernel and --modules"
    f" of a kernel with virtio (the files of Debian's {PACKAGE} will do)"
)

Progress = Callable[[str, float | None], None]


@dataclass(frozen=True, kw_only=True)
class Image:
    folder: Path
    release: str
    """The guest's kernel."""
    digest: str

    @property
    def kernel(self) -> Path:
        return self.folder / "vmlinuz"

    @property
    def root(self) -> Path:
        return self.folder / "root.cpio"


def folder_of(settings: Settings) -> Path:
    tag = sys.implementation.cache_tag
    return settings.home.absolute() / "microvm" / f"image-{tag}-{BUILDER_VERSION}"


def locate(settings: Settings) -> Image | None:
    """The image, or None while it is not built."""
    folder = folder_of(settings)
    try:
        facts = json.loads((folder / MANIFEST).read_text())
        return Image(folder=folder, release=facts["release"], digest=facts["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def build(
    settings: Settings,
    *,
    kernel: Path | None = None,
    modules_folder: Path | None = None,
    progress: Progress | None = None,
) -> Image:
    """Builds it anew. `kernel` and `modules_folder` (a /lib/modules/<release>) belong together."""
    say = progress or (lambda what, done: None)
    target = folder_of(settings)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="building-") as scratch:
        new = Path(scratch, "image")
        new.mkdir(mode=0o755)
        say("looking for a kernel", None)
        if not kernel or not modules_folder:
            kernel, modules_folder = _installed() or _downloaded(Path(scratch, "package"))
        say("gathering the guest's root", None)
        shutil.copyfile(kernel, new / "vmlinuz")
        with open(new / "root.cpio", "wb") as file:
            cpio.write(file, contents.base())
            cpio.write(file, _modules(modules_folder))
        facts = {"release": modules_folder.name, "digest": _digest(new)}
        (new / MANIFEST).write_text(json.dumps(facts))
        os.chmod(scratch, 0o755)
        if target.exists():
            target.rename(Path(scratch, "old"))
        new.rename(target)
    for old in target.parent.glob(f"image-{sys.implementation.cache_tag}-*"):
        if old != target:
            shutil.rmtree(old, ignore_errors=True)
    found = locate(settings)
    assert found is not None
    return found


def _digest(folder: Path) -> str:
    import hashlib

    digest = hashlib.sha256()
    for name in ("vmlinuz", "root.cpio"):
        with open(folder / name, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _modules(folder: Path) -> Iterator[cpio.Entry]:
    for number, (name, content) in enumerate(modules.in_order(folder)):
        yield cpio.Entry(
            path=f"{contents.MODULES}/{number:02}-{name}.ko", mode=0o100600, content=content
        )


def _installed() -> tuple[Path, Path] | None:
    """A cloud kernel of this machine's distribution, if one lies in /boot."""
    for kernel in sorted(Path("/boot").glob("vmlinuz-*cloud*"), reverse=True):
        folder = Path("/lib/modules", kernel.name.removeprefix("vmlinuz-"))
        if folder.is_dir() and os.access(kernel, os.R_OK):
            return kernel, folder
    return None


def _downloaded(scratch: Path) -> tuple[Path, Path]:
    """Debian's package, fetched and unpacked, not installed."""
    scratch.mkdir(mode=0o777)
    try:
        depends = _run(["apt-cache", "depends", PACKAGE]).splitlines()
        names = [line.split()[1] for line in depends if line.strip().startswith("Depends: linux-")]
        if not names:
            raise EngineUnavailable(f"{PACKAGE} is unknown to apt here", hint=_HINT)
        _run(["apt-get", "download", names[0]], cwd=scratch)
        (package,) = scratch.glob("*.deb")
        _run(["dpkg-deb", "-x", str(package), str(scratch)])
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip()
        raise EngineUnavailable(f"no kernel could be fetched: {said[-300:]}", hint=_HINT) from error
    (kernel,) = (scratch / "boot").glob("vmlinuz-*")
    release = kernel.name.removeprefix("vmlinuz-")
    folder = next(p for p in scratch.glob(f"**/lib/modules/{release}") if p.is_dir())
    return kernel, folder


def _run(argv: list[str], *, cwd: Path | None = None) -> str:
    done = subprocess.run(argv, cwd=cwd, check=True, capture_output=True, text=True)
    return done.stdout
