"""Whether a value may be put where its placeholder stands: only where a host reads it as it is.

In a query or a body, code chooses what is around the placeholder. Behind `%`, a host would read the
value's first two characters as one; in UTF-16 it would read every two. Its answer then has nothing
of the value in it that could be found, and everything that is needed to tell what it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

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
STRANGE_PARTS = (b"content-transfer-encoding", b"charset")
"""Where one is in a multipart body, a host may read what follows as something else."""
USUAL_PARTS = tuple(b"charset=" + quote + one for quote in (b"", b'"', b"'") for one in _CHARSETS)
_CHARSET = re.compile(rb";\s*charset\s*=\s*\"?([^\s\";]*)", re.IGNORECASE)
_TEXT = re.compile(
    rb"|text/.*|multipart/.*|.*[/+](?:json|xml|yaml)"
    rb"|application/(?:x-www-form-urlencoded|x-ndjson|jsonl|json-seq|graphql|x-yaml|javascript|sql)",
    re.IGNORECASE,
)
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


def unread(content_types: Iterable[bytes], encodings: Iterable[bytes]) -> str:
    """Why a body with these headers is none in which a value is read as it is; empty if it is."""
    if any(one.strip().lower() not in (b"", b"identity") for one in encodings):
        return "in a body that is compressed"
    for content_type in content_types:
        if not all(found.lower() in _CHARSETS for found in _CHARSET.findall(content_type)):
            return "in an unusual character set"
        if not _TEXT.fullmatch(content_type.partition(b";")[0].strip()):
            return "in a body that is no text"
    return ""


def trouble(before: bytes, head: bytes = b"") -> str:
    """Why a value may not stand there; empty if it may. `before`: the last bytes of what does,
    within the same field; `head`: how the body begins."""
    if b"\0" in head[:4] or head[:2] in (b"\xfe\xff", b"\xff\xfe"):
        return "in UTF-16 or UTF-32"
    if not all(found.lower() in _CHARSETS for found in _ENCODING.findall(head)):
        return "in an unusual character set"
    before = before[-SEEN_BYTES:]
    for _ in range(_READINGS):
        if _OPEN.search(before):
            return "behind the beginning of an escape"
        if _NOT_ASCII.search(before) or _CONTROL.search(before):
            return "behind a character that is not ASCII"
        before = undone(before)
    return ""
