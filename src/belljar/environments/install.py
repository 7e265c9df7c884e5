"""Running uv, and the tools of a toolchain: stream their output as progress, keep its end."""

from __future__ import annotations

import os
import re
import selectors
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from belljar.environments import stopping
from belljar.environments.folders import Progress
from belljar.errors import EnvironmentUnavailable
from belljar.runtimes.interpreter import base_interpreter

LAST_LINES = 12
_INHERITED_NOT = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "UV_PYTHON", "UV_TARGET")


def install_packages(
    packages: Sequence[str],
    target: Path,
    *,
    bytecode: bool,
    lock_fd: int,
    progress: Progress,
    python_version: str = "",
) -> None:
    """Wheels only, copied: a link into uv's cache would let a later change there reach runs.

    `python_version`: for another Python than ours, which then cannot compile them."""
    command = [find_uv(), "pip", "install", "--only-binary", ":all:", "--link-mode", "copy"]
    command += ["--no-progress", "--color", "never", "--python", base_interpreter()]
    command += ["--target", str(target)]
    if python_version:
        command += ["--python-version", python_version]
    if bytecode:
        command.append("--compile-bytecode")
    progress("resolving packages", None)
    run(
        [*command, *packages],
        # uv reads settings of the folder it starts in; the caller's is none of its business.
        cwd=target,
        env={name: value for name, value in os.environ.items() if name not in _INHERITED_NOT},
        lock_fd=lock_fd,
        on_line=Downloads(progress, bytecode=bytecode).see,
    )


def run(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    lock_fd: int,
    on_line: Callable[[str], None],
) -> None:
    """Run to the end, or raise EnvironmentUnavailable with the last lines it printed."""
    last: deque[str] = deque(maxlen=LAST_LINES)
    try:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            umask=0o022,
            # Should this process be killed, its children go on writing for a while. Holding the
            # lock too, they keep the next builder waiting until they are done.
            pass_fds=(lock_fd,),
        )
    except OSError as error:
        raise EnvironmentUnavailable(f"cannot run {command[0]}: {error}") from error
    with process:
        try:
            for line in _lines(process):
                last.append(line.rstrip())
                on_line(line)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        text = "\n".join(last)
        name = Path(command[0]).name
        raise EnvironmentUnavailable(
            f"{name} ended with status {process.returncode}:\n{text}", hint=hint_for(text)
        )


def _lines(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """What it prints until it closes its output, which nobody has to wait for to the end."""
    assert process.stdout is not None
    output_fd = process.stdout.fileno()
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output_fd, selectors.EVENT_READ)
        while True:
            stopping.check()
            if not selector.select(stopping.LOOK_S):
                continue
            data = os.read(output_fd, 1 << 16)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield line.decode("utf-8", "replace") + "\n"
            if not data:
                if rest:
                    yield rest.decode("utf-8", "replace")
                return


def find_uv() -> str:
    try:
        import uv

        return str(uv.find_uv_bin())
    except (ImportError, FileNotFoundError):
        if found := shutil.which("uv"):
            return found
        raise EnvironmentUnavailable(
            "uv is not installed, and environments are built with it", hint="pip install uv"
        ) from None


_HINTS = (
    (
        "memory allocation of|cannot allocate memory",
        "uv ran out of the memory that it may use: a package with so much metadata is not usable",
    ),
    ("no space left|disk quota exceeded", "the disk is full: free some space, or set BELLJAR_HOME"),
    ("permission denied|read-only file system", "set BELLJAR_HOME to a folder you can write to"),
    (
        "failed to fetch|dns error|tcp connect|network was disabled|timed out|sending request",
        "building needs the package index once: check the network, or point UV_INDEX_URL at a "
        "mirror",
    ),
    (
        "no solution found|no wheels",
        "the package index has no wheel of it for this Python and platform",
    ),
)


def hint_for(text: str) -> str:
    """What to do about the failure that `text` tells of."""
    for pattern, hint in _HINTS:
        if re.search(pattern, text, re.IGNORECASE):
            return hint
    return ""


_KIB_PER_UNIT = {"Ki": 1.0, "Mi": 1024.0, "Gi": 1024.0 * 1024.0}


class Downloads:
    """Turns uv's lines into progress: it announces each large wheel with its size."""

    _ANNOUNCED = re.compile(r"Downloading (\S+) \(([\d.]+)([KMG]i)B\)")
    _DONE = re.compile(r" Downloaded (\S+)")

    def __init__(self, progress: Progress, *, bytecode: bool) -> None:
        self._progress = progress
        self._bytecode = bytecode
        self._sizes_kib: dict[str, float] = {}
        self._done_kib = 0.0

    def see(self, line: str) -> None:
        if match := self._ANNOUNCED.match(line):
            self._sizes_kib[match[1]] = float(match[2]) * _KIB_PER_UNIT[match[3]]
        elif match := self._DONE.match(line):
            self._done_kib += self._sizes_kib.get(match[1], 0.0)
        elif line.startswith("Prepared "):
            self._progress("installing", None)
            return
        elif line.startswith("Installed "):
            if self._bytecode:
                self._progress("compiling bytecode", None)
            return
        else:
            return
        if total := sum(self._sizes_kib.values()):
            self._progress(f"downloading {total / 1024:.0f} MiB", self._done_kib / total)
