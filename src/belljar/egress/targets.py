"""Where a request says it goes. Pure, and strict: what can be read in two ways is not read."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from belljar.errors import InvalidRequest
from belljar.network import PORTS, Rules, host_name

from .refusal import blocked

_ABSOLUTE = re.compile(r"(?i:http)://([^/?#]+)((?:/|\?)[^#]*)?\Z")
_BEHIND = re.compile(r"[/?#]")
_BEHIND_PATH = re.compile(r"[?#]")
_LONGEST_PATH = 8192
_PORT = re.compile(r"[1-9][0-9]{0,4}\Z")
_ADDRESS = re.compile(r"((?i:https?))://([^/?#]*)([^?#]*)(?:[?#].*)?", re.DOTALL)
_NO_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_TWICE_ENCODED = re.compile(r"%(?:2[ef]|5c|00|25|u)", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Target(NamedTuple):
    host: str
    port: int


def authority(text: str, default_port: int | None) -> Target:
    """`host:port`, or only `host` where there is a default."""
    name, colon, port = text.partition(":")
    if "@" in text:
        raise blocked(f"{_shown(text)} has a user name in front of the host")
    try:
        host = host_name(name if name.isascii() else "")  # clients send names as xn--
    except InvalidRequest:
        raise blocked(
            f"{_shown(text)} is not the name of a host; addresses are not dialled, only names"
        ) from None
    if not colon and default_port is not None:
        return Target(host, default_port)
    if not _PORT.match(port) or int(port) > 65_535:
        raise blocked(f"{_shown(text)} has no usable port")
    return Target(host, int(port))


def absolute(text: str) -> tuple[Target, str]:
    """The target and the rest of an address such as `http://host/path?query`."""
    parts = _ABSOLUTE.match(text)
    if not parts:
        raise blocked(
            f"{_shown(text)} is not an http:// address; a proxy opens https with CONNECT",
            status=400,
        )
    rest = parts[2] or "/"
    return authority(parts[1], 80), rest if rest.startswith("/") else f"/{rest}"


def claimed(text: str) -> str:
    """The host of an address that may be none, for the record: without a password or a query."""
    return _BEHIND.split(text.rpartition("://")[2], maxsplit=1)[0].rpartition("@")[2][:253]


def origin(text: str, method: str) -> str:
    """The path, with its query, of a request that names no host itself."""
    if text.startswith("/") and "#" not in text:
        return text
    if text == "*" and method == "OPTIONS":
        return text
    raise blocked(f"{_shown(text)} is not the path of a request", status=400)


def clear_path(path: str) -> None:
    """Where rules are about paths, one that servers read in different ways is not let through."""
    if len(path) > _LONGEST_PATH:  # marks behind each other are put in order, which takes long
        raise blocked("the path is too long where a rule for this host has paths")
    if _NO_ESCAPE.search(path) or not all(map(_has_one_reading, path.split("/"))):
        raise blocked("the path can be read in several ways, and a rule for this host has paths")


def own_path(text: str, target: Target) -> str:
    """The path of an address that must lead to the same host."""
    if text.startswith("/") and not text.startswith("//"):
        return _BEHIND_PATH.split(text, maxsplit=1)[0]
    parts = _ADDRESS.fullmatch(text)
    if not parts or authority(parts[2], 443 if parts[1].lower() == "https" else 80) != target:
        raise blocked(f"{_shown(text)} is no address at {target.host}:{target.port}")
    return parts[3] or "/"


def _has_one_reading(segment: str) -> bool:
    try:
        plain = unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        return False
    # Some servers make plain dots and slashes of others; Windows drops blanks behind them.
    plain = unicodedata.normalize("NFKC", plain)
    name = plain.partition(";")[0]
    dots = name.replace(" ", "")
    climbs = name in (".", "..") or (dots != name and dots != "" and not dots.strip("."))
    return not (
        climbs
        or "/" in plain
        or "\\" in plain
        or _CONTROL.search(plain)
        or _TWICE_ENCODED.search(plain)
    )


def denied(patterns: Sequence[str], target: Target) -> bool:
    """Unlike in a rule, a pattern without a port is about every port."""
    for pattern in patterns:
        name, _, port = pattern.lower().partition(":")
        if port and int(port) != target.port:
            continue
        if target.host == name or (
            name.startswith("*.") and target.host.endswith(name[1:]) and target.host != name[2:]
        ):
            return True
    return False


def transparent(given: Rules) -> list[str]:
    """Names that a sandbox's /etc/hosts may lead to the gateway."""
    found: dict[str, None] = {}
    for rule in given:
        for pattern in rule.hosts:
            name, _, port = pattern.partition(":")
            if not name.startswith("*") and (not port or int(port) in PORTS):
                found[name] = None
    return list(found)


def _shown(text: str) -> str:
    """For the record, so without what is secret in addresses: user, password, query."""
    parts = [part.rpartition("@") for part in text.partition("?")[0].partition("#")[0].split("/")]
    text = "/".join(f"…{at}{rest}" if at else rest for _, at, rest in parts)
    return repr(text[:80] + ("…" if len(text) > 80 else ""))
