"""Archives as the kernel unpacks them at boot: cpio, "newc" format."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_MAGIC = b"070701"
_END = "TRAILER!!!"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file, folder or link; everything in the archive belongs to root."""

    path: str
    """Relative, without a leading slash."""
    mode: int
    """With its type, as in stat."""
    content: bytes = b""
    """Of a link: where it leads."""
    time_s: int = 0


def folder(path: str, mode: int = 0o755) -> Entry:
    return Entry(path=path, mode=stat.S_IFDIR | mode)


def link(path: str, to: str) -> Entry:
    return Entry(path=path, mode=stat.S_IFLNK | 0o777, content=to.encode())


def text(path: str, content: str, mode: int = 0o644) -> Entry:
    return Entry(path=path, mode=stat.S_IFREG | mode, content=content.encode())


def copy(path: str, source: Path) -> Entry:
    """A file of the host: its content and date, executable or not, and nothing else of it."""
    status = source.stat()
    mode = 0o755 if status.st_mode & 0o100 else 0o644
    return Entry(
        path=path,
        mode=stat.S_IFREG | mode,
        content=source.read_bytes(),
        time_s=int(status.st_mtime),
    )


def write(file: BinaryIO, entries: Iterable[Entry]) -> None:
    """One archive, with the folders that its entries need. Several may follow one another."""
    made: set[str] = set()
    number = 0
    for entry in entries:
        for parent in reversed(Path(entry.path).parents):
            name = str(parent)
            if name != "." and name not in made:
                made.add(name)
                number += 1
                _record(file, number, folder(name))
        if stat.S_ISDIR(entry.mode):
            if entry.path in made:
                continue
            made.add(entry.path)
        number += 1
        _record(file, number, entry)
    _record(file, 0, Entry(path=_END, mode=0))


def _record(file: BinaryIO, number: int, entry: Entry) -> None:
    name = entry.path.encode() + b"\0"
    fields = (
        number,
        entry.mode,
        0,  # uid
        0,  # gid
        1,  # links
        entry.time_s,
        len(entry.content),
        0,
        0,  # device it lies on
        0,
        0,  # device it is
        len(name),
        0,  # checksum, not used
    )
    head = _MAGIC + b"".join(b"%08x" % field for field in fields) + name
    file.write(head + bytes(-len(head) % 4))
    file.write(entry.content + bytes(-len(entry.content) % 4))
