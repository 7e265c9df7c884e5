"""What goes wrong before a cell can be judged.

MachinesError
├── CannotBeHad     QEMU, an archive or a privilege is missing here: nothing is said of Belljar
├── SetupFailed     `make setup` fails in a guest's root: that is said of Belljar
└── GuestLost       a guest did not boot, hung, or ended by itself
"""

from __future__ import annotations


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
