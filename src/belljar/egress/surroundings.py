"""Whether a value may be put where its placeholder stands: only where it is a value by itself.

In a query or a body, code chooses what is around the placeholder. Behind `%`, a host would read the
value's first two characters as one; in UTF-16 it would read every two. Its answer then has nothing
of the value in it that could be found, and everything that is needed to tell what it was. No list
of such surroundings is ever complete: multipart bodies, XML and HTML have too many. So there are
none: a placeholder is a whole text of JSON, or a whole field of a query or a form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from belljar.egress.escapes import undone

SEEN_BYTES = 128
"""Of what stands before a placeholder."""
AFTER_BYTES = 1
"""Of what stands behind it."""
CHARSET_FIELD = b"_charset_"
"""A field of a form that names the character set of all others, for hosts that know of it."""

_LONGEST_TYPE = 200
"""Matching takes the square of it."""
_TYPE = re.compile(
    rb"\s*([^\s;,/]+/[^\s;,]+)\s*((?:;\s*[A-Za-z0-9-]+=(?:[^\s\",;*]*|\"[^\",;\\]*\")\s*)*);?\s*"
)
_PARAMETER = re.compile(rb";\s*([A-Za-z0-9-]+)=\"?([^\s\";]*)")
_CHARSET = re.compile(rb"utf-?8|(?:us-)?ascii|iso-8859-1|latin-?1")
"""Letters, digits and signs are themselves in these, and no mark changes the one before it."""
_JSON = re.compile(rb"(?:application|text)/(?:[a-z0-9.+-]*[+-])?json(?:-[0-9.]+)?")
_LINES = re.compile(rb"application/(?:x-)?(?:ndjson|jsonl|jsonlines)")
_FIELD = re.compile(rb"[A-Za-z0-9_.\[\]%+~*-]{0,100}(?:=(?:[A-Za-z0-9+._*~-]|%[0-9A-Fa-f]{2})*+)?")
"""As libraries write it: everything else is escaped, so that it is nothing but a form."""
_FORM = b"application/x-www-form-urlencoded"
_FIELD_BEGINS = re.compile(rb"(?:^|&)(?:[A-Za-z0-9_.\[\]-]|%5[BbDd]){1,40}=\Z")


class Kind(NamedTuple):
    """How a host reads a body."""

    name: str = ""
    """form, json or lines (of JSON); empty: in some other way."""
    unread: str = ""
    """Why a value would not be read as it is, wherever it stood."""

    @classmethod
    def of(cls, content_types: Sequence[bytes], encodings: Iterable[bytes]) -> Kind:
        if any(one.strip().lower() not in (b"", b"identity") for one in encodings):
            return cls(unread="which is compressed")
        if why := _misread(content_types):
            return cls(unread=why)
        kind = content_types[0].partition(b";")[0].strip().lower() if content_types else b""
        if kind == _FORM:
            return cls("form")
        if _JSON.fullmatch(kind):
            return cls("json")
        if _LINES.fullmatch(kind):
            return cls("lines")
        return cls(unread="whose Content-Type is neither JSON nor a form's")

    def trouble(self, before: bytes, after: bytes) -> str:
        """Why a value may not stand there; empty if it may. `before`: the last bytes of what does;
        `after`: the next byte, if there is one."""
        if self.unread:
            return self.unread
        if self.name == "form":
            # What was cut off before it is not its beginning.
            before = before if len(before) < SEEN_BYTES else b"?" + before
            if not _FIELD_BEGINS.search(before) or after not in (b"", b"&"):
                return "where it is not the whole value of a field"
        return ""

    def unlike(self, body: bytes, placeholder: bytes) -> str:
        """Why a body that has the placeholder in it is not of this kind, or has it where it is not
        a value by itself; empty if neither."""
        if self.unread:
            return self.unread
        if self.name == "form":
            if all(map(_FIELD.fullmatch, body.split(b"&"))):
                return ""
            return "which has characters that a form has to escape, such as spaces and slashes"
        try:
            text = body.decode()  # the host, too, reads UTF-8
            lines = text.split("\n") if self.name == "lines" else [text]
            found = [json.loads(one) for one in lines if one.strip() or self.name == "json"]
        except (ValueError, RecursionError):
            return "which is not JSON in UTF-8"
        if _count(found, placeholder.decode()) != body.count(placeholder):
            return "where it is not the whole of a text that is a value"
        return ""


def _count(found: object, text: str) -> int:
    """How many values in it are this text. Names of fields do not count: hosts rewrite those."""
    count, left = 0, [found]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list):
            left += one
        else:
            count += one == text
    return count


def in_query(content_types: Sequence[bytes]) -> Kind:
    """How a host reads a query; some do in the character set of the body."""
    return Kind("form", unread=_misread(content_types))


def names_charset(query: bytes) -> bool:
    return CHARSET_FIELD in undone(undone(query)).lower()


def _misread(content_types: Sequence[bytes]) -> str:
    """Why a body with these headers may be read in an unusual character set; empty if it is not."""
    for content_type in content_types:
        found = _TYPE.fullmatch(content_type) if len(content_type) <= _LONGEST_TYPE else None
        given = _PARAMETER.findall(found[2].lower()) if found else []
        names = [name for name, _ in given]
        charset = dict(given).get(b"charset", b"utf-8").strip(b"'")
        unclear = found is None or len(content_types) > 1 or len(names) > len(set(names))
        if unclear or not _CHARSET.fullmatch(charset):
            return "in an unusual character set"
    return ""
