"""N2: requests and responses that the gateway, its parser and a host could read differently.

However they are written, a host that echoes its request gives nothing of a secret back."""

from __future__ import annotations

import base64
import gzip
import html
import json
import os
import re
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from belljar.network import Allow, Secret
from tests.world.place import World
from tests.world.servers import Visit
from tests.world.ways import Gate, Way

HOST = "api.example.com"
VALUE = b"4a/live+7Qw2Zx9Lm4Kp0Vb8Tn3Rd6Yh="


@pytest.fixture(scope="module")
def way(gate: Gate) -> Iterator[Way]:
    secrets = {"KEY": Secret(VALUE.decode(), host=HOST, query=True, body=True)}
    with gate.open(Allow(HOST), secrets=secrets) as opened:
        yield opened


@pytest.fixture(scope="module")
def key(way: Way) -> bytes:
    return way.lease.variables["KEY"].encode()


def answers(way: Way, request: bytes) -> bytes:
    """All that comes back to bytes as they are, within TLS."""
    got = b""
    with way.secure(f"{HOST}:443") as connection:
        try:
            connection.sendall(request)
            with socket.socket(fileno=os.dup(connection.fileno())) as under:
                under.shutdown(socket.SHUT_WR)  # no other request follows
            while piece := connection.recv(65536):
                got += piece
        except (OSError, ssl.SSLError):
            pass
    return got


CORE = VALUE[3:-1]
"""Whatever becomes of its first and last characters together with what is around them."""
FORMS = [
    CORE,
    CORE.replace(b"+", b" "),
    CORE.hex().encode(),
    *(base64.b64encode(bytes(n) + VALUE)[n + (n > 0) : -4] for n in range(3)),
]
CHUNK_END = re.compile(rb"\r\n[0-9a-f]{1,8}\r\n")


def no_value(got: bytes) -> None:
    """Neither as it came nor without the ends of chunks, nor for a reader who undoes escapes."""
    for data in (got, CHUNK_END.sub(b"", got)):
        for read in (
            data,
            unquote_to_bytes(data),
            html.unescape(data.decode("latin-1")).encode("latin-1", "replace"),
            re.sub(rb"\\([^u])", rb"\1", data),
            data.translate(bytes.maketrans(b"-_", b"+/"), b" "),
            data.replace(b"\\n", b""),
        ):
            for form in FORMS:
                assert form.lower() not in read.lower(), data[:2000]


# -- each place once ------------------------------------------------------------------------------

START = (
    b"%s %s HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\nAuthorization: Bearer %s\r\n"
)


@pytest.mark.parametrize(
    "method", [b"head", b"Head", b"hEAD", b"HEAD", b"GET", b"get", b"connect", b"Options", b"H.E"]
)
def test_methods_in_any_case(way: Way, key: bytes, world: World, method: bytes) -> None:
    got = answers(way, START % (method, b"/echo", key) + b"\r\n")
    no_value(got)
    if method == b"GET":
        assert key in got
    elif method != b"HEAD":
        assert got.startswith(b"HTTP/1.1 400 ") and not any(one.heads for one in world.visits)
        assert b"capital letters" in got


OK = b"HTTP/1.1 200 OK\r\n"
PACKED = gzip.compress(b"your key is " + VALUE)
RESPONSES = {
    "an encoding of this connection": OK
    + b"Connection: content-encoding, close\r\nContent-Encoding: gzip\r\n\r\n",
    "two kinds of content": OK
    + b"Content-Type: text/plain\r\nContent-Type: multipart/byteranges; boundary=x\r\n\r\n",
    "a part that is none": OK + b"Content-Range: bytes 3-40/99\r\n\r\n",
    "an encoding nobody has": OK + b"Content-Encoding: " + VALUE + b"\r\n\r\n",
    "a header over two lines": OK + b"X: a\r\n " + VALUE + b"\r\n\r\n",
}


@pytest.mark.parametrize("kind", RESPONSES)
def test_responses(way: Way, key: bytes, world: World, kind: str) -> None:
    body = PACKED if b"gzip" in RESPONSES[kind] else VALUE
    world.servers.raw["x"] = RESPONSES[kind] + body
    got = answers(way, START % (b"GET", b"/raw/x", key) + b"\r\n")
    no_value(got)
    assert PACKED[10:] not in CHUNK_END.sub(b"", got)
    assert all(VALUE.decode() not in repr(one) for one in way.egress)


