"""N1: requests that say two things at once. What leaves is the one that was judged."""

from __future__ import annotations

import socket

import pytest

from belljar.network import Allow
from tests.world.place import World
from tests.world.ways import Gate, Way, reply

HOST = "api.example.com"
OTHER = "other.example.com"
INNER = f"GET /smuggled HTTP/1.1\r\nHost: {OTHER}\r\n\r\n"
START = f"POST http://{HOST}/first HTTP/1.1\r\nHost: {HOST}\r\n"

CHUNKED = "Transfer-Encoding: chunked\r\n"
SMUGGLING = {
    "CL.TE": f"Content-Length: {len(INNER) + 5}\r\n{CHUNKED}\r\n0\r\n\r\n{INNER}",
    "TE.CL": f"{CHUNKED}Content-Length: 4\r\n\r\n{len(INNER):x}\r\n{INNER}\r\n0\r\n\r\n",
    "two lengths": f"Content-Length: 0\r\nContent-Length: {len(INNER)}\r\n\r\n{INNER}",
    "a list of lengths": f"Content-Length: 0, {len(INNER)}\r\n\r\n{INNER}",
    "a signed length": f"Content-Length: +{len(INNER)}\r\n\r\n{INNER}",
    "a negative length": f"Content-Length: -1\r\n\r\n{INNER}",
    "a hexadecimal length": f"Content-Length: 0x10\r\n\r\n{INNER}",
    "an underscored length": f"Content-Length: 1_0\r\n\r\n{INNER}",
    "no digits": f"Content-Length: \r\n\r\n{INNER}",
    "other digits": f"Content-Length: ٣\r\n\r\n{INNER}",
    "space before the colon": f"Content-Length : {len(INNER)}\r\n\r\n{INNER}",
    "xchunked": f"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{INNER}",
    "chunked, identity": f"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{INNER}",
    "gzip, chunked": f"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n{INNER}",
    "twice chunked": f"{CHUNKED}{CHUNKED}\r\n0\r\n\r\n{INNER}",
    "chunked\\x0b": f"Transfer-Encoding: chunked\x0b\r\n\r\n0\r\n\r\n{INNER}",
    "\\x0bchunked": f"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n{INNER}",
    "quoted": f'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n{INNER}',
    "folded": f"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n{INNER}",
    "a folded header": f"X-Long: one\r\n two\r\nContent-Length: 0\r\n\r\n{INNER}",
    "a bare LF": f"X: one\n{CHUNKED}Content-Length: 5\r\n\r\n0\r\n\r\n{INNER}",
    "a bare CR": f"X: one\r{CHUNKED}Content-Length: 5\r\n\r\n0\r\n\r\n{INNER}",
    "a NUL": f"X: one\0{CHUNKED}Content-Length: 0\r\n\r\n{INNER}",
    "a space before the name": f" {CHUNKED}Content-Length: 0\r\n\r\n{INNER}",
    "no colon": f"Transfer-Encoding chunked\r\nContent-Length: 0\r\n\r\n{INNER}",
    "a bad chunk": f"{CHUNKED}\r\nzz\r\n{INNER}",
    "a signed chunk": f"{CHUNKED}\r\n-1\r\n{INNER}",
    "a prefixed chunk": f"{CHUNKED}\r\n0x0\r\n\r\n{INNER}",
    "a huge chunk": f"{CHUNKED}\r\n{'f' * 30}\r\n{INNER}",
    "chunk ended by LF": f"{CHUNKED}\r\n1\na\n0\n\n{INNER}",
    "chunk without its end": f"{CHUNKED}\r\n1\r\naXX0\r\n\r\n{INNER}",
    "an LF in an extension": f"{CHUNKED}\r\n1;\n{INNER}\r\na\r\n0\r\n\r\n",
}


