"""What `Sandbox(inputs=…)` names on the host: looked at before anything starts, mounted where the
wall can do that, and copied through the agent where it cannot.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from belljar import threads
from belljar.conversation import Conversation, Refusal
from belljar.engines.base import CannotMount, Doors, Engine, Ground, Mount, MountingEngine, Wall
from belljar.errors import EngineError, InvalidRequest, LimitExceeded
from belljar.model import Limits
from belljar.policy.quote import quote, size

INPUT = "/data/input"
MOST = 32
"""How many paths one sandbox may have mounted; a folder counts as one."""
MOST_NAME_BYTES = 16 * 1024
PIECE = 1 << 20
_FOREIGN = ("/proc", "/sys", "/dev")

Path_ = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file or a folder of the host that is to be an input."""

    name: str
    mount: Mount


def look(paths: Mapping[str, Path_]) -> tuple[Source, ...]:
    """Reads no content. Links are followed now and never again: they are the caller's own."""
    if len(paths) > MOST:
        raise InvalidRequest(
            f"inputs: {len(paths)} paths are more than {MOST}", hint="put them into one folder"
        )
    if sum(len(name.encode()) for name in paths) > MOST_NAME_BYTES:
        raise InvalidRequest("inputs: the names of all paths together are too long")
    return tuple(_look(name, path) for name, path in paths.items())


def _look(name: str, given: Path_) -> Source:
    field = f"inputs[{quote(name)}]"
    try:
        path = Path(os.path.realpath(os.fspath(given), strict=True))
        status = path.lstat()
        folder = stat.S_ISDIR(status.st_mode)
        if not os.access(path, os.R_OK | os.X_OK if folder else os.R_OK):
            raise PermissionError(13, "it cannot be read")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InvalidRequest(
            f"{field}: {quote(os.fspath(given))}: {why}",
            hint="a text or a Path is a path on this machine; give content as bytes",
        ) from None
    if not folder and not stat.S_ISREG(status.st_mode):
        raise InvalidRequest(f"{field}: {quote(str(path))} is neither a file nor a folder")
    if folder:
        _check_folder(field, path)
    mount = Mount(
        source=path,
        identity=(status.st_dev, status.st_ino),
        folder=folder,
        place=f"{INPUT}/{name}",
    )
    return Source(name=name, mount=mount)


def _check_folder(field: str, top: Path) -> None:
    """A socket or a FIFO can be spoken to through a read-only mount, and then whoever is at its
    other end hears the code."""
    for foreign in _FOREIGN:
        with contextlib.suppress(OSError):
            if top.stat().st_dev == os.stat(foreign).st_dev != os.stat("/").st_dev:
                raise InvalidRequest(f"{field}: {quote(str(top))} is the kernel's, not a folder")
    for entry in _walk(top):
        if not (entry.is_file(follow_symlinks=False) or entry.is_symlink()):
            raise InvalidRequest(
                f"{field}: {quote(entry.path)} in it is a socket, a FIFO or a device",
                hint="code could speak to whoever is behind it; give the files one by one",
            )


def _walk(top: Path) -> Iterator[os.DirEntry[str]]:
    """Everything below it that is not a folder. What cannot be looked into is left out."""
    left = [os.fspath(top)]
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                    else:
                        yield entry
        except PermissionError:
            continue


async def walled(
    engine: Engine,
    ground: Ground,
    limits: Limits,
    sources: Sequence[Source],
    others: Sequence[Mount],
    *,
    doors: Doors | None = None,
    whose: str,
) -> tuple[Wall, tuple[Source, ...]]:
    """A wall, and the inputs that could not be mounted behind it. `others` must be mounted, else
    CannotMount. `doors`: where the engine has them. `whose`: the tenant for whom files are read."""
    why = f"the engine {engine.name!r} cannot mount them"
    copied = () if engine.capabilities.mounts else tuple(sources)
    while True:
        if copied:
            await threads.FILES.do_for(whose, _check_room, copied, limits, why=why)
        mounts = [*(source.mount for source in sources if source not in copied), *others]
        if not mounts and not doors:
            return await engine.create(ground, limits, waiting=False), copied
        try:
            making = cast(MountingEngine, engine)
            wall = await making.create_with(ground, limits, mounts, doors=doors)
            return wall, copied
        except CannotMount as cannot:
            if cannot.mount in others:
                raise
            why = cannot.why
            copied += tuple(one for one in sources if one.mount == cannot.mount)