# -- any of them together -------------------------------------------------------------------------


@dataclass
class Recipe:
    """How the host answers, with the credential that it got."""

    version: bytes = b"HTTP/1.1"
    status: bytes = b"200 OK"
    headers: tuple[bytes, ...] = ()
    packing: bytes = b""
    framing: str = "length"
    before: bytes = b"<"
    """As code may have chosen it."""
    written: int = 0
    size: int = 9999

    def pieces(self, value: bytes) -> Iterator[bytes]:
        body = self.before + WRITTEN[self.written](value) + b">"
        for one in self.packing.lower().replace(b" ", b"").split(b","):
            body = PACK.get(one, lambda data: data)(body)
        lines = [self.version + b" " + self.status, *self.headers]
        lines = [line.replace(b"VALUE", value) for line in lines]
        if self.packing:
            lines.append(b"Content-Encoding: " + self.packing)
        if self.framing == "length":
            lines.append(b"Content-Length: %d" % len(body))
        elif self.framing == "chunks":
            lines.append(b"Transfer-Encoding: Chunked")
        yield b"\r\n".join(lines) + b"\r\n\r\n"
        for at in range(0, len(body), self.size):
            piece = body[at : at + self.size]
            chunk = b"%x;k=%s\r\n%s\r\n" % (len(piece), value, piece)
            yield chunk if self.framing == "chunks" else piece
        if self.framing == "chunks":
            yield b"0\r\nX-Last: %s\r\n\r\n" % value


