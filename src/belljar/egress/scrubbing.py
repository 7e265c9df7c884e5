"""What a host that knows a secret answers, with the placeholder wherever the value would be read.

Compressed answers are unpacked for it; an answer that cannot be read is not passed on.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

from belljar.egress.finding import Spellings, Stream
from belljar.egress.refusal import blocked, failed

Headers = list[tuple[bytes, bytes]]

MOST_PACKINGS = 2
PIECE_BYTES = 1 << 16
SCANNED_BYTES = 1 << 14
"""At once; then others may have their turn."""
_FEWER_BYTES = 1 << 10
_FIND_BYTES = 1 << 8
"""Where there is more than one find in so many bytes, less is scanned at once."""
_MOST_MEMBERS = 64
"""Of gzip, at once: those without content yield nothing to scan."""
FREE_BYTES = 16 << 20
"""Until then any ratio is taken; compression of nothing but zeros has about 1,000."""
MOST_RATIO = 100

_WITHOUT_BODY = (204, 304)


class Incoming:
    """One response. Without secrets for its host it passes as it is."""

    def __init__(
        self,
        found: Spellings | None,
        *,
        host: str,
        method: bytes,
        status: int,
        reason: bytes,
        headers: Headers,
        resizing: bool,
    ) -> None:
        self._host = host
        self._found = found
        self._unpack: list[_Unpacking] = []
        self._stream: Stream | None = None
        self._is_bodiless = False
        self._dropped: set[bytes] = set()
        self._scanned_bytes = SCANNED_BYTES
        if found is None:
            self.reason, self.headers = reason, headers
            return
        if status == 101:
            raise blocked(f"{host} gets a secret, so what it sends must be readable: no upgrade")
        self.reason, self.headers = b"", []
        self._head = reason, headers
        self._stream = Stream(found)
        if status < 200 or status in _WITHOUT_BODY or method == b"HEAD":
            self._is_bodiless = True
            if _all(headers, b"content-encoding"):  # the length of what is not packed here
                self._dropped = {b"content-length"}
            return
        if status == 206 or _all(headers, b"content-range") or _is_in_parts(headers):
            raise failed(f"{host} answers with a part of something: a secret could begin in it")
        for kind in _all(headers, b"content-type"):
            if not _is_readable(kind):
                raise failed(f"{host} answers in a character set in which no secret is found")
        packings = _packings(host, headers)
        self._unpack = [_Unpacking(packing, host) for packing in reversed(packings)]
        if packings:
            self._dropped = {b"content-encoding", b"content-length"}
        elif resizing:
            self._dropped = {b"content-length"}

    def read_head(self) -> Iterator[None]:
        """To be gone through before `reason` and `headers` are asked for."""
        if self._found is None:
            return
        reason, headers = self._head
        self.reason = self._found.replace(reason)
        kept = [one for one in headers if one[0].lower() not in self._dropped]
        yield from scrubbed(self._found, kept, self.headers)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """In pieces of bounded size, made as they are taken, each with bounded work; some are
        empty."""
        if self._stream is None:
            yield data
            return
        if self._is_bodiless:
            # HTTP's parser decides where a response ends. Should it ever disagree, nothing passes.
            raise failed(f"{self._host} answers with a body where none belongs")
        for plain in self._unpacked(data, 0):
            yield self._stream.feed(plain)
            many = self._stream.finds * _FIND_BYTES > self._scanned_bytes
            self._scanned_bytes = _FEWER_BYTES if many else SCANNED_BYTES

    def finish(self) -> Iterator[bytes]:
        for unpacking in self._unpack:
            unpacking.finish()
        if self._stream is not None and (done := self._stream.finish()):
            yield done

    def _unpacked(self, data: bytes, layer: int) -> Iterator[bytes]:
        if layer == len(self._unpack):
            while len(data) > self._scanned_bytes:
                piece, data = data[: self._scanned_bytes], data[self._scanned_bytes :]
                yield piece
            yield data
            return
        for piece in self._unpack[layer].feed(data):
            if piece:
                yield from self._unpacked(piece, layer + 1)
            else:
                yield b""


def scrubbed(found: Spellings, headers: Headers, into: Headers) -> Iterator[None]:
    """Step by step. A header whose name has the value in it is left out: no name can stand for
    it."""
    # No spelling has this byte in it, so none is found across two headers.
    if not found.occur(b"\xff".join(part for one in headers for part in one)):
        into += headers
        return
    for name, value in headers:
        stream, done = Stream(found), []
        for at in range(0, len(value), _FEWER_BYTES):
            done.append(stream.feed(value[at : at + _FEWER_BYTES]))
            yield
        done.append(stream.finish())
        if not found.occur(name):
            into.append((name, b"".join(done)))
        yield


class _Unpacking:
    """One gzip or deflate, bounded."""

    def __init__(self, packing: bytes, host: str) -> None:
        self._host = host
        self._gzip = packing == b"gzip"
        self._inner: zlib._Decompress | None = None
        self._begun = b""
        self._taken = 0
        self._given = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Some of the pieces are empty."""
        self._taken += len(data)
        members = 0
        while data:
            if self._inner is None:
                # The first two bytes tell a new member of gzip, or deflate with and without zlib.
                data, self._begun = self._begun + data, b""
                if len(data) < 2:
                    self._begun = data
                    return
                self._inner = zlib.decompressobj(self._window(data))
            try:
                piece = self._inner.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                raise self._unreadable() from error
            self._given += len(piece)
            if self._given > max(FREE_BYTES, MOST_RATIO * self._taken):
                raise failed(f"{self._host} answers with something that unpacks without end")
            if piece:
                yield piece
            if self._inner.eof:
                data = self._inner.unused_data
                if data and not self._gzip:
                    raise self._unreadable()
                self._inner = None
                members += 1
                if members % _MOST_MEMBERS == 0:
                    yield b""
            else:
                data = self._inner.unconsumed_tail
                if not data and len(piece) < PIECE_BYTES:
                    return

    def finish(self) -> None:
        if self._inner is not None or self._begun:
            raise self._unreadable()

    def _window(self, data: bytes) -> int:
        if self._gzip:
            if data[:2] != b"\x1f\x8b":
                raise self._unreadable()
            return 16 + zlib.MAX_WBITS
        zlib_header = data[0] & 0x0F == 8 and (data[0] << 8 | data[1]) % 31 == 0
        return zlib.MAX_WBITS if zlib_header else -zlib.MAX_WBITS

    def _unreadable(self) -> Exception:
        return failed(f"{self._host} answers with something that cannot be unpacked")


