"""Systems other than Linux, where the client works and sandboxes do not: what to tell the user."""

from __future__ import annotations

import os
import sys

from belljar.errors import EngineUnavailable

_SYSTEMS = {"darwin": "macOS", "win32": "Windows", "cygwin": "Windows"}
_SERVER = "a server: url= in Python, --url or BELLJAR_URL on the command line"
_MACHINES = {
    "macOS": "in a Linux virtual machine (Lima: limactl start; or multipass launch)",
    "Windows": "in WSL2 (wsl --install)",
}


def why() -> str:
    """Why there are no sandboxes on this system; empty on Linux."""
    if sys.platform == "linux":
        return ""
    return f"sandboxes need Linux, and this is {_SYSTEMS.get(sys.platform, sys.platform)}"


def what_to_do() -> str:
    place = _MACHINES.get(_SYSTEMS.get(sys.platform, ""), "on a Linux machine")
    return f"run Belljar {place}, or use {_SERVER} (docs/client.md)"


def open_flags(*names: str) -> int:
    """For `os.open`: those that this system has, and on Windows no translation of line ends."""
    found = getattr(os, "O_BINARY", 0)
    for name in names:
        found |= getattr(os, name, 0)
    return found


def check() -> None:
    """Raises EngineUnavailable anywhere but on Linux."""
    if reason := why():
        raise EngineUnavailable(reason, hint=what_to_do())
