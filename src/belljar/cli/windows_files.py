"""Files that a run left, written on Windows, which opens nothing relative to a folder's descriptor
and has meanings of its own for names that are harmless elsewhere."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from belljar.errors import InvalidRequest
from belljar.linux_only import open_flags

# A backslash leaves the folder, a colon names a drive or a stream of another file, the last two are
# dropped from the end of a name, and devices are found in every folder, with any suffix.
_MEANING = re.compile(r'[<>:"|?*\\\x00-\x1f]|[. ]$')
_DEVICE = re.compile(
    r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])\s*(\..*)?", re.IGNORECASE
)
_NEW_FILE = open_flags("O_WRONLY", "O_CREAT", "O_EXCL")


def check(name: str) -> None:
    """Raises InvalidRequest for a name that means something else than a file below a folder."""
    for part in name.split("/"):
        if not part or _MEANING.search(part) or _DEVICE.fullmatch(part):
            raise InvalidRequest("Windows has another meaning for its name")


class Place:
    """A folder to write into."""

    def __init__(self, folder: str) -> None:
        self._top = Path(folder)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def write(self, name: str, content: bytes) -> None:
        check(name)
        *folders, last = name.split("/")
        at = self._top
        for folder in folders:
            at = at / folder
            at.mkdir(exist_ok=True)
            # A junction is no symbolic link, but leads elsewhere, too.
            if os.path.realpath(at) != os.path.join(os.path.realpath(at.parent), folder):
                raise InvalidRequest(f"{folder} leads out of the folder")
        unfinished = at / f".belljar-{secrets.token_hex(8)}"
        try:
            with open(os.open(unfinished, _NEW_FILE, 0o666), "wb") as file:
                file.write(content)
            os.replace(unfinished, at / last)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