UNTOLD = {
    "an odd byte in a query": b"GET http://api.example.com/a?key=hidden\x80 HTTP/1.1\r\n\r\n",
    "https, not by CONNECT": b"GET https://x.example/a?key=hidden HTTP/1.1\r\nHost: x\r\n\r\n",
    "a password": b"GET http://me:hidden@api.example.com/ HTTP/1.1\r\nHost: x\r\n\r\n",
    "a password, CONNECT": b"CONNECT me:hidden@api.example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    "a header": START.encode() + b"Authorization : Bearer hidden\r\n\r\n",
    "a body": START.encode() + CHUNKED.encode() + b"\r\nhidden\r\n",
}


@pytest.mark.parametrize("kind", UNTOLD)
def test_no_record_has_what_records_never_have(way: Way, world: World, kind: str) -> None:
    """Queries, credentials, bodies: also not where a refusal quotes what it refuses."""
    way.ask(UNTOLD[kind])
    assert way.stopped() and "hidden" not in repr(way.egress)


OVERRIDES = {
    "X-HTTP-Method-Override: DELETE": 403,
    "x-http-method: delete": 403,
    "X-Method-Override: GET, DELETE": 403,
    "X-HTTP-Method-Override: GET": 200,
    "X-Original-URL: /admin": 403,
    "SCRIPT_NAME: /v1": 403,
    "Script-Name: /v1": 403,
    "X-Forwarded-Prefix: /v1": 403,
    "X-Forwarded-For: 192.0.2.1": 200,
    "X-Forwarded-Proto: https": 200,
    "X-Amz-Copy-Source: /other/key": 403,
    "X-Copy-From: other/key": 403,
    "X-Symlink-Target: other/key": 403,
    "X-MS-Original-URL: /admin": 403,
    "X-HTTP-Path-Override: /admin": 403,
    "X-Ms-Rename-Source: /other": 403,
    "X-Rewrite-URL: /v1/x": 403,
    "X_HTTP_Method_Override: DELETE": 403,
    "X.HTTP_Method: DELETE": 403,
    "X_Original_URL: /admin": 403,
    "X-Original-Uri: /admin": 403,
    "X-Forwarded-Path: /admin": 403,
    "X-Envoy-Original-Path: /admin": 403,
    "Destination: /admin/x": 403,
    "Destination: /v1/../admin": 403,
    "Destination: https://elsewhere.example.com/v1/x": 403,
    f"Destination: http://{HOST}/admin": 403,
    f"Destination: //{HOST}/v1/x": 403,
    "Destination: /v1/y": 200,
    f"Destination: http://{HOST}/v1/y?z": 200,
}


@pytest.mark.parametrize("header", OVERRIDES)
def test_a_header_that_names_another_method_or_path(gate: Gate, world: World, header: str) -> None:
    with gate.open(Allow(HOST, methods=("GET", "POST"), paths=("/v1/*",))) as way:
        name, _, value = header.partition(": ")
        assert way.get(HOST, "/v1/hello", **{name: value}).status == OVERRIDES[header]
    assert len(world.visits) == (OVERRIDES[header] == 200)


def test_headers_without_end_are_refused_before_they_are_read(way: Way, world: World) -> None:
    """Each is looked at several times, in a process that others use."""
    few = "".join(f"X-{number}: x\r\n" for number in range(250))
    lines = "\n" * 2000
    start = f"GET http://{HOST}/hello HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {len(lines)}\r\n"
    assert way.ask(f"{start}{few}\r\n{lines}".encode()).status == 200
    many = "".join(f"X-{number}: x\r\n" for number in range(3000))
    answer = way.ask(f"{start}{many}\r\n{lines}".encode())
    assert answer.status == 400 and "headers" in answer.reason
    others = "".join(f"X-HTTP-Method: {method}\r\n" for method in ("GET", "A", "B", "C", "D"))
    answer = way.ask(f"{start}{others}\r\n{lines}".encode())
    assert answer.status == 403 and "other methods" in answer.reason
    assert len(way.stopped(count=2)) == 2 and len(world.visits) == 1


BLANKS = b" " * 60_000
SLOW = {
    "a header": START.encode() + b"X: " + BLANKS + b"\0\r\n\r\n",
    "a header of tabs": START.encode() + b"X:" + b"\t" * 60_000 + b"\x0b\r\n\r\n",
    "a chunk's line": START.encode() + CHUNKED.encode() + b"\r\n5;" + BLANKS + b"\nx\r\nhello",
    "behind the chunks": START.encode()
    + CHUNKED.encode()
    + b"\r\n5\r\nhello\r\n0\r\nX: "
    + BLANKS
    + b"\0\r\n\r\n",
}