PACK = {
    b"gzip": gzip.compress,
    b"x-gzip": gzip.compress,
    b"deflate": zlib.compress,
    b"raw": lambda data: zlib.compress(data)[2:-4],
}
WRITTEN = [
    lambda value: value,
    bytes.swapcase,
    lambda value: quote(value, safe="").encode(),
    lambda value: b"".join(b"&#x%X;" % byte for byte in value),
    lambda value: json.dumps(base64.encodebytes(b"u:" + value).decode()).encode(),
    lambda value: quote(base64.b64encode(value), safe="").encode(),
    lambda value: value.hex().upper().encode(),
    lambda value: value.replace(b"/", b"\\/"),
    lambda value: value.replace(b"=", b"&#61;").replace(b"+", b"&plus;"),
    lambda value: base64.urlsafe_b64encode(b"x" + value),
]
BEFORE = rb"< < % %4 %25 %254 \ \\ \x \x4 \u00 \u004 & &# &#x4 + 100%2525 =\n"
STATUSES = (
    b"200 OK|200 VALUE|204 No|304 Not|205 Reset|206 Part|404 VALUE|401|500 x|101 Up|416 No|"
    b"100 Go\r\n\r\nHTTP/1.1 200 OK|103 Early\r\nLink: VALUE\r\n\r\nHTTP/1.1 200 OK"
)
HEADERS = (
    b"Location: https://other/?k=VALUE|Set-Cookie: k=VALUE; Path=/|X-VALUE: 1|Upgrade: VALUE|"
    b"Connection: content-encoding|Connection: close, content-length|Connection: upgrade|"
    b"Content-Range: bytes 1-2/9|Content-Type: multipart/byteranges; boundary=x|"
    b"Content-Type: text/html|X: a\r\n VALUE|Content-Encoding: identity|Trailer: VALUE|"
    b"Refresh: 0;VALUE"
)
PACKINGS = b"||gzip|GZIP| gzip ,deflate|deflate|x-gzip|identity|br|raw"
recipes = st.builds(
    Recipe,
    version=st.sampled_from([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/1.1"]),
    status=st.sampled_from(STATUSES.split(b"|")),
    headers=st.lists(st.sampled_from(HEADERS.split(b"|")), max_size=3).map(tuple),
    packing=st.sampled_from(PACKINGS.split(b"|")),
    framing=st.sampled_from(["length", "chunks", "close"]),
    before=st.sampled_from(BEFORE.split()),
    written=st.integers(0, len(WRITTEN) - 1),
    size=st.sampled_from([1, 7, 9999]),
)

METHODS = b"GET|HEAD|head|POST|PUT|OPTIONS|TRACE|CONNECT|connect|Get|PATCH|DELETE"
TARGETS = (
    b"/raw/fuzz|/raw/fuzz?q=%KEY|/raw/fuzz|//raw/fuzz|*|https://api.example.com/raw/fuzz|"
    b"http://api.example.com/raw/fuzz|/raw/fuzz?\\xKEY|/raw/../raw/fuzz"
)
VERSIONS = b"HTTP/1.1|HTTP/1.1|HTTP/1.1|HTTP/1.0|HTTP/2.0|http/1.1"
LINES = (
    b"Range: bytes=1-30|range : bytes=0-9|Request-Range: bytes=1-9|If-Range: x|"
    b"Accept-Encoding: gzip, br|TE: trailers, gzip|Upgrade: websocket|Connection: Upgrade|"
    b"Connection: authorization|Connection: close|Expect: 100-continue|"
    b"X-HTTP-Method-Override: HEAD|Content-Length: 3|Content-Length: 0|"
    b"Transfer-Encoding: chunked|transfer-encoding: CHUNKED|Transfer-Encoding: gzip|"
    b"Host: other.example.com|Content-Type: application/json|Trailer: X|X: KEY|Cookie: KEY|"
    b"HTTP2-Settings: AAMAAABk|Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==|X: a\r\n b"
)
BODIES = b"||abc|3\r\nabc\r\n0\r\n\r\n|0\r\nX: KEY\r\n\r\n|KEY|2;KEY\r\nab\r\n0\r\n\r\n"


def written(method: bytes, target: bytes, version: bytes, lines: list[bytes], body: bytes) -> bytes:
    head = [b" ".join((method, target, version)), b"Host: api.example.com"]
    return b"\r\n".join([*head, b"Authorization: Bearer KEY", *lines, b"", body])


requests = st.builds(
    written,
    st.sampled_from(METHODS.split(b"|")),
    st.sampled_from(TARGETS.split(b"|")),
    st.sampled_from(VERSIONS.split(b"|")),
    st.lists(st.sampled_from(LINES.split(b"|")), max_size=4),
    st.sampled_from(BODIES.split(b"|")),
)
mutations = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 2),
        st.sampled_from(
            [
                b" ",
                b"\t",
                b"\r",
                b"\n",
                b"\0",
                b":",
                b",",
                b"H",
                b"h",
                b"\x85",
                b"%",
                b"\x0b",
                b"\r\n",
            ]
        ),
    ),
    max_size=2,
)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(requests, mutations, recipes)
@example(
    b"head /raw/fuzz HTTP/1.1\r\nHost: api.example.com\r\nAuthorization: Bearer KEY\r\n\r\n",
    [],
    Recipe(),
)
@example(
    b"GET /raw/fuzz HTTP/1.1\r\nHost: api.example.com\r\nAuthorization: Bearer KEY\r\n\r\n",
    [],
    Recipe(headers=(b"Connection: content-encoding",), packing=b"gzip"),
)
def test_no_reading_gives_the_value_back(
    way: Way,
    key: bytes,
    world: World,
    request_: bytes,
    mutated: list[tuple[float, int, bytes]],
    recipe: Recipe,
) -> None:
    """Whatever a request looks like and however the host answers it."""

    async def echo(visit: Visit) -> AsyncIterator[bytes]:
        assert key not in visit.raw
        for piece in recipe.pieces(VALUE):
            yield piece

    world.servers.raw["fuzz"] = echo
    for where, kind, what in mutated:
        at = int(where * len(request_))
        request_ = request_[:at] + (what if kind else b"") + request_[at + (kind < 2) :]
    got = answers(way, request_.replace(b"KEY", key))
    no_value(got)
    for packed in re.findall(rb"\x1f\x8b\x08.{9,}", CHUNK_END.sub(b"", got), re.DOTALL):
        unpacking = zlib.decompressobj(31)
        try:
            no_value(unpacking.decompress(packed))
        except zlib.error:
            pass
