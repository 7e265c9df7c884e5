"""Network namespaces with names, as `ip netns` makes them, and threads that step into them."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

PREFIX = "bjtest"
NAMES = Path("/run/netns")
FILES = Path("/etc/netns")
"""What `ip netns exec NAME` shows in /etc instead: here resolv.conf."""
_CLONE_NEWNET = 0x40000000
_count = itertools.count()
_libc = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """One network namespace; it is gone with `close`, or the next test run sweeps it away."""

    def __init__(self, kind: str) -> None:
        self.name = f"{PREFIX}-{os.getpid()}-{next(_count)}-{kind}"
        ip("netns", "add", self.name)
        self._descriptor = os.open(NAMES / self.name, os.O_RDONLY | os.O_CLOEXEC)
        ip("-n", self.name, "link", "set", "lo", "up")

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """This thread alone; a socket stays in the namespace that it was made in."""
        back = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(self._descriptor)
            try:
                yield
            finally:
                _enter(back)
        finally:
            os.close(back)

    def write(self, name: str, text: str) -> None:
        folder = FILES / self.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        _remove(self.name)


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def sweep() -> None:
    """Removes what test runs left that were killed."""
    for place in (NAMES, FILES):
        for left in place.glob(f"{PREFIX}-*"):
            owner = left.name.split("-")[1]
            if not Path(f"/proc/{owner}").exists():
                _remove(left.name)


def _remove(name: str) -> None:
    if (NAMES / name).exists():
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    folder = FILES / name
    for file in folder.glob("*"):
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
        FILES.rmdir()  # if nobody else has anything there


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")
