"""Whether a value may be put where its placeholder stands: only where a host reads it as it is.

In a query or a body, code chooses what is around the placeholder. Behind `%`, a host would read the
value's first two characters as one; in UTF-16 it would read every two. Its answer then has nothing
of the value in it that could be found, and everything that is needed to tell what it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from belljar.egress.escapes import undone

SEEN_BYTES = 64
"""Of what stands before a placeholder."""
HEAD_BYTES = 256
"""Of the beginning of a body."""
_READINGS = 3
_CHARSETS = frozenset(
    b"utf-8 utf8 us-ascii ascii iso-8859-1 latin-1 latin1 windows-1252 cp1252".split()
)
"""Letters, digits and signs are themselves in these, whatever stands before them."""
STRANGE_PARTS = (b"content-transfer-encoding", b"content-encoding", b"charset")
"""Where one is in a multipart body, a host may read what follows as something else."""
USUAL_PARTS = tuple(b"charset=" + quote + one for quote in (b"", b'"', b"'") for one in _CHARSETS)
_TYPE = re.compile(
    rb"\s*([^\s;,/]+/[^\s;,]+)\s*((?:;\s*[A-Za-z0-9-]+=(?:[^\s\",;*]*|\"[^\",;\\\\]*\")\s*)*);?\s*"
)
_PARAMETER = re.compile(rb";\s*([A-Za-z0-9-]+)=\"?([^\s\";]*)")
_TEXT = re.compile(
    rb"text/.*|multipart/.*|.*[/+](?:json|xml)"
    rb"|application/(?:x-www-form-urlencoded|x-ndjson|jsonl|json-seq|graphql|javascript|sql)",
    re.IGNORECASE,
)
_NOT_TEXT = re.compile(rb".*yaml", re.IGNORECASE)
"""Has numbers and bytes in notations of its own."""
_ENCODING = re.compile(rb"<\?xml[^>]*?encoding\s*=\s*[\"']?([^\s\"'?>]*)", re.IGNORECASE)
_OPEN = re.compile(
    rb"(?:%(?:25)*(?:u[0-9a-f]{0,3}|[0-9a-f])?"
    rb"|\\(?:u[0-9a-f]{0,3}|(?-i:U)[0-9a-f]{0,7}|x[0-9a-f]?|[ux]\{[0-9a-f]*|[0-7]{1,2}|N\{[^}]*)?"
    rb"|&(?:amp;)*#?[a-z0-9]*)\Z",
    re.IGNORECASE,
)
"""The beginning of an escape, also of a character that is not ASCII."""
_NOT_ASCII = re.compile(rb"(?:[\x80-\xff]|%[89a-f][0-9a-f])\Z", re.IGNORECASE)
_CONTROL = re.compile(rb"[^\t\n\r\x20-\x7e\x80-\xff]|%(?:0[0-8bcef]|1[0-9a-f]|7f)", re.IGNORECASE)
"""Some switch to another character set."""


def unread(content_types: Sequence[bytes], encodings: Iterable[bytes]) -> str:
    """Why a body with these headers is none in which a value is read as it is; empty if it is."""
    if any(one.strip().lower() not in (b"", b"identity") for one in encodings):
        return "in a body that is compressed"
    for content_type in content_types:
        kind = content_type.partition(b";")[0].strip()
        if not _TEXT.fullmatch(kind) or _NOT_TEXT.fullmatch(kind):
            return "in a body that is no text"
    return misread(content_types)


def misread(content_types: Sequence[bytes]) -> str:
    """The same of a query: some hosts read it in the character set of the body."""
    for content_type in content_types:
        found = _TYPE.fullmatch(content_type)
        given = _PARAMETER.findall(found[2].lower()) if found else []
        names = [name for name, _ in given]
        charset = dict(given).get(b"charset", b"utf-8")
        unclear = found is None or len(content_types) > 1 or len(names) > len(set(names))
        if unclear or charset not in _CHARSETS:
            return "in an unusual character set"
    return ""


def trouble(before: bytes, head: bytes = b"") -> str:
    """Why a value may not stand there; empty if it may. `before`: the last bytes of what does,
    within the same field; `head`: how the body begins."""
    if b"\0" in head[:4] or head[:2] in (b"\xfe\xff", b"\xff\xfe"):
        return "in UTF-16 or UTF-32"
    declared = _ENCODING.findall(head)
    unfinished = b"<?xml" in head.lower() and b"?>" not in head
    if unfinished or not all(found.lower() in _CHARSETS for found in declared):
        return "in an unusual character set"
    before = before[-SEEN_BYTES:]
    for _ in range(_READINGS):
        if _OPEN.search(before):
            return "behind the beginning of an escape"
        if _NOT_ASCII.search(before) or _CONTROL.search(before):
            return "behind a character that is not ASCII"
        before = undone(before)
    return ""
