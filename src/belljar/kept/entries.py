"""What a sandbox says about its files, strictly read: text and numbers within bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NoReturn, cast, get_args

from belljar.conversation import Refusal
from belljar.errors import SandboxFileError, SandboxFileExists, SandboxFileMissing

Kind = Literal["file", "folder", "link", "fifo", "socket", "device"]
Happened = Literal["created", "changed", "removed"]
_KINDS: tuple[str, ...] = get_args(Kind)
_HAPPENED: tuple[str, ...] = get_args(Happened)
MOST_BYTES = 1 << 62
_MOST_NS = 1 << 96

_HINTS = {
    "full": "disk_bytes and disk_files bound a sandbox; remove something, or ask for more",
    "link": "links are the code's to make, so they are never followed from outside",
    "read_only": "write to /workspace or /data/output",
    "not_empty": "recursive=True removes what is in it, too",
    "too_many": "close or finish some of them first",
}
_ERRORS: dict[str, type[SandboxFileError]] = {
    "missing": SandboxFileMissing,
    "exists": SandboxFileExists,
}
_REFUSALS = frozenset(
    {
        "missing", "exists", "not_a_file", "not_a_folder", "not_empty", "link", "name", "read_only",
        "forbidden", "full", "too_many", "busy", "elsewhere", "closed", "unsupported",
    }
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FileInfo:
    """An entry of a sandbox's folder. Everything in it is the guest's word."""

    path: str
    """Absolute inside the sandbox. A name that is not UTF-8 holds lone surrogates, as Python's own
    `os.listdir` would give it: fit to be handed back, not to be printed (see `printable`). The
    guest chose it: never make a path of the host out of it unchecked."""
    kind: Kind
    size: int
    disk_bytes: int
    """What it really takes: a sparse file may claim terabytes and take nothing."""
    mtime_ns: int
    mode: int
    """The permission bits."""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def printable(self) -> str:
        """The path with everything escaped that could not be shown, or would play tricks."""
        return printable(self.path)

    @property
    def is_file(self) -> bool:
        return self.kind == "file"

    @property
    def is_folder(self) -> bool:
        return self.kind == "folder"


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """Something that happened below a watched path."""

    what: Happened
    path: str
    info: FileInfo | None
    """As it was when it was seen; None when it was removed."""


def printable(text: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def garbled(what: str) -> NoReturn:
    """The agent never says such a thing; somebody else spoke in its place."""
    raise SandboxFileError(f"the sandbox sent {what}", kind="garbled")


def translated(refusal: Refusal) -> SandboxFileError:
    kind = refusal.kind if refusal.kind in _REFUSALS else "os"
    message = printable(str(refusal)[:500])
    return _ERRORS.get(kind, SandboxFileError)(message, hint=_HINTS.get(kind, ""), kind=kind)


def whole(value: object, what: str, *, most: int = MOST_BYTES) -> int:
    if type(value) is not int or not 0 <= value <= most:
        garbled(f"{what} that is no number")
    return value


def yes(value: object, what: str) -> bool:
    if type(value) is not bool:
        garbled(f"{what} that is neither yes nor no")
    return value


def absolute(path: str) -> str:
    """As the agent reads a path."""
    if path == ".":
        return "/workspace"
    return path.rstrip("/") if path.startswith("/") else "/workspace/" + path.rstrip("/")


def name_of(row: object) -> str:
    name = row[0] if isinstance(row, list) and row else None
    if not isinstance(name, str) or not _is_name(name):
        garbled("a name that no file can have")
    return name


def info(row: object, path: str) -> FileInfo:
    """`row`: [name, kind, size, bytes on disk, time, permissions]."""
    if not isinstance(row, list) or len(row) != 6 or row[1] not in _KINDS:
        garbled("an entry that is none")
    _, kind, size, disk_bytes, mtime_ns, mode = row
    if type(mtime_ns) is not int or not -_MOST_NS < mtime_ns < _MOST_NS:
        garbled("a time that is no number")
    return FileInfo(
        path=path,
        kind=cast(Kind, kind),
        size=whole(size, "a size"),
        disk_bytes=whole(disk_bytes, "a size on disk"),
        mtime_ns=mtime_ns,
        mode=whole(mode, "permissions", most=0o7777),
    )


def change(told: object, folder: str) -> FileChange:
    if not isinstance(told, list) or len(told) != 3 or told[0] not in _HAPPENED:
        garbled("a change that is none")
    what, below, row = told
    if not isinstance(below, str) or not all(_is_name(name) for name in below.split("/") if below):
        garbled("a path that no file can have")
    path = f"{folder}/{below}" if below else folder
    return FileChange(
        what=cast(Happened, what), path=path, info=None if what == "removed" else info(row, path)
    )


def key(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _is_name(name: str) -> bool:
    try:
        size = len(key(name))
    except UnicodeEncodeError:
        return False
    return 0 < size <= 255 and "/" not in name and "\0" not in name and name not in (".", "..")
