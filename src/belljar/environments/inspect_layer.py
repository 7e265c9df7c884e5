"""What may be in a layer: plain files and folders, and nothing that a starting Python runs."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from belljar.environments import trees
from belljar.errors import PackageRefused
from belljar.model import MIB

# Read or imported by an interpreter when it starts, before anybody's code.
_STARTERS = frozenset({"sitecustomize", "usercustomize"})
_SUFFIXES = (".py", ".pyc", *EXTENSION_SUFFIXES)
_INSTALLERS_NOTES = ("direct_url.json", "uv_cache.json")
_INTERPRETER = b"#!/usr/bin/env python3\n"


def drop(files: Path) -> list[str]:
    """Takes away what acts by itself or hides a module of the standard library, which a folder on
    PYTHONPATH would do; packages that bring one (backports) work with Python's own. Says what."""
    dropped = []
    (files / ".lock").unlink(missing_ok=True)
    for item in sorted(files.iterdir()):
        module = _module(item)
        if item.name.endswith(".pth") or module in _STARTERS or module in sys.stdlib_module_names:
            dropped.append(item.name)
            trees.delete(item)
        elif item.name.endswith(".dist-info") and _is_folder(item):
            for name in _INSTALLERS_NOTES:  # they tell of the operator's index and folders
                (item / name).unlink(missing_ok=True)
    return dropped


def imports(files: Path) -> set[str]:
    """The top-level modules that can be imported from the folder."""
    return {
        module
        for item in files.iterdir()
        if (module := _module(item)).isidentifier() and (item.is_file() or _has_modules(item))
    }


def _module(item: Path) -> str:
    """The module that a file or folder is when it is imported, or nothing."""
    if _is_folder(item):
        return item.name
    # The longest suffix first: x.cpython-311-x86_64-linux-gnu.so also ends in .so.
    for suffix in sorted(_SUFFIXES, key=len, reverse=True):
        if item.name.endswith(suffix):
            return item.name.removesuffix(suffix)
    return ""


def _is_folder(item: Path) -> bool:
    return stat.S_ISDIR(item.lstat().st_mode)


def _has_modules(folder: Path) -> bool:
    return any(entry.name.endswith(_SUFFIXES) for entry in trees.entries(folder))


def mend_commands(folder: Path) -> None:
    """Console scripts start the host's interpreter by its path; inside it goes by its name."""
    if not folder.is_dir():
        return
    for command in list(folder.iterdir()):  # what is mended lies beside it for a while
        if not stat.S_ISREG(command.lstat().st_mode):
            continue
        with command.open("rb") as file:
            first = file.readline(4096)
            if not first.startswith(b"#!"):
                continue
            # A path too long for the kernel is written as a shell's trick of three lines.
            second = file.readline(8192) if first == b"#!/bin/sh\n" else b""
            if b"python" not in first and not second.startswith(b"'''exec' "):
                continue
            if second:
                file.readline(4096)
            # A piece at a time: a stranger decides how much there is.
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as mended:
                mended.write(_INTERPRETER)
                shutil.copyfileobj(file, mended, MIB)
        os.chmod(mended.name, 0o755)
        os.replace(mended.name, command)


def check(files: Path) -> int:
    """The bytes it takes. A link, a device, a second name of some file elsewhere: a wheel has no
    such thing, so whatever has one is refused, before anything in it is read."""
    taken = 0
    for entry in trees.entries(files):
        found = entry.stat(follow_symlinks=False)
        mode = found.st_mode
        if not stat.S_ISDIR(mode) and (not stat.S_ISREG(mode) or found.st_nlink != 1):
            name = os.path.relpath(entry.path, files)
            raise PackageRefused(f"packages: {name!r:.100} is not a plain file")
        taken += trees.on_disk(entry)
    return taken


def seal(files: Path) -> int:
    """Readable by the foreign user a sandbox runs as, writable by none. The bytes it takes."""
    taken = check(files)
    folders = [str(files)]
    for entry in trees.entries(files):
        if entry.is_dir(follow_symlinks=False):
            folders.append(entry.path)
        else:
            executable = entry.stat().st_mode & stat.S_IXUSR
            os.chmod(entry.path, 0o555 if executable else 0o444)
    for folder in folders:
        os.chmod(folder, 0o555)
    return taken
