"""Pictures from a sandbox, for a terminal that can show them.

The guest's own bytes never go to the terminal, whose decoder would have to be trusted: they are
read here, in Python and within bounds, and written anew. What cannot be read is left to the file.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

HOW = ("auto", "kitty", "iterm2", "sixel", "none")
MOST_PIXELS = 1_500_000
"""Reading takes about a microsecond for each."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Colour type of a PNG → bytes of a pixel at eight bits each."""


@dataclass(frozen=True)
class Picture:
    width: int
    height: int
    rgb: bytes


def what_the_terminal_speaks(environment: Mapping[str, str]) -> str:
    """By what terminals say of themselves; none where another program stands between."""
    terminal = environment.get("TERM", "")
    program = environment.get("TERM_PROGRAM", "")
    if terminal.startswith(("screen", "tmux")) or environment.get("TMUX"):
        return "none"
    if "kitty" in terminal or "KITTY_WINDOW_ID" in environment or program == "ghostty":
        return "kitty"
    if program in ("iTerm.app", "WezTerm") or environment.get("LC_TERMINAL") == "iTerm2":
        return "iterm2"
    if terminal.startswith(("foot", "mlterm", "contour", "yaft")) or "sixel" in terminal:
        return "sixel"
    return "none"


def draw(png: bytes, how: str) -> bytes | None:
    """What makes the terminal show it; None for what is no picture that we read."""
    picture = read_png(png)
    if picture is None:
        return None
    if how == "kitty":
        return b"".join(_kitty(picture)) + b"\n"
    if how == "iterm2":
        content = base64.b64encode(write_png(picture))
        return b"\x1b]1337;File=inline=1;preserveAspectRatio=1:" + content + b"\x07\n"
    return _sixel(picture) + b"\n" if how == "sixel" else None


# -- PNG -------------------------------------------------------------------------------------------


def read_png(data: bytes) -> Picture | None:
    """Eight bits a channel and not interlaced, as plots are; anything else is None."""
    try:
        return _read_png(data)
    except (ValueError, IndexError, struct.error, zlib.error):
        return None


def _read_png(data: bytes) -> Picture | None:
    chunks = list(_chunks(data))
    if not chunks or chunks[0][0] != b"IHDR":
        return None
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", chunks[0][1])
    if depth != 8 or interlaced or colour not in _CHANNELS or not 0 < width * height <= MOST_PIXELS:
        return None
    channels = _CHANNELS[colour]
    size = height * (1 + width * channels)
    raw = zlib.decompressobj().decompress(b"".join(c for n, c in chunks if n == b"IDAT"), size)
    if len(raw) != size:
        return None
    pixels = _unfilter(raw, width * channels, channels)
    palette = next((content for name, content in chunks if name == b"PLTE"), b"")
    return Picture(width, height, _rgb(pixels, colour, palette))


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    if not data.startswith(_SIGNATURE):
        return
    at = len(_SIGNATURE)
    while at + 12 <= len(data):
        (size,) = struct.unpack_from(">I", data, at)
        yield data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        at += 12 + size


def _unfilter(raw: bytes, stride: int, step: int) -> bytes:
    done = bytearray()
    above = bytes(stride)
    for start in range(0, len(raw), stride + 1):
        kind, line = raw[start], bytearray(raw[start + 1 : start + 1 + stride])
        if kind == 1:
            for i in range(step, stride):
                line[i] = line[i] + line[i - step] & 255
        elif kind == 2:
            line = bytearray(a + b & 255 for a, b in zip(line, above, strict=True))
        elif kind == 3:
            for i in range(stride):
                left = line[i - step] if i >= step else 0
                line[i] = line[i] + (left + above[i] >> 1) & 255
        elif kind == 4:
            for i in range(stride):
                a, c = (line[i - step], above[i - step]) if i >= step else (0, 0)
                line[i] = line[i] + _paeth(a, above[i], c) & 255
        elif kind:
            raise ValueError(kind)
        done += line
        above = bytes(line)
    return bytes(done)


