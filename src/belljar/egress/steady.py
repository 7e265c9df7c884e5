"""A search that takes as long in one text as in any other of the same length.

`bytes.find` skips what cannot be in its needle. Whoever chooses the data, and sees how long it
takes, learns of each character whether it is in there: a secret of eight was read that way within a
minute. Here each byte becomes the set of the places that it has in the needle, one bit for each of
eight, and all places in the data are compared at once, as one large number.
"""

from __future__ import annotations

from functools import lru_cache

PLACES = 8
"""That a byte has bits for; a longer needle is looked for in two parts."""
LONGEST = 2 * PLACES
_GUARD = b"\xff" * 3 * PLACES
"""At the upper end, so that no number is shorter than another: short ones take less time."""


class Needle:
    def __init__(self, needle: bytes) -> None:
        assert 0 < len(needle) <= LONGEST
        parts = range(0, len(needle), PLACES)
        self._parts = [_Part(needle[start : start + PLACES]) for start in parts]
        self._has_zeros = 0 in needle

    def occurs(self, data: bytes) -> bool:
        if self._has_zeros and 0 not in data:  # UTF-16, whatever the text
            return False
        return bool(self.compared(data) & _lowest_bits(len(data)))

    def compared(self, data: bytes) -> int:
        """The lowest bit of each byte says whether it begins there."""
        found = self._parts[0].compared(data)
        for part in self._parts[1:]:
            found &= part.compared(data) >> 8 * PLACES
        return found


class _Part:
    def __init__(self, part: bytes) -> None:
        any_byte = 0xFF >> len(part) << len(part)
        places = bytearray([any_byte]) * 256
        for place, byte in enumerate(part):
            places[byte] |= 1 << place
        self._places = bytes(places)
        self._behind = bytes([any_byte]) * LONGEST + _GUARD

    def compared(self, data: bytes) -> int:
        found = int.from_bytes(data.translate(self._places) + self._behind, "little")
        # The next byte has its bit one place further up: after these three, all eight are in one.
        found &= found >> 9
        found &= found >> 18
        found &= found >> 36
        return found


@lru_cache(8)
def _lowest_bits(length: int) -> int:
    return int.from_bytes(b"\x01" * length, "little")
