"""After a machine was restored from a snapshot: fresh randomness and the right time.

Every copy of a snapshot would otherwise draw the same random numbers, and live in the past.
"""

from __future__ import annotations

import struct
import time

_RNDADDENTROPY = 0x4008_5203
_RNDRESEEDCRNG = 0x5207


def wake(woken: dict) -> None:  # type: ignore[type-arg]
    """`woken`: {"entropy": hex digits, "clock_s": seconds since 1970}, as far as we are allowed."""
    entropy = bytes.fromhex(woken["entropy"])
    try:
        import fcntl

        with open("/dev/urandom", "wb", buffering=0) as device:
            device.write(entropy)
            counted = struct.pack("ii", len(entropy) * 8, len(entropy)) + entropy
            fcntl.ioctl(device, _RNDADDENTROPY, counted)
            fcntl.ioctl(device, _RNDRESEEDCRNG)
    except (ImportError, OSError):
        pass  # not the root of a machine of our own: then the kernel's randomness was never copied
    try:
        time.clock_settime(time.CLOCK_REALTIME, woken["clock_s"])
    except OSError:
        pass
