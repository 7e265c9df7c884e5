"""Whether a value may be put where its placeholder stands: only where a host reads it as it is.

In a query or a body, code chooses what is around the placeholder. Behind `%`, a host would read the
value's first two characters as one; in UTF-16 it would read every two. Its answer then has nothing
of the value in it that could be found, and everything that is needed to tell what it was.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
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


def unread(content_types: Sequence[bytes], encodings: Iterable[bytes]) -> str:
    """Why a body with these headers is none in which a value is read as it is; empty if it is."""
    if any(one.strip().lower() not in (b"", b"identity") for one in encodings):
        return "which is compressed"
    for content_type in content_types:
        if not _TEXT.fullmatch(content_type.partition(b";")[0].strip()):
            return "which is no text"
    return misread(content_types)


def misread(content_types: Sequence[bytes]) -> str:
    """The same of a query: some hosts read it in the character set of the body."""
    for content_type in content_types:
        found = _TYPE.fullmatch(content_type)
        given = _PARAMETER.findall(found[2].lower()) if found else []
        names = [name for name, _ in given]
        charset = dict(given).get(b"charset", b"utf-8").strip(b"'")
        unclear = found is None or len(content_types) > 1 or len(names) > len(set(names))
        if unclear or not _CHARSET.fullmatch(charset):
            return _UNUSUAL
    return ""


def boundary(content_type: bytes) -> bytes:
    """Of a multipart body, with the letters as they are."""
    for name, value in _PARAMETER.findall(content_type):
        if name.lower() == b"boundary":
            return bytes(value)
    return b""


def trouble(kind: str, before: bytes, head: bytes = b"", after: bytes = b"") -> str:
    """Why a value may not stand there; empty if it may. `kind`: form, json or anything else.
    `before`: the last bytes of what does, in the same field; `head`: how the body begins; `after`:
    the next few bytes."""
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


def trouble_in_part(boundary: bytes, before: bytes, head: bytes, after: bytes) -> str:
    """The same in a multipart body. What the part's own headers say counts."""
    whole, mark, part = before.rpartition(b"\n--" + boundary)
    at_start = not mark and head.startswith(b"--" + boundary) and len(before) < SEEN_BYTES
    if at_start:
        part = before[len(boundary) + 2 :]
    elif not mark or not whole.endswith(b"\r"):
        return "too far behind the beginning of its part"
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
        return "in a part with parts"
    return misread(kinds) or trouble("", content, content[:HEAD_BYTES], after)
