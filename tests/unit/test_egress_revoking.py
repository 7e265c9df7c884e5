"""N1: rules that are taken back hold at once, at whatever point a request is.

The parts of a gateway on one loop, with real sockets on loopback: the change comes in each turn of
the loop that a request takes, one after the other.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

import pytest

from belljar.egress import doors, limits, underway
from belljar.egress.ledger import Ledger
from belljar.egress.limits import Limits
from belljar.egress.outlet import Operator, Outlet
from belljar.egress.resolving import Resolver
from belljar.egress.secrets import Keeper
from belljar.egress.streams import Tcp
from belljar.egress.underway import UnderWay
from belljar.network import Allow, Rules, rules

HOST = "api.example.com"
LIMITS = Limits(connections=8, bytes=1 << 20, requests_per_s=1000, connection_s=60, idle_s=60)
MOST_TURNS = 60
PATIENCE_S = 20.0
PLAIN = "GET http://{to}/v1/x HTTP/1.1\r\nHost: {to}\r\n\r\n"
WEBSOCKET = (
    "GET http://{to}/v1/x HTTP/1.1\r\nHost: {to}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
UPLOAD = "POST http://{to}/v1/x HTTP/1.1\r\nHost: {to}\r\nContent-Length: 900\r\n\r\nfirst"
OTHER = "GET http://{to}/v1/x HTTP/1.1\r\nHost: {to}\r\nX-HTTP-Method: DELETE\r\n\r\n"


CASES: dict[str, tuple[str, Callable[[str], Rules]]] = {
    "a stream": (PLAIN, lambda _: ()),
    "a WebSocket": (WEBSOCKET, lambda _: ()),
    "an upload": (UPLOAD, lambda _: ()),
    "another method": (PLAIN, lambda to: rules(Allow(to, methods=("POST",)))),
    "another path": (PLAIN, lambda to: rules(Allow(to, paths=("/v2/*",)))),
    "the method of a header": (OTHER, lambda to: rules(Allow(to, methods=("GET",)))),
}


async def never_done(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A host whose answers never end."""
    head = await reader.readuntil(b"\r\n\r\n")
    writer.write(
        b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
        if b"websocket" in head
        else b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"
    )
    while await reader.read(65_536):
        pass
    writer.close()


async def settled() -> None:
    pass


def lease(given: Rules) -> Outlet:
    return Outlet(
        rules=given,
        limits=LIMITS,
        ledger=Ledger(lambda *_: None, UnderWay(underway.make())),
        keeper=Keeper(),
        operator=Operator(
            allowed=None,
            denied=(),
            resolver=Resolver(names={HOST: "127.0.0.1"}, private=("127.0.0.0/8",)),
        ),
        trust=ssl.create_default_context(),
        certificate=lambda _: ssl.create_default_context(),
        settled=settled,
    )


async def come_to_an_end(ours: socket.socket) -> bytes:
    """What code is told until it is refused or cut off."""
    told = b""
    async with asyncio.timeout(PATIENCE_S):
        while piece := await asyncio.get_running_loop().sock_recv(ours, 65_536):
            told += piece
            if b" 403 belljar" in told:
                break
    return told


@pytest.mark.parametrize("kind", CASES)
def test_n1_what_is_under_way_is_cut_in_whatever_turn(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As after steps that take long, which code can choose: others have their turn behind each.
    monkeypatch.setattr(limits, "_SLICE_S", 0.0)
    request, after = CASES[kind]

    async def main() -> set[bytes]:
        server = await asyncio.start_server(never_done, "127.0.0.1", 0)
        to = f"{HOST}:{server.sockets[0].getsockname()[1]}"
        answers = set()
        for turns in range(MOST_TURNS):
            outlet = lease(rules(to))
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            outlet.begin(Tcp(theirs), doors.proxy)
            ours.send(request.format(to=to).encode())
            for _ in range(turns):
                await asyncio.sleep(0)
            outlet.change(after(to))
            try:
                answers.add((await come_to_an_end(ours))[:12])
            except TimeoutError:
                pytest.fail(f"after {turns} turns it goes on")
            finally:
                ours.close()
                await outlet.close()
        server.close()
        return answers

    seen = asyncio.run(main())
    assert b"HTTP/1.1 403" in seen and seen & {b"HTTP/1.1 200", b"HTTP/1.1 101"}, seen
