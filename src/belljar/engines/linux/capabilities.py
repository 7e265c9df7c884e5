"""Capabilities: dropped for good, from every set a process has (I1)."""

from __future__ import annotations

import ctypes
import struct
from errno import EPERM

from . import kernel

_VERSION_3 = 0x2008_0522
_AMBIENT_CLEAR_ALL = 4
# Uid 0 is nobody special, changing uids keeps nothing, ambient capabilities cannot be raised; and
# each of these is locked.
_SECUREBITS = 0b1110_1111

# There are 41 of them, one call each: without declared argument types a call takes half as long.
_prctl = kernel.libc["prctl"]

_NR_CAPGET = kernel.NUMBERS["capget"]
_NR_CAPSET = kernel.NUMBERS["capset"]

# Made at import: a fresh fork pays dearly for its first ctypes objects.
_header = ctypes.create_string_buffer(struct.pack("=Ii", _VERSION_3, 0), 8)
_sets = ctypes.create_string_buffer(24)
_NOTHING = bytes(24)


def drop() -> None:
    """All of them, for good."""
    bound()
    empty()


def bound() -> None:
    """What a process has now is the most that it, and whatever it starts, will ever have."""
    _drop_bounding()
    try:
        kernel.prctl(kernel.PR_SET_SECUREBITS, _SECUREBITS, 0, 0, 0)
    except OSError as error:
        if error.errno != EPERM:  # without CAP_SETPCAP; the sets are emptied all the same
            raise
    kernel.prctl(kernel.PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0)


def empty() -> None:
    """Empties the inheritable, permitted and effective sets, and checks it; after `bound`."""
    kernel.syscall(_NR_CAPSET, _header, _NOTHING)
    kernel.syscall(_NR_CAPGET, _header, _sets)
    if _sets.raw != _NOTHING:
        raise OSError(EPERM, "capset: capabilities are left after dropping all")


def current() -> dict[str, int]:
    """The five sets of this thread as bit masks, under the names /proc/self/status gives them."""
    kernel.syscall(_NR_CAPGET, _header, _sets)
    effective, permitted, inheritable, *upper = struct.unpack("=6I", _sets.raw)
    return {
        "CapInh": inheritable | upper[2] << 32,
        "CapPrm": permitted | upper[1] << 32,
        "CapEff": effective | upper[0] << 32,
        "CapBnd": _mask(kernel.PR_CAPBSET_READ),
        "CapAmb": _mask(kernel.PR_CAP_AMBIENT, 1),
    }


def _drop_bounding() -> None:
    for capability in range(_KNOWN):
        # Without CAP_SETPCAP it is not ours to drop; fine only if it is gone already.
        if _prctl(kernel.PR_CAPBSET_DROP, capability, 0, 0, 0) and _prctl(
            kernel.PR_CAPBSET_READ, capability, 0, 0, 0
        ):
            raise OSError(EPERM, f"prctl: capability {capability} cannot be dropped for good")


def _mask(option: int, *question: int) -> int:
    """Asks about one capability after the other."""
    answers = (kernel.prctl(option, *question, bit, 0, 0) << bit for bit in range(_KNOWN))
    return sum(answers)


def _count() -> int:
    """How many capabilities this kernel knows."""
    for capability in range(64):
        try:
            kernel.prctl(kernel.PR_CAPBSET_READ, capability, 0, 0, 0)
        except OSError:
            return capability
    return 64


_KNOWN = _count()
