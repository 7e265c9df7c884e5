"""How values that nobody has checked yet are shown in an error message."""

from __future__ import annotations

SHOWN_CHARACTERS = 60
SHOWN_BITS = 128


def quote(value: object) -> str:
    """The value in a short printable form; never raises, whatever it is."""
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, str):
        shown = repr(value[:SHOWN_CHARACTERS])
        return shown if len(value) <= SHOWN_CHARACTERS else f"{shown}…"
    if isinstance(value, bytes | bytearray):
        return f"{len(value)} bytes"
    if isinstance(value, int):
        # Python refuses to write out integers of more than a few thousand digits.
        bits = value.bit_length()
        return str(int(value)) if bits <= SHOWN_BITS else f"an integer of {bits} bits"
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else repr(float(value))
    return f"a value of type {type(value).__name__}"


def size(count: int) -> str:
    """A number of bytes for people: 536870912 → "512 MiB"."""
    if (bits := count.bit_length()) > SHOWN_BITS:
        return f"an integer of {bits} bits"
    value = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"
