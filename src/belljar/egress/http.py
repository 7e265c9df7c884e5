"""HTTP/1.1 as h11 reads and writes it; here only what the gateway is stricter about."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator

import h11

from .refusal import HINTS, Refusal, blocked, phrase
from .streams import Stream

HEAD_BYTES = 65_536
MOST_HEADERS = 256
"""Of one request or answer: each is looked at several times."""
_MOST_OTHER_METHODS = 4
_MOST_GATHERED = 64
Headers = list[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authenticate proxy-authorization te trailer "
    b"transfer-encoding upgrade".split()
)
_AS_READ = bytes(ord(chr(b).lower()) if b < 128 and chr(b).isalnum() else 45 for b in range(256))
"""CGI, and what came of it, reads names of headers as variables: `_`, `.` and `-` are one."""
_OTHER_METHOD = frozenset(
    b"x-http-method-override x-http-method x-method-override x-original-method x-forwarded-method "
    b"x-envoy-original-method".split()
)
_OTHER_PATH = re.compile(
    rb"x-(?:original|rewrite|override|envoy)-.*|(?:x-)?(?:script-name|path-info|request-uri)"
    rb"|x-copy-from.*|.*-(?:copy|rename)-source.*|x-symlink-target.*|x-object-manifest.*"
    rb"|.*-(?:original|unencoded|rewrite)-(?:url|uri|path).*|.*-(?:url|uri|path)-override"
    rb"|x-forwarded-(?!(?:for|proto|protocol|host|port|scheme|ssl|by|server|client-cert)\Z).*"
)
"""Some servers serve what is named there instead of what was asked for."""
_ABOUT_THE_MESSAGE = frozenset(
    b"host content-length content-type content-encoding content-range".split()
)
"""Connection cannot name them: what a body is must be known, and said, where it is passed on."""
_METHOD = re.compile(rb"[A-Z][A-Z0-9_-]{0,31}\Z")
# h11 joins folded lines, takes a bare line feed and equal lengths twice. Others read otherwise.
_LINE = re.compile(rb"[^ \n]+ [^ \n]+ HTTP/1\.[01]\r\n")
_LOOSE = re.compile(rb"\n[ \t]|(?<!\r)\n")
_QUOTED = re.compile(r":? (?:bytearray\()?b['\"]")
_LENGTH = re.compile(rb"\ncontent-length[ \t]*:", re.IGNORECASE)
_BLANK_LINE = re.compile(rb"\n\r?\n")
_CHUNK = re.compile(rb"0{0,16}[1-9A-Fa-f][0-9A-Fa-f]{0,19}(?:;[\t -~]{0,256})?[ \t]{0,8}\r\n")
"""The first line of any chunk but the last."""
_IN_LINES = bytes((9, 10, 13, *range(32, 127), *range(128, 256)))
_MOST_BLANKS = 256

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n"
_SETTINGS, _GOAWAY, _HTTP_1_1_REQUIRED = 4, 7, 13

Event = h11.Event | type[h11.PAUSED]


class Odd(h11.RemoteProtocolError):
    """Refused before h11 reads it. Its words quote nothing."""


class Http:
    """One end of HTTP on a stream."""

    def __init__(self, stream: Stream, role: type[h11.CLIENT] | type[h11.SERVER]) -> None:
        self.stream = stream
        self.state = h11.Connection(role, max_incomplete_event_size=HEAD_BYTES)
        self._head = bytearray()
        self._lines = 0
        self._in_head = role is h11.SERVER
        self._in_chunks = False
        self.at_lines = True
        """What comes next is a head, the first line of a chunk or what follows the last one. To
        read these takes long: in a turn (`limits`)."""

    def ready(self) -> Event | None:
        """The next event if it is here already."""
        if self.at_lines:
            self._look_at_lines()
        event = self.state.next_event()
        if isinstance(event, h11.Data):
            self.at_lines = event.chunk_end
        elif isinstance(event, (h11.Request, h11.Response)):
            # h11 has made their names small.
            self._in_chunks = any(name == b"transfer-encoding" for name, _ in event.headers)
            self.at_lines = self._in_chunks
        elif isinstance(event, h11.EndOfMessage):
            self._in_chunks, self.at_lines = False, True
        return None if event is h11.NEED_DATA else event  # type: ignore[return-value]

    def _look_at_lines(self) -> None:
        """h11's patterns go back and forth over blanks that something follows which no line may
        have: one header with 65,000 of them took 30 s. What passes here matches at once, or is
        seen at once not to."""
        lines = self.state.trailing_data[0]
        if self._in_chunks:
            lines = lines.removeprefix(b"\r").removeprefix(b"\n")  # behind the last chunk
            if _CHUNK.match(lines):
                self.at_lines = False
                return
        if end := _BLANK_LINE.search(lines):
            lines = lines[: end.end()]
        elif not self._in_chunks:
            return  # h11 waits for it as well
        if lines.translate(None, _IN_LINES):
            raise Odd("control characters")
        breaks = lines.count(b"\n")
        whole = lines.count(b"\r\n")
        if lines.removesuffix(b"\r").count(b"\r") != whole or (self._in_chunks and breaks != whole):
            raise Odd("lines that do not end in CR LF")
        if b" " * _MOST_BLANKS in lines.replace(b"\t", b" "):
            raise Odd(f"{_MOST_BLANKS} blanks in a row")
        if breaks > MOST_HEADERS + 2:  # the first line and the last, which is empty
            raise Odd(f"more than {MOST_HEADERS} headers")

    def gathered(self, first: h11.Data) -> tuple[bytes, Event | None]:
        """This and what of the body is here already, as one; then the event behind it, if known:
        what comes in tiny pieces is not to be looked at in as many."""
        pieces = [bytes(first.data)]
        for _ in range(_MOST_GATHERED):
            event = self.ready()
            if not isinstance(event, h11.Data):
                return b"".join(pieces), event
            pieces.append(bytes(event.data))
        return b"".join(pieces), None

    def feed(self, data: bytes) -> None:
        if self._in_head:
            self._head += data
            # h11 waits for the end of a head before it looks at its first line.
            if b"\n" in self._head and not _LINE.match(self._head):
                raise h11.RemoteProtocolError("illegal request line")
            self._lines += data.count(b"\n")
            self._check_lines()
        self.state.receive_data(data)

    def _check_lines(self) -> None:
        """Before h11 takes its time for each of them."""
        if self._lines <= MOST_HEADERS + 2:
            return
        end = self._head.find(b"\r\n\r\n")
        if self._head.count(b"\n", 0, end if end >= 0 else len(self._head)) > MOST_HEADERS:
            raise Odd(f"more than {MOST_HEADERS} headers")

    def has_begun(self) -> bool:
        """Whether something of the next request is here."""
        return bool(self._head)

    def begins_http2(self) -> bool:
        return bytes(self._head).startswith(HTTP2_PREFACE)

    def check_head(self, request: h11.Request) -> None:
        """After a request was read, before anything is done about it."""
        left = len(self.state.trailing_data[0])
        head = bytes(self._head[: len(self._head) - left])
        self._head.clear()
        self._in_head = False
        names = [name for name, _ in request.headers]
        if _LOOSE.search(head) or len(_LENGTH.findall(head)) > 1:
            raise blocked("the request's head is not written strictly", status=400)
        if not _METHOD.match(request.method):
            # Methods are case-sensitive: `head` is no HEAD, and its response has a body.
            raise blocked("the request's method is not a word in capital letters", status=400)
        if request.http_version not in (b"1.0", b"1.1"):
            raise blocked("the request is of another version than HTTP/1.1", status=505)
        if b"transfer-encoding" in names and (
            b"content-length" in names or request.http_version != b"1.1"
        ):
            raise blocked("the request has two lengths", status=400)

    def next_request(self) -> None:
        """OSError if the connection cannot be used again."""
        if not (self.state.our_state is h11.DONE and self.state.their_state is h11.DONE):
            raise ConnectionError("the connection is used up")
        ahead = self.state.trailing_data[0]
        self.state.start_next_cycle()
        self._in_head = True
        self._head += ahead
        self._lines = ahead.count(b"\n")
        self._check_lines()
        if b"\n" in ahead and not _LINE.match(ahead):
            raise h11.RemoteProtocolError("illegal request line")

    def reusable(self) -> bool:
        return self.state.our_state is h11.DONE and self.state.their_state is h11.DONE


def passed_on(
    headers: Iterable[tuple[bytes, bytes]], named: Iterable[bytes]
) -> Iterator[tuple[bytes, bytes]]:
    """All but what is about this one connection. `named`: the values of Connection."""
    dropped = set(_HOP_BY_HOP)
    for value in named:
        dropped |= {token.strip().lower() for token in value.split(b",")}
    dropped -= _ABOUT_THE_MESSAGE
    for name, value in headers:
        if name.lower() not in dropped:
            yield name, value


def other_methods(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """By which a request asks to be taken for one with another method: rules are about both."""
    found = [value for name, value in headers if name.translate(_AS_READ) in _OTHER_METHOD]
    methods = {value.strip().upper().decode("ascii", "replace") for value in found}
    if len(methods) > _MOST_OTHER_METHODS:
        raise blocked("a request that asks to be taken for many other methods")
    return sorted(methods)


def check_one_path(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Where rules are about paths."""
    if any(_OTHER_PATH.fullmatch(name.translate(_AS_READ)) for name, _ in headers):
        raise blocked(
            "a request that names another path in a header, and a rule for this host has paths"
        )


