"""N1: servers that lie about where an answer ends, or never end it. What code gets is one answer,
written by the gateway; what that costs is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.world.place import World
from tests.world.servers import Visit
from tests.world.ways import Way, reply

HOST = "api.example.com"
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
EVIL = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Evil: 1\r\n\r\nevil"

MALFORMED = {
    "no status line": b"nonsense\r\n\r\n",
    "HTTP/0.9": b"<html>hello</html>",
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "a status of letters": b"HTTP/1.1 abc OK\r\n\r\n",
    "four digits": b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n",
    "nothing": b"",
    "half a head": OK + b"Content-Le",
    "length and chunks": OK
    + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    + EVIL,
    "two lengths": OK + b"Content-Length: 4\r\nContent-Length: 0\r\n\r\n" + EVIL,
    "a negative length": OK + b"Content-Length: -4\r\n\r\n" + EVIL,
    "gzip, chunked": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + EVIL,
    "xchunked": OK + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + EVIL,
    "a NUL in a header": OK + b"X: a\0b\r\nContent-Length: 0\r\n\r\n",
    "a bare CR in a header": OK + b"X: a\rX-Evil: 1\r\nContent-Length: 0\r\n\r\n",
    "space before the colon": OK + b"X-Evil : 1\r\nContent-Length: 0\r\n\r\n",
    "a header of 1 MiB": OK + b"X: " + b"a" * (1 << 20) + b"\r\n\r\n",
    "50,000 headers": OK + b"X: a\r\n" * 50_000 + b"Content-Length: 0\r\n\r\n",
    "switching protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n" + EVIL,
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed(way: Way, world: World, kind: str) -> None:
    world.servers.raw["x"] = MALFORMED[kind]
    answer = way.get(HOST, "/raw/x")
    assert answer.status in (0, 502), answer
    assert "X-Evil" not in answer.headers
    (told,) = way.told(lambda one: one.verdict in ("failed", "blocked"))
    assert told.host == HOST and told.why


SPLITTING = {
    "a folded header": OK + b"X: a\r\n X-Evil: 1\r\nContent-Length: 2\r\n\r\nok",
    "an LF in the reason": b"HTTP/1.1 200 OK\nX-Evil: 1\r\nContent-Length: 2\r\n\r\nok",
    "other digits": OK + "Content-Length: ٢\r\n\r\nok".encode(),
}


@pytest.mark.parametrize("kind", SPLITTING)
def test_splitting(way: Way, world: World, kind: str) -> None:
    """Either it is refused, or it has one meaning, which the gateway wrote down anew."""
    world.servers.raw["x"] = SPLITTING[kind]
    answer = way.get(HOST, "/raw/x")
    assert answer.status in (0, 200, 502), answer
    way.told()


def test_a_second_answer_is_for_nobody(way: Way, world: World) -> None:
    """Behind the first one, and before the next is asked for."""
    world.servers.raw["two"] = OK + b"Content-Length: 2\r\n\r\nok" + EVIL
    with way.dial() as connection:
        for path in ("/raw/two", "/hello"):
            connection.sendall(f"GET http://{HOST}{path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            answer = reply(connection)
            if not answer.status:
                break
            assert answer.body in (b"ok", b"hello\n") and "X-Evil" not in answer.headers
    assert way.get(HOST).body == b"hello\n"


def test_a_body_where_none_belongs(way: Way, world: World) -> None:
    for head in (b"HTTP/1.1 204 No Content\r\n", b"HTTP/1.1 304 Not Modified\r\n"):
        world.servers.raw["x"] = head + b"Content-Length: 4\r\n\r\nevil"
        assert way.get(HOST, "/raw/x").body == b""
    world.servers.raw["x"] = OK + b"Content-Length: 4\r\n\r\nevil"
    data = f"HEAD http://{HOST}/raw/x HTTP/1.1\r\nHost: {HOST}\r\n\r\n"
    with way.dial() as connection:
        connection.sendall(data.encode())
        assert reply(connection, "HEAD").status == 200
        connection.sendall(f"GET http://{HOST}/hello HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        assert reply(connection).body in (b"", b"hello\n")


CUT = {
    "length": OK + b"Content-Length: 1000\r\n\r\npart",
    "chunks": OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\npart\r\n",
    "within a chunk": OK + b"Transfer-Encoding: chunked\r\n\r\nff\r\npart",
    "a bad chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\npart\r\nzz\r\n",
    "a chunk of 2^64": OK
    + b"Transfer-Encoding: chunked\r\n\r\n4\r\npart\r\n"
    + b"f" * 17
    + b"\r\n",
    "an extension of 1 MiB": OK
    + b"Transfer-Encoding: chunked\r\n\r\n4\r\npart\r\n1;"
    + b"e" * (1 << 20),
    "trailers of 1 MiB": OK
    + b"Transfer-Encoding: chunked\r\n\r\n4\r\npart\r\n0\r\nX: "
    + b"t" * (1 << 20),
}


@pytest.mark.parametrize("kind", CUT)
def test_what_is_cut_is_seen_to_be(way: Way, world: World, kind: str) -> None:
    world.servers.raw["x"] = CUT[kind]
    answer = way.get(HOST, "/raw/x")
    assert not answer.whole or answer.status == 502, answer
    way.told(lambda one: one.verdict in ("failed", "blocked") or one.why != "")


def test_an_answer_with_too_many_headers(way: Way, world: World) -> None:
    head = OK + b"Content-Length: 0\r\n"
    world.servers.raw["x"] = head + b"Set-Cookie: a=b\r\n" * 90 + b"\r\n"
    assert way.get(HOST, "/raw/x").status == 200
    world.servers.raw["x"] = head + b"Set-Cookie: a=b\r\n" * 300 + b"\r\n"
    assert way.get(HOST, "/raw/x").status == 502
    way.told(lambda one: one.verdict == "failed" and "headers" in one.why)


SLOW = {
    "a header": OK + b"X: " + b" " * 60_000 + b"\0\r\n\r\n",
    "an interim header": b"HTTP/1.1 103 Hints\r\nX: " + b" " * 60_000 + b"\0\r\n\r\n",
    "a chunk's line": OK + CHUNKED + b"5;" + b" " * 60_000 + b"\nx\r\nhello",
    "behind the chunks": OK + CHUNKED + b"0\r\nX: " + b" " * 60_000 + b"\0\r\n\r\n",
}


@pytest.mark.parametrize("kind", SLOW)
def test_lines_that_take_minutes_to_read_are_refused_unread(
    way: Way, world: World, kind: str
) -> None:
    """The sandbox that asked such a host would lose its network, and others wait for it."""
    world.servers.raw["x"] = SLOW[kind]
    answer = way.get(HOST, "/raw/x")
    assert answer.status == 502 or not answer.whole, answer
    way.told(lambda one: one.verdict == "failed" and "its answer has" in one.why)
    assert way.get(HOST).status == 200


def test_endless_interim_answers(way: Way, world: World) -> None:
    async def endless(_: Visit) -> AsyncIterator[bytes]:
        while True:
            yield b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 100

    world.servers.raw["x"] = endless
    assert way.get(HOST, "/raw/x").status in (0, 502)
    way.told(lambda one: one.verdict in ("failed", "blocked"))


def test_an_endless_head(way: Way, world: World) -> None:
    async def endless(_: Visit) -> AsyncIterator[bytes]:
        yield OK
        while True:
            yield b"X: " + b"a" * 1000 + b"\r\n"
            await asyncio.sleep(0)

    world.servers.raw["x"] = endless
    assert way.get(HOST, "/raw/x").status in (0, 502)
    way.told(lambda one: one.verdict in ("failed", "blocked"))
