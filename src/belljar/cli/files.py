"""Files on their way into a sandbox and out of it.

What comes out has names that hostile code chose, and goes to a folder in which an earlier run may
have left anything. So every name is checked, every folder on the way is opened without following
links, and a file appears by a rename, which replaces a link instead of writing through it.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from belljar.errors import InvalidRequest
from belljar.linux_only import open_flags
from belljar.model import OutputFile
from belljar.policy.names import check_names

if TYPE_CHECKING:
    from belljar.cli import windows_files

_FOLDER = open_flags("O_RDONLY", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC")
_NEW_FILE = open_flags("O_WRONLY", "O_CREAT", "O_EXCL", "O_NOFOLLOW", "O_CLOEXEC")


# -- in --------------------------------------------------------------------------------------------


def read(option: str, paths: Iterable[str]) -> dict[str, bytes]:
    """Each file under its own name, each folder with what is in it under the folder's name."""
    contents: dict[str, bytes] = {}
    for path in paths:
        for name, source in _sources(Path(path)):
            if name in contents:
                raise InvalidRequest(
                    f"{option}: two files are called {name!r}", hint="rename one of the two"
                )
            contents[name] = read_file(option, source)
    return contents


def read_file(option: str, path: str | Path, *, most: int = -1) -> bytes:
    try:
        # A pipe without a writer would make a plain open wait for ever.
        descriptor = os.open(path, open_flags("O_RDONLY", "O_CLOEXEC", "O_NONBLOCK"))
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InvalidRequest(f"{option}: {str(path)!r} is not a plain file")
            return file.read(most)
    except OSError as error:
        raise InvalidRequest(f"{option}: {str(path)!r}: {error.strerror}") from error


def _sources(path: Path) -> Iterator[tuple[str, Path]]:
    top = Path(os.path.abspath(path)).name
    if not path.is_dir():
        yield top, path
        return
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            source = Path(folder, name)
            if not source.is_symlink():  # it may lead anywhere, and would be read as this user
                yield Path(top, source.relative_to(path)).as_posix(), source


# -- out -------------------------------------------------------------------------------------------


def make_folder(option: str, folder: str) -> None:
    """Before the code runs: what it will have done must not be lost for want of a place."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(f"{option}: {folder!r}: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidRequest(f"{option}: {folder!r} cannot be written to")


def write(folder: str, files: Iterable[OutputFile]) -> list[str]:
    """Writes what a run produced below `folder`; returns a remark for each file that was not."""
    remarks: list[str] = []
    written: set[str] = set()
    os.makedirs(folder, exist_ok=True)
    place = _place(folder)
    with place:
        # Both places end in one folder; what was put into /data/output was meant to come out.
        for file in sorted(files, key=lambda item: not item.path.startswith("/data/output/")):
            try:
                if file.content is None:
                    raise InvalidRequest(file.skipped or "it was not brought back")
                check_names("name", [file.name])
                if file.name in written:
                    raise InvalidRequest("another file of that name is in /data/output")
                place.write(file.name, file.content)
                written.add(file.name)
            except InvalidRequest as error:
                remarks.append(f"{file.path!r} was not written: {error.message}")
            except OSError as error:
                remarks.append(f"{file.path!r} was not written: {error.strerror}")
    return remarks


def _place(folder: str) -> _Place | windows_files.Place:
    if sys.platform != "win32":
        return _Place(folder)
    from belljar.cli import windows_files

    return windows_files.Place(folder)


class _Place:
    """A folder to write into, kept by its descriptor."""

    def __init__(self, folder: str) -> None:
        flags = open_flags("O_RDONLY", "O_DIRECTORY", "O_CLOEXEC")
        self._top = os.open(folder, flags)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        os.close(self._top)

    def write(self, name: str, content: bytes) -> None:
        _write(self._top, name, content)


def _write(top: int, name: str, content: bytes) -> None:
    *folders, last = name.split("/")
    at = os.dup(top)
    try:
        for folder in folders:
            below = _enter(at, folder)
            os.close(at)
            at = below
        unfinished = f".belljar-{secrets.token_hex(8)}"
        descriptor = os.open(unfinished, _NEW_FILE, 0o666, dir_fd=at)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
            os.rename(unfinished, last, src_dir_fd=at, dst_dir_fd=at)
        except BaseException:
            os.unlink(unfinished, dir_fd=at)
            raise
    finally:
        os.close(at)


def _enter(at: int, folder: str) -> int:
    try:
        os.mkdir(folder, dir_fd=at)
    except FileExistsError:
        pass
    return os.open(folder, _FOLDER, dir_fd=at)
