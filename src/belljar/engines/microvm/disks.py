"""An environment's folder as a read-only disk, made once and kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from belljar.errors import EngineError, EngineUnavailable
from belljar.settings import Settings

HINT = "on Debian and Ubuntu: apt-get install erofs-utils"


@dataclass(frozen=True, kw_only=True)
class Disk:
    path: Path
    file_system: str


def maker() -> str | None:
    """The program that makes them; either will do."""
    return shutil.which("mkfs.erofs") or shutil.which("mksquashfs")


def disk(folder: Path, settings: Settings) -> Disk:
    """Takes seconds the first time. `folder` is named after everything that is in it."""
    program = maker()
    if program is None:
        raise EngineUnavailable("neither mkfs.erofs nor mksquashfs is installed", hint=HINT)
    kind = "erofs" if program.endswith("mkfs.erofs") else "squashfs"
    root = settings.home.absolute() / "microvm" / "disks"
    found = Disk(path=root / f"{folder.name}.{kind}", file_system=kind)
    if found.path.is_file():
        return found
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=root, prefix="making-") as scratch:
        new = Path(scratch, "disk")
        done = subprocess.run(
            _command(program, kind, new, folder), capture_output=True, text=True, errors="replace"
        )
        if done.returncode:
            raise EngineError(
                f"the disk of {folder.name} could not be made: {done.stderr.strip()[-300:]}",
                hint="is there room in BELLJAR_HOME?",
            )
        os.chmod(new, 0o600)
        new.rename(found.path)
    return found


def _command(program: str, kind: str, target: Path, folder: Path) -> list[str]:
    """Nothing is compressed: an emulated guest would take long to undo it. Dates are kept, because
    Python takes a compiled file only if its source has the date it was compiled from."""
    if kind == "erofs":
        dates = ["-E", "force-inode-extended"]
        return [program, *dates, "--force-uid=0", "--force-gid=0", str(target), str(folder)]
    plain = ["-noI", "-noD", "-noF", "-noX", "-all-root", "-no-progress", "-quiet"]
    return [program, str(folder), str(target), *plain]
