"""N1: lines that h11 would take minutes to refuse never reach it; proper ones do, however cut."""

from __future__ import annotations

from collections.abc import Sequence

import h11
import pytest

from belljar.egress.http import Http, Odd

HEADS = {
    h11.SERVER: b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
    h11.CLIENT: b"HTTP/1.1 103 Hints\r\nA: b\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
}
CHUNKS = b"5;a=b\r\n\x00\x01\r\n\n\r\n03 \r\n\r\n0\r\n00\r\nX-T: v\r\n\r\n"
BODY = b"\x00\x01\r\n\n\r\n0"
BLANKS = b" " * 60_000


class Nowhere:
    """What `Http` itself never reads or writes."""

    async def read(self) -> bytes:
        raise AssertionError

    async def write(self, data: bytes) -> None:
        raise AssertionError

    async def end(self) -> None:
        raise AssertionError

    def close(self) -> None:
        raise AssertionError


def read(role: type[h11.CLIENT] | type[h11.SERVER], data: bytes, cuts: Sequence[int]) -> bytes:
    """The body that comes of it."""
    side, body = Http(Nowhere(), role), b""
    if role is h11.CLIENT:
        side.state.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
        side.state.send(h11.EndOfMessage())
    pieces = [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    while True:
        event = side.ready()
        if event is None:
            side.feed(pieces.pop(0))
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return body
        elif isinstance(event, h11.Request):
            side.check_head(event)


@pytest.mark.parametrize("role", HEADS)
def test_n1_proper_lines_pass_wherever_they_are_cut(
    role: type[h11.CLIENT] | type[h11.SERVER],
) -> None:
    head = HEADS[role]
    data = head + CHUNKS
    for first in range(1, len(data)):
        assert read(role, data, [first]) == BODY, first
    for first in range(len(head), len(data)):
        for second in range(first + 1, len(data)):
            assert read(role, data, [first, second]) == BODY, (first, second)
    assert read(role, data, range(1, len(data))) == BODY


ODD = {
    "a NUL": (True, b"X: " + BLANKS + b"\0\r\n\r\n"),
    "a vertical tab": (True, b"X: " + BLANKS + b"\x0b\r\n\r\n"),
    "a bare CR": (True, b"X: " + BLANKS + b"\rx\r\n\r\n"),
    "blanks alone": (True, b"X: " + BLANKS + b"x\r\n\r\n"),
    "tabs and blanks": (True, b"X: " + b" \t" * 200 + b"x\r\n\r\n"),
    "headers": (True, b"a:\r\n" * 300 + b"\r\n"),
    "a chunk's extension": (False, b"5;" + BLANKS + b"\nx\r\nhello"),
    "behind the last chunk": (False, b"0\r\nX: " + BLANKS + b"\0\r\n\r\n"),
    "behind a chunk": (False, b"5\r\nhello\r\n0\r\nX: " + BLANKS + b"\0\r\n\r\n"),
    "many behind the last chunk": (False, b"0\r\n" + b"a:\r\n" * 300 + b"\r\n"),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("role", HEADS)
def test_n1_lines_that_take_long_are_refused_unread(
    role: type[h11.CLIENT] | type[h11.SERVER], kind: str
) -> None:
    in_head, odd = ODD[kind]
    head = HEADS[role][:-2] if in_head else HEADS[role]
    data = head + odd
    for cuts in ([], *([len(head) + at] for at in (0, 1, 3, 10, 13))):
        with pytest.raises(Odd):
            read(role, data, cuts)
