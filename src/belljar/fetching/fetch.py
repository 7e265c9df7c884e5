"""From an address to a page, through two sandboxes that somebody else runs."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from belljar.errors import EngineError, InvalidRequest
from belljar.model import MIB, Result
from belljar.network import PORTS, Allow, Egress, Secret

MOST_BYTES = 2 * MIB
MOST_CHARACTERS = 50_000
MOST_URL = 4000
TIMEOUT_S = 30.0
TEXTS = ("application/json", "application/xml", "application/xhtml+xml", "application/javascript")
"""What can be read, beside text/* and whatever ends in +json or +xml."""

_BOTH: dict[str, Any] = {
    "environment": "base",
    "result_files": 0,
    "result_bytes": 0,
    "output_bytes": 2 * MOST_BYTES + MIB,
}

Run = Callable[..., Awaitable[Result]]
"""As `Belljar.run`."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """What an address led to. Everything in it is the page's word."""

    url: str
    """Where it was found, after redirects."""
    status: int = 0
    """Of HTTP; 0: there was no answer."""
    content_type: str = ""
    title: str = ""
    text: str = ""
    links: tuple[str, ...] = ()
    """Where the page leads to, the first 200."""
    redirects: tuple[str, ...] = ()
    size: int = 0
    """In bytes, as far as it was read."""
    truncated: bool = False
    """There is more of it than this."""
    error: str = ""
    """Why there is no text, if so."""
    egress: tuple[Egress, ...] = ()

    @property
    def success(self) -> bool:
        return not self.error and 200 <= self.status < 300

    def to_dict(self) -> dict[str, Any]:
        data = asdict(self)
        for name in ("links", "redirects", "egress"):
            data[name] = list(data[name])
        return {"success": self.success, **data}


async def fetch(
    run: Run,
    address: str,
    *,
    network: Allow | str | Sequence[Allow | str] | None = None,
    secrets: Mapping[str, Secret] | None = None,
    most_bytes: int = MOST_BYTES,
    most_characters: int = MOST_CHARACTERS,
    timeout_s: float = TIMEOUT_S,
    **options: Any,
) -> Page:
    """One page, as text. `network`: where it and its redirects may lead; without it the host of
    `address` alone. `secrets`: each is sent in its header to its host. `options`: of both runs."""
    own = _own_rule(address)  # also checks the address
    rules = network or own
    for name, value, most in (
        ("most_bytes", most_bytes, MOST_BYTES),
        ("most_characters", most_characters, MOST_BYTES),
    ):
        if type(value) is not int or not 1 <= value <= most:
            raise InvalidRequest(f"{name}: must be a whole number of 1 to {most}, not {value!r}")
    sent = {name: (one.host, one.header) for name, one in _checked(secrets).items()}
    got = await run(
        _script("getting.py", address, most_bytes, timeout_s, sent),
        network=rules,
        **({"secrets": secrets} if secrets else {}),
        timeout_s=timeout_s,
        **_BOTH,
        **options,
    )
    told = _told(got)
    page = _page(address, told, got)
    if page.error:
        return page
    body = _body(told)
    if not body:
        return page
    read = await run(
        _script("reading.py", page.url, page.content_type, _text(told, "charset"), most_characters),
        inputs={"page": body},
        timeout_s=timeout_s,
        **_BOTH,
        **options,
    )
    return _with_text(page, _told(read), read, size=len(body))


def _checked(secrets: object) -> Mapping[str, Secret]:
    """The rest is for policy to say."""
    if secrets is None:
        return {}
    if not isinstance(secrets, Mapping) or not all(
        isinstance(one, Secret) for one in secrets.values()
    ):
        raise InvalidRequest(
            "secrets: must map variables to Secret",
            hint='secrets={"API_KEY": Secret("env:API_KEY", host="api.example.com")}',
        )
    return secrets


def _own_rule(address: object) -> Allow:
    """The host of the address, on its port, or on both of the usual ones."""
    if not isinstance(address, str) or len(address) > MOST_URL or not address.isprintable():
        raise InvalidRequest("address: must be a text", hint="for example https://example.com/page")
    try:
        parts = urlsplit(address)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise InvalidRequest(
            f"address: {address[:80]!r} is no address of a page",
            hint="for example https://example.com/page",
        )
    # Pages lead from http to https: with the usual ports either will do.
    host = parts.hostname if port in PORTS else f"{parts.hostname}:{port}"
    return Allow(host, methods=("GET", "HEAD"))


@cache
def _source(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _script(name: str, *arguments: Any) -> str:
    """What one of the two sandboxes runs: a file of this folder, called with these arguments."""
    return f"{_source(name)}\nmain(*{arguments!r})\n"


def _told(result: Result) -> dict[str, Any]:
    """What a sandbox printed, which may be anything."""
    try:
        found = json.loads(result.stdout)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    why = {"timeout": "it took too long", "out_of_memory": "it is too large to be read"}
    return {"error": why.get(result.status, "it could not be read")}


def _page(address: str, told: dict[str, Any], got: Result) -> Page:
    """Without its text. What the gateway refused goes before what the sandbox says."""
    kept_out = [one for one in got.egress if one.verdict in ("refused", "blocked")]
    status = told.get("status")
    kind = _text(told, "content_type")
    error = _text(told, "error")
    if kept_out:
        status, error = 0, kept_out[-1].why
    elif not error and _text(told, "encoding") not in ("", "identity"):
        error = (
            f"it is compressed ({_text(told, 'encoding')[:40]!r}) although that was not asked for"
        )
    elif not error and not (
        kind.startswith("text/") or kind in TEXTS or kind.endswith(("+json", "+xml"))
    ):
        error = f"it is {kind[:80]!r}, not text"
    return Page(
        url=_text(told, "url")[:MOST_URL] or address,
        status=status if type(status) is int and 0 <= status < 1000 else 0,
        content_type=kind[:200],
        redirects=_texts(told, "redirects"),
        truncated=told.get("truncated") is True,
        error=error[:1000],
        egress=got.egress,
    )


def _body(told: dict[str, Any]) -> bytes:
    try:
        return base64.b64decode(_text(told, "body"), validate=True)[:MOST_BYTES]
    except (binascii.Error, ValueError):
        raise EngineError("fetch: the sandbox that got the page lies about it") from None


def _with_text(page: Page, told: dict[str, Any], read: Result, *, size: int) -> Page:
    return replace(
        page,
        title=_text(told, "title")[:500],
        text=_text(told, "text")[:MOST_BYTES],
        links=_texts(told, "links"),
        size=size,
        truncated=page.truncated or told.get("more") is True or read.truncated,
        error=_text(told, "error")[:1000],
    )


def _text(told: dict[str, Any], name: str) -> str:
    """Without what no text should have: it goes to people, models and databases."""
    value = told.get(name)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _texts(told: dict[str, Any], name: str) -> tuple[str, ...]:
    value = told.get(name)
    items = value if isinstance(value, list) else []
    return tuple(
        item[:2000] for item in items[:200] if isinstance(item, str) and item.isprintable()
    )