@pytest.mark.parametrize("kind", SLOW)
def test_lines_that_take_minutes_to_read_are_refused_unread(way: Way, kind: str) -> None:
    """One would keep all sandboxes of the process waiting; its own would lose its network."""
    answer = way.ask(SLOW[kind])
    assert answer.status in (0, 400), answer
    assert "HTTP" in way.stopped()[0].why
    assert way.get(HOST).status == 200


def not_smuggled(world: World) -> None:
    for visit in world.visits:
        for head in visit.heads:
            assert not head.startswith(b"GET /smuggled"), visit.raw
            assert head.lower().count(b"content-length") + head.count(b"chunked") <= 1, head


@pytest.mark.parametrize("kind", SMUGGLING)
def test_smuggling(way: Way, world: World, kind: str) -> None:
    answer = way.ask((START + SMUGGLING[kind]).encode("utf-8"))
    if answer.status != 200:  # else it has one meaning, and the server saw that one
        assert answer.status in (0, 400, 403, 501), answer
        way.stopped()
    else:
        assert kind in ("chunk ended by LF", "a prefixed chunk", "an LF in an extension"), answer
    not_smuggled(world)


@pytest.mark.parametrize("kind", SMUGGLING)
def test_smuggling_inside_tls(way: Way, world: World, kind: str) -> None:
    with way.secure(f"{HOST}:443") as connection:
        start = f"POST /first HTTP/1.1\r\nHost: {HOST}\r\n"
        connection.sendall((start + SMUGGLING[kind]).encode("utf-8"))
        answer = reply(connection)
    if answer.status != 200:
        assert answer.status in (0, 400, 403, 501), answer
        way.stopped()
    not_smuggled(world)


def test_a_second_request_behind_the_first_is_judged(way: Way, world: World) -> None:
    first = f"GET http://{HOST}/first HTTP/1.1\r\nHost: {HOST}\r\n\r\n"
    second = f"GET http://{OTHER}/smuggled HTTP/1.1\r\nHost: {OTHER}\r\n\r\n"
    world.answers(OTHER)
    with way.dial() as connection:
        connection.sendall((first + second).encode())
        assert reply(connection).status == 200
        assert reply(connection).status in (0, 403)
    assert way.stopped()[0].host == OTHER
    not_smuggled(world)


def test_a_second_request_in_a_tunnel_is_for_the_same_host(way: Way, world: World) -> None:
    with way.secure(f"{HOST}:443") as connection:
        connection.sendall(f"GET /first HTTP/1.1\r\nHost: {HOST}\r\n\r\n{INNER}".encode())
        assert reply(connection).status == 200
        assert reply(connection).status in (0, 400, 403)
    way.stopped()
    not_smuggled(world)


@pytest.mark.parametrize("method", ["POST", "GET", "HEAD"])
def test_a_request_in_a_body_stays_in_it(way: Way, world: World, method: str) -> None:
    head = f"{method} http://{HOST}/first HTTP/1.1\r\nHost: {HOST}\r\n"
    with way.dial() as connection:
        connection.sendall(f"{head}Content-Length: {len(INNER)}\r\n\r\n{INNER}".encode())
        answer = reply(connection, method)
    assert answer.status == 200
    assert [len(visit.heads) for visit in world.visits] == [1]
    assert world.visits[0].bodies[0] == INNER.encode()


