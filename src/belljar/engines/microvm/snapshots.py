"""Snapshots on disk and in memory. What one depends on is in its name."""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from belljar.engines.base import Ground
from belljar.settings import Settings

from . import contents
from .image import Image
from .machine import Machine

FORMAT = 1
KEPT = 12
"""Snapshots that stay on disk; the ones not used for longest go first."""
STALE_S = 3600.0
"""Nobody takes an hour for these; a younger one may be at work."""
_PAGE = mmap.PAGESIZE
_PIECE = 256 * _PAGE


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    ram: int
    """The file with its memory, open for reading. Machines map it privately, and get a descriptor
    that the launcher opened."""
    state: bytes

    def close(self) -> None:
        os.close(self.ram)


def key(machine: Machine, image: Image, ground: Ground) -> str:
    """Changes with everything that a snapshot depends on."""
    program = os.stat(machine.program)
    parts = [
        FORMAT,
        machine.accelerator,
        machine.memory_bytes,
        machine.cpus,
        [os.path.realpath(machine.program), program.st_size, program.st_mtime_ns],
        image.digest,
        [(entry.path, entry.content.hex()) for entry in contents.guest()],
        _processor(),
        ground.key,
        ground.mount,
        ground.folder.name if ground.folder else "",
        ground.package_path,
        ground.preload,
        ground.rehearsal,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def _processor() -> list[str]:
    """An emulated guest sees this machine's clock, any other all of the processor."""
    wanted = ("model name", "stepping", "microcode", "flags")
    with open("/proc/cpuinfo") as file:
        return [
            line
            for line in file.read().partition("\n\n")[0].splitlines()
            if line.startswith(wanted)
        ]


def new_ram(size: int) -> int:
    """The memory of an original, which is left over when it ends."""
    ram = os.memfd_create("belljar-ram", os.MFD_CLOEXEC)
    os.ftruncate(ram, size)
    return ram


def home_of(settings: Settings) -> Path:
    """Where everything is that machines start from: images, disks, snapshots."""
    return settings.home.absolute() / "microvm"


def folder_of(settings: Settings) -> Path:
    return home_of(settings) / "snapshots"


def save(settings: Settings, name: str, *, ram: int, state: bytes) -> None:
    """Whole or not at all. The memory holds nobody's data yet, but is nobody else's business."""
    root = folder_of(settings)
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=root, prefix="saving-") as scratch:
        new = Path(scratch, "snapshot")
        new.mkdir(mode=0o700)
        # Readable to the user that QEMU is, once it is handed over; the folder is closed to others.
        with open(os.open(new / "ram", os.O_RDWR | os.O_CREAT, 0o444), "wb") as file:
            _copy_pages(ram, file.fileno())
        with open(os.open(new / "state", os.O_RDWR | os.O_CREAT, 0o600), "wb") as file:
            file.write(state)
        try:
            new.rename(root / name)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # another Belljar was faster
                raise
    _prune(root)


def load(settings: Settings, name: str) -> Snapshot | None:
    folder = folder_of(settings) / name
    try:
        state = (folder / "state").read_bytes()
        ram = os.open(folder / "ram", os.O_RDONLY | os.O_CLOEXEC)
        os.utime(folder)
    except OSError:
        return None
    return Snapshot(ram=ram, state=state)


def _copy_pages(source: int, target: int) -> None:
    """Only pages with something in them: most of a new machine's memory is empty."""
    size = os.fstat(source).st_size
    os.ftruncate(target, size)
    nothing, empty = bytes(_PAGE), bytes(_PIECE)
    with mmap.mmap(source, size, prot=mmap.PROT_READ) as pages:
        for first, last in _extents(source):
            for start in range(first, last, _PIECE):
                piece = pages[start : min(start + _PIECE, last)]
                if piece == empty[: len(piece)]:
                    continue
                for offset in range(0, len(piece), _PAGE):
                    page = piece[offset : offset + _PAGE]
                    if page != nothing:
                        os.pwrite(target, page, start + offset)


def _extents(file: int) -> list[tuple[int, int]]:
    """(first, last) of the parts that are not holes."""
    found: list[tuple[int, int]] = []
    position = 0
    while True:
        try:
            first = os.lseek(file, position, os.SEEK_DATA)
        except OSError:
            return found
        position = os.lseek(file, first, os.SEEK_HOLE)
        found.append((first, position))


def _prune(root: Path) -> None:
    def age(folder: Path) -> float:
        try:
            return folder.stat().st_mtime
        except OSError:
            return 0.0

    for folder in sorted(root.iterdir(), key=age, reverse=True)[KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(settings: Settings) -> None:
    """Removes what a Belljar left that died while it made a disk, an image or a snapshot."""
    home = home_of(settings)
    for pattern in ("building-*", "disks/making-*", "snapshots/saving-*"):
        for folder in home.glob(pattern):
            try:
                old = time.time() - folder.stat().st_mtime > STALE_S
            except OSError:
                continue
            if old:
                shutil.rmtree(folder, ignore_errors=True)
