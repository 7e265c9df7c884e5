"""`--url` and `--key`: the same verbs at a server."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Any

from belljar.cli.table import Option
from belljar.errors import InvalidRequest

URL_VARIABLE = "BELLJAR_URL"
OPTIONS = (
    Option("url", "--url", "URL", f"A server to do it at. Default: {URL_VARIABLE}, else here."),
    Option(
        "key", "--key", "KEY", "Its key. Default: BELLJAR_KEY, which no list of processes shows."
    ),
)
MOST_STDIN = 8 << 20


def place(url: str | None, key: str | None) -> dict[str, str]:
    """Options of a Belljar that is at a server; none for one that is here."""
    found = os.environ.get(URL_VARIABLE, "") if url is None else url
    if not found:
        if key:
            raise InvalidRequest(
                "--key: there is no server", hint=f"name it: --url, {URL_VARIABLE}"
            )
        return {}
    return {"url": found, "key": key or ""}


def sendable(options: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for; a server has its own defaults. Standard input goes along as a whole."""
    said = {name: value for name, value in options.items() if value not in (None, (), [], {})}
    descriptor = said.pop("stdin_descriptor", None)
    if descriptor is not None and (content := _read(descriptor)):
        said["stdin"] = content
    return said


def _read(descriptor: int) -> bytes:
    """To its end, but not from a terminal: nobody there knows that it is waited for."""
    if os.isatty(descriptor):
        return b""
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode) and hasattr(os, "set_blocking"):
        os.set_blocking(descriptor, True)
    content = bytearray()
    while part := os.read(descriptor, 1 << 16):
        content += part
        if len(content) > MOST_STDIN:
            raise InvalidRequest(
                f"standard input: a server takes {MOST_STDIN} bytes of it",
                hint="send it as a file: --file, --input",
            )
    return bytes(content)
