"""How the agent gets into a container: over its standard input, so that any image with a Python
will do, on any daemon, and its agent is always the one that belongs to this Belljar.

What travels is one pack: the guest's source, its byte code for our own Python (used when the
container's is the same, since compiling takes longer than all the rest), the system-call filter
for each architecture, and what Landlock is to allow. `inside.py` takes it there.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import marshal
import zlib
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from belljar.engines.linux import landlock, seccomp, syscalls
from belljar.runtimes import guest

PACKAGE = "belljar_guest"
_ONE_RUN = (
    "__init__",
    "protocol",
    "spool",
    "wake",
    "places",
    "watch",
    "forking",
    "relay",
    "doors",
    "outgoing",
    "pipes",
    "population",
    "transfer",
    "agent",
    "reporting",
    "ending",
    "seeds",
    "runner",
    "standalone",
)
"""All that a sandbox for one run needs; one that is kept needs the whole guest."""
LANDLOCK = 9
"""The newest version of it that we know all rights of."""


@cache
def pack(*, kept: bool = False) -> bytes:
    source: dict[str, str] = {}
    code: dict[str, str] = {}
    folder = Path(guest.__file__).parent
    whole = sorted(file.stem for file in folder.glob("*.py"))
    for module in whole if kept else _ONE_RUN:
        name = PACKAGE if module == "__init__" else f"{PACKAGE}.{module}"
        source[name] = (folder / f"{module}.py").read_text()
        code[name] = _base64(marshal.dumps(_compiled(source[name])))
    filters = {
        machine: _base64(seccomp.build(arch=machine)) for machine in sorted(syscalls.MACHINES)
    }
    read = landlock.EXECUTE | landlock.READ_FILE | landlock.READ_DIR
    content = {
        "magic": importlib.util.MAGIC_NUMBER.hex(),
        "source": source,
        "code": code,
        "filters": filters,
        "landlock": {
            "handled": [landlock.handled(version) for version in range(LANDLOCK + 1)],
            "read": read,
            "device": read & ~landlock.EXECUTE | landlock.WRITE_FILE | landlock.IOCTL_DEV,
            "write": ~(landlock.MAKE_CHAR | landlock.MAKE_BLOCK | landlock.IOCTL_DEV)
            & (1 << 64) - 1,
        },
    }
    return zlib.compress(json.dumps(content).encode(), 6)


def command(python: str, configuration: dict[str, Any]) -> list[str]:
    size = len(pack(kept=configuration.get("kept", False)))
    return [python, "-I", "-c", _inside(), str(size), json.dumps(configuration)]


@cache
def _inside() -> str:
    return Path(__file__).with_name("inside.py").read_text()


def _compiled(source: str) -> CodeType:
    return compile(source, "<belljar>", "exec", dont_inherit=True)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
