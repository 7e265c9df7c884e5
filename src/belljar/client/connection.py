"""HTTP to one server: questions with answers, streams of events, contents piece by piece."""

from __future__ import annotations

import ipaddress
import json
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

from belljar.client.refusals import refusal
from belljar.errors import (
    BelljarError,
    Closed,
    InvalidRequest,
    ServerRefused,
    ServerUnreachable,
    Unavailable,
)
from belljar.extras import install

if TYPE_CHECKING:
    import httpx

CONNECT_S = 10.0
ANSWER_S = 900.0
"""A run may wait for its turn, and then take its time."""
SILENCE_S = 60.0
"""A stream is never silent for so long: the server says that it waits."""
EVENTS = "text/event-stream"
BINARY = "application/octet-stream"
MOST_EVENT_BYTES = 256 << 20

Told = tuple[str, dict[str, Any]]


class UnencryptedKey(UserWarning):
    """A key goes to another machine over plain http."""


class _Parts(NamedTuple):
    scheme: str
    hostname: str


def _parts(url: str) -> _Parts:
    """Refuses an address without quoting it: a password or a token may be in it."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # brackets that do not close, a port that is no number
        known = False
    if not known or parts.query or parts.fragment:
        raise InvalidRequest(
            "url: not the address of a server", hint="for example http://127.0.0.1:8321"
        )
    if "@" in parts.netloc:
        raise InvalidRequest(
            "url: a user name or a password cannot be in it",
            hint="give the key as `key` or in BELLJAR_KEY",
        )
    return _Parts(parts.scheme, parts.hostname or "")


class Connection:
    def __init__(self, url: str, key: str) -> None:
        parts = _parts(url)
        if not key.isascii() or not key.isprintable():
            raise InvalidRequest("key: it has characters that no key has")
        if key and parts.scheme == "http" and not _is_loopback(parts.hostname):
            warnings.warn(
                f"the key is sent to {parts.hostname} over plain http: anyone on the network "
                "path can read and use it. Use https, or a tunnel to the server's loopback address",
                UnencryptedKey,
                stacklevel=4,
            )
        self.url = url.rstrip("/")
        self._host = parts.hostname
        self._key = key
        self._client: httpx.AsyncClient | None = None
        self._closed = False

    async def ask(
        self, method: str, path: str, said: Any = None, *, query: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """JSON to JSON."""
        async with self._sent(method, path, said, query=query) as response:
            return await _json(response)

    async def events(
        self, method: str, path: str, said: Any = None, *, query: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[Told, None]:
        """What a server tells while it happens; closing this closes the connection."""
        async with self._sent(method, path, said, query=query, accept=EVENTS) as response:
            kind = response.headers.get("content-type", "")
            if not kind.startswith(EVENTS):
                raise ServerRefused("the server answered without events")
            async for name, told in _events(response):
                if name == "error":
                    raise refusal(200, told)
                yield name, told

    async def send(
        self,
        method: str,
        path: str,
        pieces: AsyncIterator[bytes],
        *,
        query: Mapping[str, Any] | None = None,
        size: int | None = None,
    ) -> dict[str, Any]:
        """Content of any size to JSON."""
        headers = {"Content-Type": BINARY}
        if size is not None:
            headers["Content-Length"] = str(size)
        async with self._sent(
            method, path, query=query, content=pieces, headers=headers
        ) as response:
            return await _json(response)

    @asynccontextmanager
    async def receive(
        self, path: str, *, query: Mapping[str, Any]
    ) -> AsyncIterator[tuple[Mapping[str, str], AsyncIterator[bytes]]]:
        """Headers, and content of any size."""
        async with self._sent("GET", path, query=query, accept=BINARY) as response:
            yield response.headers, response.aiter_bytes()

    async def close(self) -> None:
        self._closed = True
        if self._client:
            await self._client.aclose()

    @asynccontextmanager
    async def _sent(
        self,
        method: str,
        path: str,
        said: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        accept: str = "application/json",
        content: AsyncIterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[httpx.Response]:
        client = self._open()
        httpx = _httpx()
        sent = {"Accept": accept, **(headers or {})}
        body: Any = content
        if said is not None:
            sent["Content-Type"] = "application/json"
            body = _body(said)
        timeout = httpx.Timeout(
            CONNECT_S, read=SILENCE_S if accept == EVENTS else ANSWER_S, write=ANSWER_S
        )
        address = self.url + path + _query(query)
        try:
            async with client.stream(
                method, address, content=body, headers=sent, timeout=timeout
            ) as response:
                if response.status_code != 200:
                    raise await _refused(response)
                yield response
        except httpx.TimeoutException as error:
            raise ServerUnreachable(f"{self.url} does not answer: {_why(error)}") from error
        except httpx.TransportError as error:
            raise ServerUnreachable(
                f"{self.url} cannot be reached: {_why(error)}", hint="does belljar serve run there?"
            ) from error

    def _open(self) -> httpx.AsyncClient:
        if self._closed:
            raise Closed("this connection is closed", hint="make a new one")
        if self._client is None:
            httpx = _httpx()
            self._client = httpx.AsyncClient(
                headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
                follow_redirects=False,  # the key is for this server alone
                trust_env=not _is_loopback(self._host),  # no proxy is asked about this machine
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
            )
        return self._client


def _httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise Unavailable(
            "a server is spoken to with httpx, which is not installed",
            hint=install("client"),
        ) from error
    return httpx


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__


def _body(said: Any) -> bytes:
    try:
        return json.dumps(said, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"what is asked for cannot be sent: {error}") from None


def _query(fields: Mapping[str, Any] | None) -> str:
    """Paths inside a sandbox may be any bytes."""
    pairs = []
    for name, value in (fields or {}).items():
        if value is None:
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        try:
            raw = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise InvalidRequest(f"{name}: {value!r} cannot be written as bytes") from None
        pairs.append(f"{name}={quote(raw, safe='/')}")
    return "?" + "&".join(pairs) if pairs else ""


async def _json(response: httpx.Response) -> dict[str, Any]:
    found = json.loads(await response.aread())
    if not isinstance(found, dict):
        raise ServerRefused("the server's answer is none", hint="is it a belljar server?")
    return found


async def _refused(response: httpx.Response) -> BelljarError:
    try:
        told = json.loads(await response.aread())
    except ValueError:
        told = None
    return refusal(response.status_code, told, retry_after=response.headers.get("retry-after", ""))


async def _events(response: httpx.Response) -> AsyncIterator[Told]:
    buffer = bytearray()
    looked = 0
    async for piece in response.aiter_bytes():
        buffer += piece
        while (end := buffer.find(b"\n\n", looked)) >= 0:
            name, data = "", b""
            for line in bytes(buffer[:end]).split(b"\n"):
                field, _, value = line.partition(b": ")
                if field == b"event":
                    name = value.decode()
                elif field == b"data":
                    data = value
            del buffer[: end + 2]
            looked = 0
            if name:
                yield name, json.loads(data)
        looked = max(0, len(buffer) - 1)
        if len(buffer) > MOST_EVENT_BYTES:
            raise ServerRefused("the server's event has no end")
