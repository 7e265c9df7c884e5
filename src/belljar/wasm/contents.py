"""How much of what a module declares, read from the heads of its sections.

wasmtime bounds memories and each table as they grow. It does not bound what an instance holds of
functions, globals and segments, nor all tables together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

IMPORTS, FUNCTIONS, TABLES, GLOBALS, ELEMENTS, CODE, DATA = 2, 3, 4, 6, 9, 10, 11
_HEAD = 8
_LONG_TYPES = (0x63, 0x64)
"""References, of which a number says to what."""
_FUNCTION_BYTES = _ITEM_BYTES = 32
"""What wasmtime holds in an instance for a function that is imported or referred to, and at most
for a global, an element of a segment, or a data segment."""


@dataclass(frozen=True, kw_only=True)
class Contents:
    tables: int
    state_bytes: int
    """What an instance of it holds beside memories and tables, at most."""


def read(binary: bytes) -> Contents:
    """Of a module that wasmtime has accepted."""
    counts: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for section, start, end in _sections(binary):
        counts[section], _ = _number(binary, start)
        sizes[section] = end - start
    functions = counts.get(IMPORTS, 0) + counts.get(FUNCTIONS, 0)
    # An element takes at least a byte of its section, and a segment may hold a million of them.
    items = counts.get(GLOBALS, 0) + sizes.get(ELEMENTS, 0) + counts.get(DATA, 0)
    return Contents(
        tables=counts.get(TABLES, 0),
        state_bytes=_FUNCTION_BYTES * functions + _ITEM_BYTES * items,
    )


def most_locals(binary: bytes) -> int:
    """How many variables its functions declare, all together: a few bytes declare 50,000, which
    take a compiler a hundredth of a second. IndexError if this is no module."""
    found = 0
    for section, start, _ in _sections(binary):
        if section != CODE:
            continue
        functions, at = _number(binary, start)
        for _ in range(functions):
            size, at = _number(binary, at)
            groups, here = _number(binary, at)
            for _ in range(groups):
                count, here = _number(binary, here)
                found += count
                here += 1
                if binary[here - 1] in _LONG_TYPES:
                    _, here = _number(binary, here)
                if here > at + size:  # else it would be read once for each function
                    raise IndexError("a function goes on after its end")
            at += size
    return found


def _sections(binary: bytes) -> Iterator[tuple[int, int, int]]:
    """(kind, first byte, end) of each but those that mean nothing to a machine."""
    at = _HEAD
    while at < len(binary):
        section = binary[at]
        size, at = _number(binary, at + 1)
        if section:
            yield section, at, at + size
        at += size


def _number(binary: bytes, at: int) -> tuple[int, int]:
    """An unsigned LEB128 number, and where it ends."""
    value = shift = 0
    while True:
        byte = binary[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