# -- copying -------------------------------------------------------------------------------------


def _check_room(sources: Iterable[Source], limits: Limits, *, why: str) -> None:
    """Before anything starts, for what has to be copied."""
    total = 0
    for path, name in (one for source in sources for one in _files(source)):
        with _open(path, name) as file:
            total += os.fstat(file.fileno()).st_size
    if total > limits.disk_bytes:
        raise LimitExceeded(
            f"inputs: they have to be copied ({why}) and take {size(total)}, more than the"
            f" sandbox's disk of {size(limits.disk_bytes)}",
            hint="ask for more disk_bytes",
        )


async def copy(talk: Conversation, sources: Iterable[Source], *, whose: str) -> None:
    """Through the agent, which alone can write to /data/input; a piece at a time."""
    for source in sources:
        for path, name in await threads.FILES.do_for(whose, _all_files, source):
            opened = threads.FILES.take_for(whose, lambda file: file.close(), _open, path, name)
            with await opened as file:
                await place(talk, name, file, whose=whose)


async def place(talk: Conversation, name: str, content: bytes | BinaryIO, *, whose: str) -> None:
    """A file below /data/input."""
    if talk.wall.inputs is not None:
        # To its end: the folder is removed with the wall.
        await threads.FILES.finish_for(whose, _write, talk.wall.inputs, name, content)
        return
    channel = talk.next_id()
    try:
        await talk.ask("place", ask_id=channel, path=name)
        if isinstance(content, bytes):
            if content:
                await talk.send(channel, content)
        else:
            while piece := await threads.FILES.do_for(whose, content.read, PIECE):
                await talk.send(channel, piece)
        await talk.send(channel, b"")
        await talk.ask("placed", channel=channel)
    except Refusal as refusal:
        raise InvalidRequest(f"inputs: {name}: {refusal}", hint="raise disk_bytes?") from None


def _write(folder: Path, name: str, content: bytes | BinaryIO) -> None:
    """Into a folder that is the sandbox's own and only the host can write to. An entry that is
    already there is an error, never followed."""
    target = folder / name
    try:
        for parent in reversed(target.relative_to(folder).parents[:-1]):
            (folder / parent).mkdir(exist_ok=True)
            (folder / parent).chmod(0o755)  # whatever our umask is
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(target, flags, 0o644), "wb") as file:
            os.fchmod(file.fileno(), 0o644)
            if isinstance(content, bytes):
                file.write(content)
            else:
                shutil.copyfileobj(content, file, PIECE)
    except OSError as error:
        raise EngineError(
            f"inputs: {quote(name)}: {error.strerror}", hint="is the host's disk full?"
        ) from error


def _all_files(source: Source) -> list[tuple[str, str]]:
    return list(_files(source))


def _files(source: Source) -> Iterator[tuple[str, str]]:
    """(path, name inside) of each file. Links in a folder are left out: where they lead to is not
    what was given."""
    top = source.mount.source
    if not source.mount.folder:
        yield os.fspath(top), source.name
        return
    for entry in _walk(top):
        if entry.is_file(follow_symlinks=False):
            yield entry.path, f"{source.name}/{os.path.relpath(entry.path, top)}"


def _open(path: str, name: str) -> BinaryIO:
    """Not through a link, and without waiting for anybody: it may have been replaced."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.fdopen(os.open(path, flags), "rb", buffering=0)
    except OSError as error:
        raise InvalidRequest(f"inputs: {quote(name)}: {error.strerror}") from None