def _paeth(a: int, b: int, c: int) -> int:
    near_a, near_b, near_c = abs(b - c), abs(a - c), abs(a + b - 2 * c)
    if near_a <= near_b and near_a <= near_c:
        return a
    return b if near_b <= near_c else c


def _rgb(pixels: bytes, colour: int, palette: bytes) -> bytes:
    """Three bytes a pixel, what is transparent on white."""
    if colour == 2:
        return pixels
    if colour == 0:
        return bytes(value for value in pixels for _ in range(3))
    if colour == 3:
        return b"".join(palette[3 * index : 3 * index + 3].ljust(3, b"\0") for index in pixels)
    channels = _CHANNELS[colour]
    alpha = pixels[channels - 1 :: channels]
    found = bytearray(3 * len(alpha))
    for channel in range(3):
        values = pixels[channel if colour == 6 else 0 :: channels]
        found[channel::3] = bytes(
            value if a == 255 else (value * a + 255 * (255 - a)) // 255
            for value, a in zip(values, alpha, strict=True)
        )
    return bytes(found)


def write_png(picture: Picture) -> bytes:
    stride = 3 * picture.width
    lines = b"".join(
        b"\0" + picture.rgb[start : start + stride] for start in range(0, len(picture.rgb), stride)
    )
    head = struct.pack(">IIBBBBB", picture.width, picture.height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return _SIGNATURE + b"".join(
        struct.pack(">I", len(content)) + name + content
        + struct.pack(">I", zlib.crc32(name + content))
        for name, content in chunks
    )  # fmt: skip


# -- terminals -------------------------------------------------------------------------------------


def _kitty(picture: Picture) -> Iterator[bytes]:
    content = base64.b64encode(zlib.compress(picture.rgb))
    # q=2: the terminal must not answer, it would be read as typed.
    keys = b"a=T,f=24,o=z,q=2,s=%d,v=%d," % (picture.width, picture.height)
    for start in range(0, len(content), 4096):
        piece = content[start : start + 4096]
        more = start + 4096 < len(content)
        yield b"\x1b_G%sm=%d;%s\x1b\\" % (keys, more, piece)
        keys = b""


def _sixel(picture: Picture) -> bytes:
    """In 216 colours, six lines at a time."""
    levels = bytes(round(value / 51) for value in range(256))
    red, green, blue = (picture.rgb[channel::3].translate(levels) for channel in range(3))
    indices = bytes(36 * r + 6 * g + b for r, g, b in zip(red, green, blue, strict=True))
    out = [b'\x1bPq"1;1;%d;%d' % (picture.width, picture.height)]
    for index in sorted(set(indices)):
        r, g, b = index // 36 * 20, index // 6 % 6 * 20, index % 6 * 20
        out.append(b"#%d;2;%d;%d;%d" % (index, r, g, b))
    width = picture.width
    for top in range(0, picture.height, 6):
        masks: dict[int, bytearray] = {}
        for row in range(min(6, picture.height - top)):
            start = (top + row) * width
            for x, index in enumerate(indices[start : start + width]):
                if index not in masks:
                    masks[index] = bytearray(width)
                masks[index][x] |= 1 << row
        out.append(b"$".join(b"#%d%s" % (i, _packed(mask)) for i, mask in masks.items()) + b"-")
    return b"".join(out) + b"\x1b\\"


def _packed(mask: bytearray) -> bytes:
    """Sixels with runs of four and more shortened."""
    out, at = bytearray(), 0
    while at < len(mask):
        end = at
        while end < len(mask) and mask[end] == mask[at]:
            end += 1
        sixel = bytes((mask[at] + 63,))
        out += b"!%d%s" % (end - at, sixel) if end - at > 3 else sixel * (end - at)
        at = end
    return bytes(out)
