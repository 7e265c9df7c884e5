"""`!command`, `files = !command` and `%%bash`."""

from __future__ import annotations

import os
import re
import signal
import time
import types
from collections.abc import Mapping
from typing import Any

from .imports import library

_GRACE_S = 0.2
_LOOK_S = 0.005
_INSTALL = re.compile(
    r"\s*(?:\S*python[\d.]*\s+-m\s+|uv\s+)?(?:pip[\d.]*|conda|mamba)\s+(?:install|uninstall)\b"
)
_EXPANDED = re.compile(r"\$\$|\$(\w+)|\{\{|\}\}|\{([^{}]+)\}")


class UsageError(Exception):
    """A line that only notebooks understand was used wrongly, or cannot work here."""


class Lines(list):  # type: ignore[type-arg]
    """The lines of a command's output."""

    @property
    def n(self) -> str:
        return "\n".join(self)

    @property
    def s(self) -> str:
        return " ".join(self)


def refuse_install(command: str) -> None:
    if _INSTALL.match(command):
        raise UsageError(
            "packages are not installed from inside the sandbox. From outside: "
            'box.install("name"), or Sandbox(packages=["name"])'
        )


def run(command: str, *, capture: bool, program: str = "") -> tuple[int, bytes]:
    """The exit status, and the output if it was to be captured; else it goes where ours goes.

    An interrupt ends the command, and everything in its process group, before it goes on."""
    subprocess: Any = library("subprocess")
    child = subprocess.Popen(
        [program or _shell(), "-c", command],
        stdout=subprocess.PIPE if capture else None,
        start_new_session=True,
    )
    try:
        output = child.communicate()[0] or b""
    except BaseException:
        if child.returncode is None:  # otherwise its pid may be another process's by now
            _end(child)
        raise
    status: int = child.returncode
    return status if status >= 0 else 128 - status, output


def _shell() -> str:
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"


def _end(child: Any) -> None:
    """Interrupts the command, then kills its whole group: a shell has its background processes
    ignore SIGINT. The command is reaped last: until then no other group can have its id."""
    deadline = time.monotonic() + _GRACE_S
    try:
        _signal_group(child.pid, signal.SIGINT)
        while not _has_ended(child.pid) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
    finally:  # even if a second interrupt comes
        _signal_group(child.pid, signal.SIGKILL)
    child.wait()


def _signal_group(leader: int, number: int) -> None:
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        pass


def _has_ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # somebody has waited for it already
        return True


def expand(command: str, frame: types.FrameType | None) -> str:
    """`{expression}` and `$name` of the code's variables; what is none of them is the shell's."""
    if frame is None or ("{" not in command and "$" not in command):
        return command
    parts = []
    end = 0
    for match in _EXPANDED.finditer(command):
        parts.append(command[end : match.start()])
        parts.append(_value(match, frame.f_globals, frame.f_locals))
        end = match.end()
    return "".join([*parts, command[end:]])


def _value(match: re.Match[str], names: dict[str, Any], local: Mapping[str, Any]) -> str:
    whole, name, expression = match[0], match[1], match[2]
    if whole in ("$$", "{{", "}}"):
        return whole[0]
    if name is not None:
        for scope in (local, names):
            if name in scope:
                return str(scope[name])
        return whole
    try:
        return str(eval(expression, names, local))
    except Exception:
        return whole
