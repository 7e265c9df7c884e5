"""Runs a command in user and mount namespaces of its own, with the ids that root has outside.

`unshare --map-root-user` leaves root a single id, the host's own root's, and the jail refuses that.
For root: `python tests/same_ids.py COMMAND…`.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

NEW_USER, NEW_MOUNTS = 0x1000_0000, 0x2_0000


def main() -> int:
    made, make = os.pipe()
    mapped, map_it = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(map_it)
        if ctypes.CDLL(None).unshare(NEW_USER | NEW_MOUNTS) != 0:
            os._exit(99)
        os.write(make, b"1")
        if os.read(mapped, 1):
            os.execvp(sys.argv[1], sys.argv[1:])
        os._exit(99)
    os.close(make)
    if os.read(made, 1):
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{child}/{name}").write_text("0 0 65536")
        os.write(map_it, b"1")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def prefix() -> tuple[str, ...]:
    """What to put before a command to run it so; for an ordinary user one id is enough."""
    if os.geteuid() != 0:
        return ("unshare", "--user", "--map-root-user", "--mount")
    return (sys.executable, __file__)


if __name__ == "__main__":
    sys.exit(main())
