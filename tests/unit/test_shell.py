"""A2: when a line of the shell goes on, and pictures for terminals."""

from __future__ import annotations

import base64
import random
import re
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.cli.shell_lines import complete, unwrap
from belljar.cli.shell_pictures import (
    MOST_PIXELS,
    Picture,
    draw,
    read_png,
    what_the_terminal_speaks,
    write_png,
)


@pytest.mark.parametrize(
    ("language", "text", "whole"),
    [
        ("python", "x = 1", True),
        ("python", "", True),
        ("python", "def f():", False),
        ("python", "def f():\n    return 1", False),
        ("python", "def f():\n    return 1\n", True),
        ("python", "for i in x: print(i)", True),
        ("python", "if x:\n    y\nelse:", False),
        ("python", "x = [1,", False),
        ("python", "x = [1,\n2]", True),
        ("python", "'''a", False),
        ("python", "x = = 1", True),
        ("python", "await nothing()", True),
        ("python", "!ls -l", True),
        ("python", "%%bash", False),
        ("python", "%%bash\necho 1\n", True),
        ("python", "x = '\\d'", True),
        ("python", "%%", False),
        ("python", "%%\nx = 1\n\ny = 2", False),
        ("python", "%%\nx = 1\n\ny = 2\n%%", True),
        ("python", "(" * 100_000, True),
        ("python", "\0", True),
        ("javascript", "let x = 1", True),
        ("javascript", "function f() {", False),
        ("javascript", "function f() {\n return '}' }", True),
        ("javascript", "x = `a", False),
        ("javascript", "// {", True),
        ("javascript", "/* {", False),
        ("typescript", "const x: number[] = [\n1", False),
        ("bash", "echo hello", True),
        ("bash", "echo 'a", False),
        ("bash", "echo a \\", False),
        ("bash", "if true", False),
        ("bash", "if true; then", False),
        ("bash", "if true; then\necho 1\nfi", True),
        ("bash", "for i in 1 2; do echo $i", False),
        ("bash", "for i in 1 2; do echo $i; done", True),
        ("bash", "while read x\ndo", False),
        ("bash", "f() {", False),
        ("bash", "f() {\necho 1\n}", True),
        ("bash", "cat <<END\nhello", False),
        ("bash", "cat <<END\nhello\nEND", True),
        ("bash", "echo $(ls", False),
        ("bash", "echo it is done # (", True),
        ("bash", "echo ${#x}", True),
    ],
)
def test_a2_a_line_goes_on_or_not(language: str, text: str, whole: bool) -> None:
    assert complete(language, text) is whole


@settings(max_examples=200)
@given(st.sampled_from(["python", "javascript", "bash"]), st.text(max_size=200))
def test_a2_any_text_is_complete_or_not(language: str, text: str) -> None:
    assert complete(language, text) in (True, False)


def test_a2_separators_are_no_code() -> None:
    assert unwrap("%%\nx = 1\n\ny = 2\n%%") == "x = 1\n\ny = 2"
    assert unwrap("x = 1") == "x = 1"


# -- pictures --------------------------------------------------------------------------------------


def png(width: int, height: int, colour: int, lines: bytes, *, palette: bytes = b"") -> bytes:
    head = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"PLTE", palette), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", 0)
        for name, content in chunks
    )


def test_s3_a_picture_is_read_as_it_was_written() -> None:
    picture = Picture(7, 5, random.Random(1).randbytes(7 * 5 * 3))
    assert read_png(write_png(picture)) == picture


