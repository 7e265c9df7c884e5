"""A connection to a host is used again only if nothing has come on it since (N2)."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import h11
import pytest

from belljar.egress import tls
from belljar.egress.exchange import Upstream
from belljar.egress.http import Http
from belljar.egress.limits import Connection, Limits, Watched
from belljar.egress.streams import Tcp
from belljar.egress.targets import Target
from tests.world.certificates import Authority

HOST = "api.example.com"
LIMITS = Limits(connections=1, bytes=1000, requests_per_s=1, connection_s=60, idle_s=60)


@pytest.mark.parametrize("records", [1, 2])
def test_a_response_that_nobody_asked_for(records: int, tmp_path: Path) -> None:
    """In a TLS record of its own, which was read from the socket together with the one before."""
    authority = Authority(tmp_path)

    async def main() -> bool:
        ours, theirs = socket.socketpair()
        tcp = Tcp(ours)
        host = Tcp(theirs)
        trust = ssl.create_default_context(cafile=str(authority.file))
        serving = asyncio.create_task(tls.answer(host, authority.context(HOST)))
        stream = await tls.ask(tcp, trust, HOST)
        server = await serving
        meter = Watched(tcp, Connection(LIMITS, tcp))
        upstream = Upstream(Target(HOST, 443), Http(stream, h11.CLIENT), tcp, meter, "")
        await server.write(b"first")
        assert await stream.read() == b"first"  # and what belongs to the handshake
        assert upstream.is_quiet()
        for _ in range(records):
            await server.write(b"more")
        assert await stream.read() == b"more"
        try:
            return upstream.is_quiet()
        finally:
            tcp.close()
            host.close()

    assert asyncio.run(main()) == (records == 1)