def _packings(host: str, headers: Headers) -> list[bytes]:
    names = {b"gzip": b"gzip", b"x-gzip": b"gzip", b"deflate": b"deflate"}
    asked = [
        one.strip().lower()
        for value in _all(headers, b"content-encoding")
        for one in value.split(b",")
    ]
    asked = [one for one in asked if one not in (b"", b"identity")]
    if len(asked) > MOST_PACKINGS or not all(one in names for one in asked):
        # Without its name: a host could have the value there.
        raise failed(
            f"{host} answers in an encoding that cannot be read here, although asked for none: "
            "a secret could be in it unseen"
        )
    return [names[one] for one in asked]


_CHARSET = re.compile(rb"charset([^=]*)=[\s\"']*([^\s\"';,]*)", re.IGNORECASE)
_LONGEST_TYPE = 1000
"""The search goes through it again for each `charset` in it."""
_LIKE_ASCII = re.compile(
    rb"(?:x-)?(?:utf-?8|utf-?16(?:[bl]e)?|(?:us-)?ascii|iso-?8859-[0-9]+|latin-?[0-9]+"
    rb"|(?:windows|cp)-?(?:125[0-9]|874|932|936|949|950|31j)|shift_?-?jis|sjis|euc-(?:jp|kr|tw|cn)"
    rb"|gb(?:k|2312|18030)|big5(?:-hkscs)?|koi8-[ru]|tis-620|iso-2022-(?:jp|kr|cn)|macintosh)?",
    re.IGNORECASE,
)
"""In which a letter is the byte, or the two bytes, that are looked for."""


def _is_readable(content_type: bytes) -> bool:
    if len(content_type) > _LONGEST_TYPE:
        return False
    named = _CHARSET.findall(content_type)
    return all(how.strip() == b"" and _LIKE_ASCII.fullmatch(one) for how, one in named)


def _is_in_parts(headers: Headers) -> bool:
    kinds = [one.lower() for one in _all(headers, b"content-type")]
    return any(
        one.startswith((b"multipart/byteranges", b"multipart/x-byteranges")) for one in kinds
    )


def _all(headers: Headers, wanted: bytes) -> list[bytes]:
    """Every one of this name: readers differ in whether the first or the last counts."""
    return [value for name, value in headers if name.lower() == wanted]