@pytest.mark.parametrize("kind", [0, 1, 2, 3, 4])
def test_s3_every_filter_of_lines_is_undone(kind: int) -> None:
    """Filtered here by the definitions, with floating-point-free arithmetic of their own."""
    width, height, step = 5, 4, 3
    plain = random.Random(kind).randbytes(width * height * step)
    stride = width * step

    def at(x: int, y: int) -> int:
        return plain[y * stride + x] if x >= 0 and y >= 0 else 0

    def guess(x: int, y: int) -> int:
        a, b, c = at(x - step, y), at(x, y - 1), at(x - step, y - 1) if x >= step else 0
        paeth = min((abs(a + b - c - v), order, v) for order, v in enumerate((a, b, c)))[2]
        return (0, a, b, (a + b) // 2, paeth)[kind]

    lines = b"".join(
        bytes([kind]) + bytes((at(x, y) - guess(x, y)) % 256 for x in range(stride))
        for y in range(height)
    )
    assert read_png(png(width, height, 2, lines)) == Picture(width, height, plain)


@pytest.mark.parametrize(
    ("colour", "line", "rgb"),
    [
        (0, b"\x40", "404040"),
        (3, b"\x01", "0a0b0c"),
        (4, b"\x00\x80", "7f7f7f"),
        (6, b"\x10\x20\x30\xff", "102030"),
        (6, b"\x10\x20\x30\x00", "ffffff"),
    ],
)
def test_s3_every_kind_of_colour(colour: int, line: bytes, rgb: str) -> None:
    found = read_png(png(1, 1, colour, b"\0" + line, palette=b"\0\0\0\x0a\x0b\x0c"))
    assert found == Picture(1, 1, bytes.fromhex(rgb))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GIF89a",
        b"\x89PNG\r\n\x1a\n",
        png(1, 1, 2, b"\0\0"),
        png(1, 1, 2, b"\x09\0\0\0"),
        png(1 << 30, 1 << 30, 2, b""),
        png(MOST_PIXELS, 2, 0, b""),
        png(0, 0, 2, b""),
        png(1, 1, 2, b"\0\0\0\0")[:40],
    ],
)
def test_s3_what_is_no_picture_is_not_drawn(data: bytes) -> None:
    assert read_png(data) is None
    assert draw(data, "kitty") is None


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_s3_any_bytes_are_a_picture_or_not(data: bytes) -> None:
    read_png(png(3, 2, 2, data))
    read_png(b"\x89PNG\r\n\x1a\n" + data)


def test_s3_a_bomb_is_not_unpacked() -> None:
    bomb = png(10, 10, 2, bytes(10**7))
    picture = read_png(bomb)
    assert picture is None or len(picture.rgb) == 300


def test_s3_terminals_get_bytes_of_our_own() -> None:
    """Nothing that the guest wrote is in them, such as a text chunk with an escape sequence."""
    picture = Picture(8, 7, bytes.fromhex("ff0000") * 28 + bytes.fromhex("0000ff") * 28)
    hostile = write_png(picture)[:-12] + struct.pack(">I", 9) + b"tEXt\x1b]0;evil\x07\0\0\0\0"
    for how in ("kitty", "iterm2", "sixel"):
        drawn = draw(hostile, how)
        assert drawn and b"evil" not in drawn
    kitty = draw(hostile, "kitty") or b""
    content = b"".join(re.findall(rb"\x1b_G[^;]*;([^\x1b]*)\x1b\\", kitty))
    assert zlib.decompress(base64.b64decode(content)) == picture.rgb
    iterm2 = draw(hostile, "iterm2") or b""
    assert read_png(base64.b64decode(iterm2.partition(b":")[2].rstrip(b"\x07\n"))) == picture
    sixel = draw(hostile, "sixel") or b""
    assert sixel.startswith(b'\x1bPq"1;1;8;7#5;2;0;0;100#180;2;100;0;0')
    # Lines 1 to 3 and half of line 4 are red, the rest is blue; line 7 is a band of its own.
    assert b"#180!4N!4F$" in sixel and b"#5!8@-" in sixel


@pytest.mark.parametrize(
    ("environment", "how"),
    [
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, "iterm2"),
        ({"TERM": "foot"}, "sixel"),
        ({"TERM": "xterm-256color"}, "none"),
        ({"TERM": "screen", "KITTY_WINDOW_ID": "1"}, "none"),
        ({}, "none"),
    ],
)
def test_s3_what_the_terminal_speaks(environment: dict[str, str], how: str) -> None:
    assert what_the_terminal_speaks(environment) == how
