"""Whether a value may be put where its placeholder stands: only where a host reads it as it is.

In a query or a body, code chooses what is around the placeholder. Behind `%`, a host would read the
value's first two characters as one; in UTF-16 it would read every two. Its answer then has nothing
of the value in it that could be found, and everything that is needed to tell what it was.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from belljar.egress.escapes import undone

SEEN_BYTES = 2048
"""Of what stands before a placeholder."""
HEAD_BYTES = 256
"""Of the beginning of a body."""
AFTER_BYTES = 16
"""Of what stands behind it."""
_NEAR_BYTES = 64
_READINGS = 3
_CHARSET = re.compile(rb"utf[-_]?8|(?:us-)?ascii|iso-8859-[0-9]+|latin-?1|(?:windows-|cp)125[0-9]")
"""Letters, digits and signs are themselves in these, whatever stands before them."""
_UNUSUAL = "in an unusual character set"
_TYPE = re.compile(
    rb"\s*([^\s;,/]+/[^\s;,]+)\s*((?:;\s*[A-Za-z0-9-]+=(?:[^\s\",;*]*|\"[^\",;\\]*\")\s*)*);?\s*"
)
_PARAMETER = re.compile(rb";\s*([A-Za-z0-9-]+)=\"?([^\s\";]*)")
_TEXT = re.compile(
    rb"text/(?!.*yaml).*|multipart/.*|[^/]*/(?:.*[+-])?(?:json|xml)(?:-[0-9.a-z-]+)?"
    rb"|application/(?:x-www-form-urlencoded|x-ndjson|jsonl|graphql|javascript|sql|toml)",
    re.IGNORECASE,
)
"""YAML has numbers and bytes in notations of its own."""
_ENCODING = re.compile(rb"<\?xml[^>]*?encoding\s*=\s*[\"']?([^\s\"'?>]*)", re.IGNORECASE)
_PART_HEADER = re.compile(rb"^([^:\r\n]*):[ \t]*((?:[^\r\n]|\r\n[ \t])*)", re.MULTILINE)
_AS_IT_IS = (b"7bit", b"8bit", b"binary")
_OPEN = re.compile(
    rb"(?:%(?:25)*(?:u[0-9a-f]{0,3}|[0-9a-f])?"
    rb"|\\(?:u[0-9a-f]{0,3}|(?-i:U)[0-9a-f]{0,7}|x[0-9a-f]?|[ux]\{[0-9a-f]*|[0-7]{1,2}|N\{[^}]*)?"
    rb"|&(?:amp;)*#?[a-z0-9]*)\Z",
    re.IGNORECASE,
)
"""The beginning of an escape, also of a character that is not ASCII."""
_ESCAPED_MARK = re.compile(
    rb"\\u\{?([0-9a-f]{4,5})|&#x0*([0-9a-f]{1,5});|&#0*([0-9]{1,6});", re.IGNORECASE
)
_WHOLE = re.compile(
    rb"(?:[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3})\Z"
)
"""The last character, in UTF-8."""
_SHIFT = re.compile(rb"[\x00\x0e\x0f\x1b]")
"""Some switch to another character set."""


class Kind(NamedTuple):
    """How a host reads a body."""

    name: str = ""
    """form, json or multipart; empty: any other text."""
    boundary: bytes = b""
    unread: str = ""
    """Why a value would not be read as it is, wherever it stood."""

    @classmethod
    def of(cls, content_types: Sequence[bytes], encodings: Iterable[bytes]) -> Kind:
        if any(one.strip().lower() not in (b"", b"identity") for one in encodings):
            return cls(unread="which is compressed")
        for content_type in content_types:
            if not _TEXT.fullmatch(content_type.partition(b";")[0].strip()):
                return cls(unread="which is not text")
        if why := misread(content_types):
            return cls(unread=why)
        kind = content_types[0].partition(b";")[0].strip().lower() if content_types else b""
        if kind == b"application/x-www-form-urlencoded":
            return cls("form")
        if kind.startswith(b"multipart/"):
            return cls("multipart", _boundary(content_types[0]))
        return cls("json" if b"json" in kind else "")

    def trouble(self, before: bytes, head: bytes = b"", after: bytes = b"") -> str:
        """Why a value may not stand there; empty if it may. `before`: the last bytes of what does;
        `head`: how the body begins; `after`: the next few bytes."""
        if self.unread:
            return self.unread
        if self.name == "multipart":
            return _trouble_in_part(self.boundary, before, head, after)
        field = before.rpartition(b"&")[2] if self.name == "form" else before
        return _trouble(self.name, field, head, after)


def misread(content_types: Sequence[bytes]) -> str:
    """Why a body with these headers may be read in an unusual character set; empty if it is not.
    Some hosts read the query in it, too."""
    for content_type in content_types:
        found = _TYPE.fullmatch(content_type)
        given = _PARAMETER.findall(found[2].lower()) if found else []
        names = [name for name, _ in given]
        charset = dict(given).get(b"charset", b"utf-8").strip(b"'")
        unclear = found is None or len(content_types) > 1 or len(names) > len(set(names))
        if unclear or not _CHARSET.fullmatch(charset):
            return _UNUSUAL
    return ""


def _boundary(content_type: bytes) -> bytes:
    """Of a multipart body, with the letters as they are."""
    for name, value in _PARAMETER.findall(content_type):
        if name.lower() == b"boundary":
            return bytes(value)
    return b""


def _trouble(kind: str, before: bytes, head: bytes, after: bytes) -> str:
    if b"\0" in head[:4] or head[:2] in (b"\xfe\xff", b"\xff\xfe"):
        return "in UTF-16 or UTF-32"
    declared = _ENCODING.findall(head.lower())
    unfinished = b"<?xml" in head.lower() and b"?>" not in head
    if unfinished or not all(map(_CHARSET.fullmatch, declared)):
        return _UNUSUAL
    near = read = before[-_NEAR_BYTES:]
    for _ in range(_READINGS):
        if _OPEN.search(read):
            return "behind the beginning of an escape"
        read = undone(read)
    if kind == "form":
        near = unquote_to_bytes(near)
    if near and not _WHOLE.search(near):
        return "behind a part of a character"
    if _is_mark(unquote_to_bytes(after) if kind == "form" else after):
        return "before a mark that would change its last character"
    return _UNUSUAL if kind != "json" and _SHIFT.search(near) else ""


def _is_mark(after: bytes) -> bool:
    """Whether it begins with an accent or the like: some hosts make one letter of it and the last
    one of the value. A character of which only a part has come may be one."""
    if escape := _ESCAPED_MARK.match(after):
        first = chr(int(escape[1] or escape[2], 16) if escape[1] or escape[2] else int(escape[3]))
    else:
        first = after[:4].decode("utf-8", "ignore")[:1]
        if after[:1] > b"\x7f" and (first == "" or ord(first) < 0x80):
            return True
    return bool(first) and unicodedata.category(first).startswith("M")


def _trouble_in_part(boundary: bytes, before: bytes, head: bytes, after: bytes) -> str:
    """What the part's own headers say counts."""
    whole, mark, part = before.rpartition(b"\n--" + boundary)
    at_start = not mark and head.startswith(b"--" + boundary) and len(before) < SEEN_BYTES
    if at_start:
        part = before[len(boundary) + 2 :]
    elif not mark or not whole.endswith(b"\r"):
        return "more than 2 KB after its part begins"
    headers, empty_line, content = part.partition(b"\r\n\r\n")
    if not empty_line:
        return "in the headers of a part"
    found = [(name.strip().lower(), value) for name, value in _PART_HEADER.findall(headers)]
    kinds = [value for name, value in found if name == b"content-type"]
    for name, value in found:
        strange = name == b"content-transfer-encoding" and value.strip().lower() not in _AS_IT_IS
        if strange or name == b"content-encoding":
            return "in a part that is encoded"
    if any(kind.strip().lower().startswith(b"multipart/") for kind in kinds):
        return "in a nested multipart part"
    return misread(kinds) or _trouble("", content, content[:HEAD_BYTES], after)
