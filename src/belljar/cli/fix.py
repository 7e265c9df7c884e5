"""`belljar doctor --fix`: files of the system's configuration, each shown before it is written."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from belljar.engines.jail.remedies import Obstacle, Remedy
from belljar.errors import InvalidRequest, Unavailable

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

Look = Callable[[], Obstacle | None]


def fix(look: Look, *, yes: bool) -> None:
    """Until `look` finds nothing more, or something that is not mended."""
    if not yes and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidRequest(
            "--fix asks before it writes, and there is nobody to ask",
            hint="use a terminal, or add --yes",
        )
    obstacle = look()
    if not obstacle:
        print("Nothing that stops sandboxes here can be mended by a file.")
        if os.geteuid() == 0 and "SUDO_UID" not in os.environ:
            print("That is true of root's sandboxes. For another user's, run it as that user.")
        print()
    mended: set[str] = set()
    while obstacle and obstacle.name not in mended:
        print(f"{obstacle.what}.\n")
        if not _mend(obstacle, look, yes=yes):
            return
        mended.add(obstacle.name)
        obstacle = look()


def _mend(obstacle: Obstacle, look: Look, *, yes: bool) -> bool:
    """With the first remedy that is agreed to and helps. One that does not help is taken back."""
    for remedy in obstacle.remedies:
        before = _file(remedy.path)
        _show(remedy, replaces=before is not None)
        if yes and remedy.coarse:
            print("--yes does not agree to this: belljar doctor --fix asks, in a terminal.\n")
            continue
        if not yes and not _agrees("Write this file?"):
            print()
            continue
        _apply(remedy, before)
        left = look()
        if left is None or left.name != obstacle.name:
            print(f"Done: {remedy.path}\n")
            return True
        if said := _take_back(remedy, before, loaded=True):
            raise Unavailable(f"{remedy.what} did not help", hint=said)
        print(f"That did not help, so {remedy.path} is as it was.\n")
    print(f"Left as it is: {obstacle.what}.\n")
    return False


def _show(remedy: Remedy, *, replaces: bool) -> None:
    until = "also after a reboot" if remedy.lasts else "but perhaps only until the next boot"
    print(f"{remedy.what[0].upper()}{remedy.what[1:]} would mend it, {until}.")
    print(f"{remedy.consequence}\n")
    replaced = " (replaces the file that is there)" if replaces else ""
    print(f"  {remedy.path}{replaced}:")
    for line in remedy.content.splitlines():
        print(f"    {line}" if line else "")
    print(f"  and then: {shlex.join(_as_root(remedy.load))}\n", flush=True)


def _agrees(question: str) -> bool:
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


# -- writing ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _File:
    content: bytes
    mode: int
    uid: int
    gid: int


def _file(path: str) -> _File | None:
    """What is there, to be put back if need be. Anything but a plain file is left alone."""
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            raise Unavailable(f"{path} is not a plain file", hint="move it away to have it written")
        content = Path(path).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(f"what is there could not be put back: {error}") from error
    return _File(content, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)


def _apply(remedy: Remedy, before: _File | None) -> None:
    """Writes the file and loads it, or takes it back and raises."""
    for tool in (remedy.load[0], "install", *(() if os.geteuid() == 0 else ("sudo",))):
        if not shutil.which(tool, path=_PATH):
            raise Unavailable(
                f"{tool} is not installed, so nothing was written",
                hint=f"have an administrator write {remedy.path} as shown above, and load it",
            )
    try:
        _write(remedy.path, _File(remedy.content.encode(), 0o644, 0, 0))
        _run(remedy.load)
    except Unavailable as error:
        left = _take_back(remedy, before, loaded=False)
        raise Unavailable(error.message, hint=left or f"{remedy.path} is as it was") from error
    except BaseException:  # somebody interrupts
        _take_back(remedy, before, loaded=False)
        raise


def _take_back(remedy: Remedy, before: _File | None, *, loaded: bool) -> str:
    """Returns what could not be taken back, if anything."""
    left = []
    if loaded or _file(remedy.path) != before:
        try:
            _run(remedy.unload)
        except Unavailable as error:
            if loaded:
                left.append(f"what it set is still in force ({error.message})")
        try:
            if before is None:
                _run(("rm", "-f", remedy.path))
            else:
                _write(remedy.path, before)
        except Unavailable as error:
            left.append(f"{remedy.path} could not be taken back ({error.message})")
    return "; ".join(left)


def _write(path: str, file: _File) -> None:
    owner = ("-o", str(file.uid), "-g", str(file.gid))
    _run(("install", "-D", "-m", f"{file.mode:o}", *owner, "/dev/stdin", path), file.content)


def _as_root(command: Sequence[str]) -> list[str]:
    if os.geteuid() == 0:
        return list(command)
    # Without a terminal nobody can type a password: then it fails at once.
    return ["sudo", *(() if sys.stdin.isatty() else ("-n",)), *command]


def _run(command: Sequence[str], content: bytes | None = None) -> None:
    words = _as_root(command)
    done = subprocess.run(
        words,
        input=content,
        stdin=subprocess.DEVNULL if content is None else None,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PATH": _PATH},
    )
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise Unavailable(f"{shlex.join(words)}: {said or f'it ended with {done.returncode}'}")
