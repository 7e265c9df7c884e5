"""Folders that a stranger filled: walked without recursion, since a wheel may be as deep as paths
are long, and without following a link."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

PAGE_BYTES = 4096


def entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Everything below, folders before what is in them. What vanishes meanwhile is left out."""
    waiting = [str(folder)]
    while waiting:
        try:
            found = list(os.scandir(waiting.pop()))
        except FileNotFoundError:
            continue
        for entry in found:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)


def on_disk(entry: os.DirEntry[str]) -> int:
    """In whole pages and at least one: a million empty files are not free. What has two names
    counts by half for each."""
    try:
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return 0
    if stat.S_ISDIR(found.st_mode):
        return PAGE_BYTES
    return max(1, -(-found.st_size // PAGE_BYTES)) * PAGE_BYTES // max(1, found.st_nlink)


def delete(path: Path) -> None:
    """All of it, also what was made read-only; what is not there is fine."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    folders = [str(path)]
    os.chmod(path, stat.S_IRWXU)
    for entry in entries(path):
        if entry.is_dir(follow_symlinks=False):
            os.chmod(entry.path, stat.S_IRWXU)
            folders.append(entry.path)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(entry.path)
    for folder in reversed(folders):
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(folder)