def destinations(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """Where WebDAV's COPY and MOVE write to."""
    found = [value for name, value in headers if name.translate(_AS_READ) == b"destination"]
    if len(found) > 1:
        raise blocked("a request with several destinations, and a rule for this host has paths")
    return [value.decode("latin-1") for value in found]


def without_quotes(error: h11.RemoteProtocolError) -> str:
    """h11's words without what it quotes: queries, credentials and bodies go into no record."""
    return _QUOTED.split(str(error), maxsplit=1)[0]


def values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for known, value in headers if known.lower() == name]


def http2_refusal(refusal: Refusal) -> bytes:
    """The same in HTTP/2: settings, which come first, and a farewell that clients quote."""
    said = struct.pack(">II", 0, _HTTP_1_1_REQUIRED) + f"belljar: {refusal.why}".encode()
    frames = ((_SETTINGS, b""), (_GOAWAY, said))
    return b"".join(
        struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, 0, 0) + payload
        for kind, payload in frames
    )


def refusal_answer(refusal: Refusal) -> tuple[h11.Response, bytes]:
    """What code is told. The sentence is in the status line, too: of an answer to CONNECT clients
    show nothing else."""
    body = f"belljar: {refusal.why}\n{HINTS.get(refusal.verdict, '')}\n".encode()
    headers = [
        ("Content-Type", "text/plain; charset=utf-8"),
        ("Content-Length", str(len(body))),
        ("Connection", "close"),
        ("X-Belljar", refusal.verdict),
    ]
    response = h11.Response(
        status_code=refusal.status, headers=headers, reason=phrase(f"belljar: {refusal.why}")
    )
    return response, body
