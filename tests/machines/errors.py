"""What goes wrong before a cell can be judged.

MachinesError
├── CannotBeHad     no network, no QEMU or no privilege here: nothing is said of Belljar
├── SetupFailed     a root, an image or `make setup` fails: somebody has to mend something
└── GuestLost       a guest did not boot, hung, or ended by itself
    └── TimeUp      a command was still running when its time was up
"""

from __future__ import annotations

import re

_UNREACHABLE = re.compile(
    r"could not resolve|temporary failure (in name )?resolv|name or service not known"
    r"|no address associated|could not connect|cannot initiate the connection|failed to connect"
    r"|connection (timed out|refused|reset|failed)|network is unreachable|no route to host"
    r"|NewConnectionError|dns error|ProxyError",
    re.IGNORECASE,
)
_NOT_ALLOWED = re.compile(r"operation not permitted|permission denied|must be superuser", re.I)


class MachinesError(Exception):
    """Says in one line what happened."""


class CannotBeHad(MachinesError):
    pass


class SetupFailed(MachinesError):
    pass


class GuestLost(MachinesError):
    def __init__(self, message: str, *, tail: str = "") -> None:
        super().__init__(message)
        self.tail = tail
        """The end of the guest's console."""


class TimeUp(GuestLost):
    def __init__(self, message: str, *, tail: str = "", printed: str = "") -> None:
        super().__init__(message, tail=tail)
        self.printed = printed
        """What the command printed until then."""


def setup_error(message: str, said: str) -> MachinesError:
    """By what a program said: without a network nothing can be had, all else is a mistake.

    A misspelt package or a full disk must never look like a machine without a network.
    """
    return CannotBeHad(message) if _UNREACHABLE.search(said) else SetupFailed(message)


def mount_error(message: str, said: str) -> MachinesError:
    """A container may forget its privileges; a wrong path is our own mistake."""
    return CannotBeHad(message) if _NOT_ALLOWED.search(said) else SetupFailed(message)
