"""Whether bytes that a guest calls a picture are one.

A model's service refuses a conversation that holds a broken picture, and goes on refusing it. So a
picture is looked at to the last byte before it is sent; what is not whole is only mentioned.
"""

from __future__ import annotations

import struct
import zlib

MOST_BYTES = 400_000
"""Of all in one answer: with its text that stays below the 1 MiB of one event that clients take."""
MOST_PIXELS = 8000
"""Of each side."""
MOST_RAW_BYTES = 16 << 20
"""Unpacked: 2300 pixels each way, in colour."""

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}


def why_not(content: bytes) -> str:
    """Why this is no PNG that can be shown; empty if it is one."""
    if len(content) > MOST_BYTES:
        return f"larger than {MOST_BYTES:,} bytes: draw it with a smaller dpi"
    if not content.startswith(_SIGNATURE):
        return "no PNG"
    try:
        return _look(memoryview(content)[len(_SIGNATURE) :])
    except (struct.error, zlib.error, IndexError):
        return "a broken PNG"


def _look(rest: memoryview) -> str:
    header, packed, palette = b"", bytearray(), False
    while True:
        (length,) = struct.unpack(">I", rest[:4])
        kind, data = bytes(rest[4:8]), rest[8 : 8 + length]
        (check,) = struct.unpack(">I", rest[8 + length : 12 + length])
        if zlib.crc32(data, zlib.crc32(kind)) != check or bool(header) == (kind == b"IHDR"):
            return "a broken PNG"
        rest = rest[12 + length :]
        if kind == b"IHDR":
            header = bytes(data)
        elif kind == b"PLTE":
            palette = True
        elif kind == b"IDAT":
            packed += data
        elif kind == b"IEND":
            return "a broken PNG" if len(rest) else _inside(header, bytes(packed), palette)


def _inside(header: bytes, packed: bytes, palette: bool) -> str:
    width, height, depth, colour, compression, filtering, interlaced = struct.unpack(
        ">IIBBBBB", header
    )
    if not (0 < width <= MOST_PIXELS and 0 < height <= MOST_PIXELS):
        return f"larger than {MOST_PIXELS} pixels"
    if depth not in _DEPTHS.get(colour, ()) or compression or filtering or interlaced:
        return "a PNG of an unusual kind"
    if colour == 3 and not palette:
        return "a broken PNG"
    line = 1 + (width * depth * _CHANNELS[colour] + 7) // 8
    size = line * height
    if size > MOST_RAW_BYTES:
        return "too large when unpacked"
    unpacking = zlib.decompressobj()
    raw = unpacking.decompress(packed, size + 1)
    if len(raw) != size or not unpacking.eof:
        return "a broken PNG"
    return "a broken PNG" if max(raw[::line]) > 4 else ""
