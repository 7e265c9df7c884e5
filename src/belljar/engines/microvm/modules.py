"""Kernel modules: which files they are, and which others each of them needs first."""

from __future__ import annotations

import gzip
import lzma
import re
import subprocess
from pathlib import Path

from belljar.errors import EngineUnavailable

WANTED = ("virtio_mmio", "virtio_console", "virtio_blk", "erofs", "squashfs")
"""The bus, the stream to the agent, the environment's disk, and its file systems."""
_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")


def in_order(folder: Path, wanted: tuple[str, ...] = WANTED) -> list[tuple[str, bytes]]:
    """(name, content) of the wanted modules and all they need, each after what it needs.

    `folder`: a /lib/modules/<release>. What is not there is taken to be part of the kernel if the
    kernel says so."""
    files = {_name(path): path for path in folder.rglob("*.ko*")}
    builtin = _builtin(folder)
    found: dict[str, bytes] = {}

    def take(name: str) -> None:
        if name in found or name in builtin:
            return
        if name not in files:
            raise EngineUnavailable(
                f"the kernel module {name} is not in {folder}",
                hint="take a kernel with virtio, as linux-image-cloud-amd64 has it",
            )
        content = _unpacked(files[name])
        match = _DEPENDS.search(content)
        for needed in match[1].decode().split(",") if match else ():
            if needed:
                take(needed.replace("-", "_"))
        found[name] = content

    for name in wanted:
        if name == "squashfs" and name not in files:
            continue  # only one of the two file systems is needed
        take(name)
    return list(found.items())


def _name(path: Path) -> str:
    return path.name.partition(".")[0].replace("-", "_")


def _builtin(folder: Path) -> set[str]:
    try:
        lines = (folder / "modules.builtin").read_text().splitlines()
    except OSError:
        return set()
    return {_name(Path(line)) for line in lines}


def _unpacked(path: Path) -> bytes:
    packed = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(packed)
    if path.suffix == ".gz":
        return gzip.decompress(packed)
    if path.suffix == ".zst":
        done = subprocess.run(["zstd", "-dcq"], input=packed, capture_output=True, check=True)
        return done.stdout
    return packed
