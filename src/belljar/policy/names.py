"""Names of the files a caller sends along: relative, plain, and never two things at once (R4)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from belljar.errors import InvalidFileName
from belljar.policy.quote import quote

COMPONENT_BYTES = 255
PATH_BYTES = 1024
DEPTH = 32

# Control characters, and the two Unicode line breaks: a name with one of them cannot be listed
# one per line, logged or streamed without being mistaken for two.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def check_names(field: str, names: Iterable[object], *, reserved: str = "") -> set[str]:
    """Refuses every name that could leave its folder or collide; returns the folders they need.

    `reserved` is the file that the code itself is written to.
    """
    seen: set[str] = set()
    for name in names:
        seen.add(_check(field, name))
    folders: set[str] = set()
    for name in seen:
        parent = name
        while (slash := parent.rfind("/")) >= 0:
            parent = parent[:slash]
            if parent in folders:
                break
            folders.add(parent)
    if both := seen & folders:
        raise InvalidFileName(
            f"{field}: {quote(min(both))} is given as a file and as a folder",
            hint="rename one of the two",
        )
    if reserved and (reserved in seen or reserved in folders):
        raise InvalidFileName(
            f"{field}: {quote(reserved)} is where the code itself goes",
            hint="choose another name",
        )
    return folders


def _check(field: str, name: object) -> str:
    if not isinstance(name, str):
        raise InvalidFileName(f"{field}: a file name is text, not {quote(name)}")
    if reason := _wrong(name):
        raise InvalidFileName(
            f"{field}: {quote(name)} {reason}",
            hint='names are relative, with "/" between folders, for example "data/table.csv"',
        )
    return name


def _wrong(name: str) -> str:
    """Why a name is refused, or nothing."""
    if not name:
        return "is empty"
    if len(name) > PATH_BYTES:
        return f"is longer than {PATH_BYTES} bytes"
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return "is not valid Unicode (a lone surrogate)"
    if len(encoded) > PATH_BYTES:
        return f"is longer than {PATH_BYTES} bytes"
    if name.startswith("/"):
        return "is absolute"
    if "\\" in name:
        return "contains a backslash"
    if _UNPRINTABLE.search(name):
        return "contains a control character or a line break"
    parts = encoded.split(b"/")
    if len(parts) > DEPTH:
        return f"is more than {DEPTH} folders deep"
    for part in parts:
        if part == b"..":
            return 'contains ".."'
        if part in (b"", b"."):
            return 'has an empty or "." component'
        if len(part) > COMPONENT_BYTES:
            return f"has a component longer than {COMPONENT_BYTES} bytes"
    return ""
