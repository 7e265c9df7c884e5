"""Where pip gets packages on this machine, carried into a guest's root while it is prepared.

Whatever pip is configured with here holds there: files, variables, certificates, and folders that
serve as an index or hold wheels. None of it stays in the image.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

CARRIED = re.compile(
    r"PIP_|UV_|SSL_CERT|REQUESTS_CA_BUNDLE$|CURL_CA_BUNDLE$|(https?|all|no)_proxy$", re.IGNORECASE
)
"""The variables that decide where packages come from, and whom to trust."""


@dataclass(frozen=True)
class Indexes:
    environment: Mapping[str, str]
    configuration: str
    """One file for all that pip reads here."""
    places: tuple[Path, ...]
    """Files and folders that the above name: to be found at the same paths."""


def here() -> Indexes:
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    return collect(listed.stdout, os.environ)


def collect(listed: str, environ: Mapping[str, str]) -> Indexes:
    """From what `pip config list` prints, and the variables."""
    sections: dict[str, list[str]] = {}
    values: list[str] = []
    for line in listed.splitlines():
        match = re.fullmatch(r"([a-z][\w-]*)\.([\w-]+)=(.*)", line)
        if not match:  # variables are listed as ":env:"
            continue
        section, name, written = match.groups()
        value = str(ast.literal_eval(written))
        sections.setdefault(section, []).append(f"{name} = " + "\n    ".join(value.split("\n")))
        values.append(value)
    environment = {name: value for name, value in environ.items() if CARRIED.match(name)}
    text = "".join(
        f"[{section}]\n" + "".join(f"{line}\n" for line in lines)
        for section, lines in sections.items()
    )
    return Indexes(environment, text, tuple(places((*values, *environment.values()))))


def places(values: Iterable[str]) -> list[Path]:
    """The files and folders among these values, none of them inside another."""
    found: set[Path] = set()
    for word in " ".join(values).split():
        url = urlsplit(word)
        if url.scheme == "file":
            path = Path(unquote(url.path))
            # An index's pages point to files beside it.
            path = path.parent if path.name == "simple" else path
        else:
            path = Path(word)
        if path.is_absolute() and len(path.parts) > 1 and path.exists():
            found.add(path)
    return sorted(path for path in found if not found & set(path.parents))
