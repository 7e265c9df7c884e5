"""The synchronous face of a sandbox's files."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterator
from types import TracebackType
from typing import Literal, Self, TypeVar, overload

from belljar.kept.content import Reader, Writer
from belljar.kept.entries import FileChange, FileInfo
from belljar.kept.files import DOWNLOAD_BYTES, MOST_DEPTH, MOST_ENTRIES, READ_BYTES, Files
from belljar.portal import Portal

T = TypeVar("T")


class SyncFiles:
    """As `kept.files.Files`, for callers without an event loop. Threads may share it."""

    def __init__(self, files: Files, portal: Portal) -> None:
        self._files = files
        self._portal = portal

    def stat(self, path: str) -> FileInfo:
        """What is at `path`; a link is described, not followed."""
        return self._portal.call(self._files.stat(path))

    def exists(self, path: str) -> bool:
        """Also true for a link that leads nowhere: the name is taken."""
        return self._portal.call(self._files.exists(path))

    def list(
        self, path: str = "/workspace", *, depth: int = 1, most_entries: int = MOST_ENTRIES
    ) -> list[FileInfo]:
        """The entries of a folder by name; with `depth` those of the folders in it, too."""
        return self._portal.call(self._files.list(path, depth=depth, most_entries=most_entries))

    def entries(self, path: str = "/workspace", *, depth: int = 1) -> Iterator[FileInfo]:
        """As `list`, one by one: a folder of any size costs a page of memory."""
        return _each(self._portal, self._files.entries(path, depth=depth))

    def watch(
        self, path: str = "/workspace", *, depth: int = MOST_DEPTH, interval_s: float = 0.25
    ) -> Iterator[FileChange]:
        """What happens below `path`, from the first step of the iteration on, until it is left."""
        return _each(self._portal, self._files.watch(path, depth=depth, interval_s=interval_s))

    def mkdir(self, path: str, *, exist_ok: bool = True) -> None:
        """Makes a folder, and those on the way to it."""
        self._portal.call(self._files.mkdir(path, exist_ok=exist_ok))

    def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Removes a file, a link or an empty folder; with `recursive` whatever is in it."""
        self._portal.call(self._files.remove(path, recursive=recursive, missing_ok=missing_ok))

    def move(self, path: str, to: str, *, replace: bool = False) -> None:
        """Gives a file or a folder another path; folders on the way are made."""
        self._portal.call(self._files.move(path, to, replace=replace))

    def read(self, path: str, *, most_bytes: int = READ_BYTES) -> bytes:
        """The whole file, if it has no more than `most_bytes`."""
        return self._portal.call(self._files.read(path, most_bytes=most_bytes))

    def read_text(self, path: str, *, most_bytes: int = READ_BYTES) -> str:
        """As UTF-8; what is not becomes U+FFFD."""
        return self._portal.call(self._files.read_text(path, most_bytes=most_bytes))

    def write(
        self, path: str, data: bytes | bytearray | memoryview | str, *, mode: int | None = None
    ) -> None:
        """Writes a file, making the folders on the way; text as UTF-8."""
        self._portal.call(self._files.write(path, data, mode=mode))

    @overload
    def open(self, path: str, mode: Literal["rb"] = "rb") -> SyncReader: ...

    @overload
    def open(
        self, path: str, mode: Literal["wb", "ab", "xb"], *, permissions: int | None = None
    ) -> SyncWriter: ...

    def open(
        self, path: str, mode: str = "rb", *, permissions: int | None = None
    ) -> SyncReader | SyncWriter:
        """To be used as `with files.open(path) as reader`, piece by piece."""
        opened = self._files.open(path, mode, permissions=permissions)  # type: ignore[call-overload]
        if isinstance(opened, Reader):
            return SyncReader(opened, self._portal)
        return SyncWriter(opened, self._portal)

    def upload(
        self, local_path: str | os.PathLike[str], path: str, *, mode: int | None = None
    ) -> int:
        """Copies a file of the host into the sandbox; returns its bytes."""
        return self._portal.call(self._files.upload(local_path, path, mode=mode))

    def download(
        self, path: str, local_path: str | os.PathLike[str], *, most_bytes: int = DOWNLOAD_BYTES
    ) -> int:
        """Copies a file of the sandbox to the host; returns its bytes."""
        return self._portal.call(self._files.download(path, local_path, most_bytes=most_bytes))


class _Opened:
    """A file that is open while its `with` lasts."""

    def __init__(self, opened: Reader | Writer, portal: Portal) -> None:
        self._opened = opened
        self._portal = portal

    def __enter__(self) -> Self:
        self._portal.call(self._opened.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal.call(self._opened.__aexit__(kind, error, trace))


class SyncReader(_Opened):
    """`with files.open(path) as reader: for piece in reader: …`"""

    def __init__(self, reader: Reader, portal: Portal) -> None:
        super().__init__(reader, portal)
        self._reader = reader

    @property
    def size(self) -> int:
        """When it was opened, by the guest's word."""
        return self._reader.size

    def __iter__(self) -> SyncReader:
        return self

    def __next__(self) -> bytes:
        piece = self._portal.call(self._reader.piece())
        if not piece:
            raise StopIteration
        return piece

    def read(self, most_bytes: int) -> bytes:
        """The next bytes, fewer only where the file ends."""
        return self._portal.call(self._reader.read(most_bytes))


class SyncWriter(_Opened):
    """`with files.open(path, "wb") as writer: writer.write(data)`"""

    def __init__(self, writer: Writer, portal: Portal) -> None:
        super().__init__(writer, portal)
        self._writer = writer

    @property
    def written(self) -> int:
        return self._writer.written

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Waits while the sandbox is slower; a full disk is told within the next few MB."""
        self._portal.call(self._writer.write(data))


def _each(portal: Portal, found: AsyncGenerator[T, None]) -> Iterator[T]:
    try:
        while True:
            try:
                item = portal.call(anext(found))
            except StopAsyncIteration:
                return
            yield item
    finally:
        # Without waiting: the collector may close us in the loop's own thread, or after its end.
        try:
            portal.submit(found.aclose())
        except RuntimeError:
            pass
