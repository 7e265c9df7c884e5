"""Where things are inside a sandbox."""

from __future__ import annotations

WORKSPACE, INPUT, OUTPUT = "/workspace", "/data/input", "/data/output"
WRITABLE = (WORKSPACE, "/tmp", OUTPUT, "/dev/shm")
UID = GID = 1000

COMMANDS = "/opt/belljar/bin"
"""On PATH before the host's own commands."""
PACKAGES = "/opt/belljar/packages"
"""Sets of packages, each in a folder with a number."""
MOST_SETS = 16
BOX = "/run/box"
"""The tmpfs behind the writable places, while a sandbox is built."""
EMPTY = "/run/empty"
"""An empty folder to cover others with."""
PROC_SYS = "/run/proc-sys"
"""The few kernel settings that sandboxes may read."""
HOSTS = "127.0.0.1 localhost belljar\n::1 localhost\n"
"""What /etc/hosts has in every sandbox."""