UNLIKE = {
    "Host": f"GET http://{HOST}/ HTTP/1.1\r\nHost: {OTHER}\r\n\r\n",
    "the allowed one is only in Host": f"GET http://{OTHER}/ HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "port in Host": f"GET http://{HOST}/ HTTP/1.1\r\nHost: {HOST}:8080\r\n\r\n",
    "port in the address": f"GET http://{HOST}:8080/ HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "no Host": f"GET http://{HOST}/ HTTP/1.1\r\n\r\n",
    "an empty Host": f"GET http://{HOST}/ HTTP/1.1\r\nHost:\r\n\r\n",
    "two": f"GET http://{HOST}/ HTTP/1.1\r\nHost: {HOST}\r\nHost: {OTHER}\r\n\r\n",
    "two alike": f"GET http://{HOST}/ HTTP/1.1\r\nHost: {HOST}\r\nHost: {HOST}\r\n\r\n",
    "a list": f"GET http://{HOST}/ HTTP/1.1\r\nHost: {HOST}, {OTHER}\r\n\r\n",
    "space before the colon": f"GET http://{HOST}/ HTTP/1.1\r\nHost : {OTHER}\r\n\r\n",
    "folded": f"GET http://{HOST}/ HTTP/1.1\r\nHost: {HOST}\r\n {OTHER}\r\n\r\n",
    "CONNECT": f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {OTHER}:443\r\n\r\n",
    "https without CONNECT": f"GET https://{HOST}/ HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "ftp": f"GET ftp://{HOST}/ HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "file": "GET file:///etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "gopher": f"GET gopher://{HOST}:25/_HELO HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "no scheme": f"GET //{HOST}/ HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "a path only": f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "a backslash": f"GET http:\\\\{HOST}/ HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "HTTP/0.9": f"GET http://{HOST}/\r\n\r\n",
    "HTTP/1.0 without Host": f"GET http://{OTHER}/ HTTP/1.0\r\n\r\n",
    "HTTP/2.0": f"GET http://{HOST}/ HTTP/2.0\r\nHost: {HOST}\r\n\r\n",
    "HTTP/2 by prior knowledge": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
    "TRACE": f"TRACE http://{HOST}:22/ HTTP/1.1\r\nHost: {HOST}:22\r\n\r\n",
    "a method with LF": f"GET\nX http://{HOST}/ HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "CRLF in the address": f"GET http://{HOST}/\r\nX: / HTTP/1.1\r\nHost: {OTHER}\r\n\r\n",
    "nonsense": "\x16\x03\x01 nonsense\r\n\r\n",
    "SSH": "SSH-2.0-OpenSSH_9.6\r\n",
    "SOCKS 4": "\x04\x01\x00\x50\x7f\x00\x00\x01user\0",
    "SOCKS 4a": f"\x04\x01\x00\x50\x00\x00\x00\x01user\0{HOST}\0",
}


@pytest.mark.parametrize("kind", UNLIKE)
def test_one_target_or_none(way: Way, world: World, kind: str) -> None:
    world.answers(OTHER)
    with way.dial() as connection:
        connection.sendall(UNLIKE[kind].encode("latin-1"))
        connection.shutdown(socket.SHUT_WR)
        answer = reply(connection)
    assert answer.status in (0, 400, 403, 405, 501, 505), answer
    assert world.visits == []
    way.stopped()


AT_PORT_80 = {
    "an address for another": f"GET http://{OTHER}/ HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "an address allowed, Host not": f"GET http://{HOST}/ HTTP/1.1\r\nHost: {OTHER}\r\n\r\n",
    "CONNECT": f"CONNECT {OTHER}:443 HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "port": f"GET / HTTP/1.1\r\nHost: {HOST}:8080\r\n\r\n",
    "another": f"GET / HTTP/1.1\r\nHost: {OTHER}\r\n\r\n",
    "user": f"GET / HTTP/1.1\r\nHost: {HOST}@{OTHER}\r\n\r\n",
    "no Host": "GET / HTTP/1.0\r\n\r\n",
}


@pytest.mark.parametrize("kind", AT_PORT_80)
def test_one_target_or_none_without_a_proxy(way: Way, world: World, kind: str) -> None:
    world.answers(OTHER)
    answer = way.ask(AT_PORT_80[kind].encode(), door="http")
    assert answer.status in (0, 400, 403, 405), answer
    assert world.visits == []
    way.stopped()


