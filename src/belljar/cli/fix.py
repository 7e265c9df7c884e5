"""`belljar doctor --fix`: files of the system's configuration, each shown before it is written."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
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
        print("Nothing that stops sandboxes here can be mended by a file.\n")
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
        _show(remedy)
        if yes and remedy.coarse:
            print("--yes does not agree to this: belljar doctor --fix asks, in a terminal.\n")
            continue
        if not yes and not _agrees("Write this file?"):
            print()
            continue
        old = _content(remedy)
        _apply(remedy, old)
        left = look()
        if left is None or left.name != obstacle.name:
            print(f"Done: {remedy.path}\n")
            return True
        _take_back(remedy, old, loaded=True)
        print(f"That did not help, so {remedy.path} is as it was.\n")
    print(f"Left as it is: {obstacle.what}.\n")
    return False


def _show(remedy: Remedy) -> None:
    print(f"{remedy.what[0].upper()}{remedy.what[1:]} would mend it, also after a reboot.")
    print(f"{remedy.consequence}\n")
    replaced = " (replaces the file that is there)" if _content(remedy) is not None else ""
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


def _apply(remedy: Remedy, old: str | None) -> None:
    """Writes the file and loads it, or leaves everything as it was and raises."""
    for tool in (remedy.load[0], "install", *(() if os.geteuid() == 0 else ("sudo",))):
        if not shutil.which(tool, path=_PATH):
            raise Unavailable(
                f"{tool} is not installed, so nothing was written",
                hint=f"have an administrator write {remedy.path} as shown above, and load it",
            )
    loaded = False
    try:
        _write(remedy, remedy.content)
        _run(remedy.load)
        loaded = True
    finally:
        if not loaded:
            _take_back(remedy, old, loaded=False)


def _take_back(remedy: Remedy, old: str | None, *, loaded: bool) -> None:
    try:
        if loaded:
            _run(remedy.unload)
    finally:
        if old is None:
            _run(("rm", "-f", remedy.path))
        else:
            _write(remedy, old)


def _content(remedy: Remedy) -> str | None:
    try:
        return Path(remedy.path).read_text()
    except FileNotFoundError:
        return None


def _write(remedy: Remedy, content: str) -> None:
    _run(("install", "-D", "-m", "0644", "/dev/stdin", remedy.path), content)


def _as_root(command: Sequence[str]) -> list[str]:
    if os.geteuid() == 0:
        return list(command)
    # Without a terminal nobody can type a password: then it fails at once.
    return ["sudo", *(() if sys.stdin.isatty() else ("-n",)), *command]


def _run(command: Sequence[str], text: str | None = None) -> None:
    words = _as_root(command)
    done = subprocess.run(
        words,
        input=text,
        stdin=subprocess.DEVNULL if text is None else None,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": _PATH},
    )
    if done.returncode:
        said = done.stderr.strip().rpartition("\n")[2] or f"it ended with {done.returncode}"
        raise Unavailable(f"{shlex.join(words)}: {said}", hint="nothing was changed")