IN_A_TUNNEL = {
    "Host": f"GET / HTTP/1.1\r\nHost: {OTHER}\r\n\r\n",
    "Host with a port": f"GET / HTTP/1.1\r\nHost: {HOST}:8443\r\n\r\n",
    "an address": f"GET https://{OTHER}/ HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "a plain address": f"GET http://{OTHER}/ HTTP/1.1\r\nHost: {OTHER}\r\n\r\n",
    "CONNECT": f"CONNECT {OTHER}:443 HTTP/1.1\r\nHost: {OTHER}\r\n\r\n",
    "CONNECT to the same": f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "two Hosts": f"GET / HTTP/1.1\r\nHost: {HOST}\r\nHost: {OTHER}\r\n\r\n",
    "HTTP/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
}


@pytest.mark.parametrize("kind", IN_A_TUNNEL)
def test_one_target_or_none_inside_tls(way: Way, world: World, kind: str) -> None:
    world.answers(OTHER)
    with way.secure(f"{HOST}:443") as connection:
        connection.sendall(IN_A_TUNNEL[kind].encode())
        answer = reply(connection)
    assert answer.status in (0, 400, 403, 405, 501, 505), answer
    assert not any(visit.heads for visit in world.visits)
    way.stopped()


PATHS = [
    "/admin",
    "/v1/../admin",
    "/v1/%2e%2e/admin",
    "/v1/%2E%2E%2Fadmin",
    "/v1/..;/admin",
    "/v1/..%5cadmin",
    "/v1\\..\\admin",
    "/v1/.%2e/admin",
    "/v1/%252e%252e/admin",
    "/v1/%00/../admin",
    "/v1/%c0%ae%c0%ae/admin",
    "/v1/%u002e%u002e/admin",
    "/v1/%25u002e%25u002e/admin",
    "/v1/.%09./admin",
    "/v1/..%20/admin",
    "/v1/..%0d/admin",
    "/v1/%ef%bc%8e%ef%bc%8e/admin",
    "/v1/%e2%80%a5%c2%a0/admin",
    "/v1/..%ef%bc%8fadmin",
    "//v1/x",
    "/V1/x",
    "/v1",
    "/%76%31/../admin",
    "/?/v1/x",
    "*",
]


@pytest.mark.parametrize("path", PATHS)
def test_paths_that_servers_read_differently(gate: Gate, world: World, path: str) -> None:
    with gate.open(Allow(HOST, methods=("GET",), paths=("/v1/*",))) as way:
        with way.secure(f"{HOST}:443") as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            assert reply(connection).status in (0, 400, 403)
        assert way.get(HOST, path).status in (0, 400, 403)
        assert not any(visit.heads for visit in world.visits)
        way.stopped(count=2)
        assert way.get(HOST, "/v1/x").status == 200


@pytest.mark.parametrize(
    "more",
    [
        "X-HTTP-Method-Override: DELETE",
        "X-Original-URL: /admin",
        "X-Rewrite-URL: /admin",
        "Connection: host, authorization",
        "Connection: close, X-Forwarded-For",
        "Proxy-Connection: keep-alive",
        "Proxy-Authorization: Basic eA==",
        "Keep-Alive: timeout=5",
        "TE: trailers, deflate",
        "Trailer: Host",
    ],
)
def test_hop_by_hop_ends_at_the_gateway(way: Way, world: World, more: str) -> None:
    answer = way.ask(f"GET http://{HOST}/x HTTP/1.1\r\nHost: {HOST}\r\n{more}\r\n\r\n".encode())
    assert answer.status in (200, 400, 403)
    for visit in world.visits:
        head = visit.heads[0].lower()
        assert head.count(b"\r\nhost: api.example.com\r\n") == 1
        for name in (b"proxy-", b"keep-alive:", b"\r\nte:", b"trailer:"):
            assert name not in head, head


@pytest.mark.parametrize("method", ["DELETE", "delete", "G3T", "PROPFIND", "get"])
def test_methods(gate: Gate, world: World, method: str) -> None:
    with gate.open(Allow(HOST, methods=("GET",))) as way:
        answer = way.ask(f"{method} http://{HOST}/ HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        assert answer.status in (400, 403, 405)
        assert world.visits == []
        way.stopped()
