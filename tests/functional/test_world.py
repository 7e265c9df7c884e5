"""The tests' own internet does what the tests of the gateway rely on: it answers everywhere, tells
every visit, leads nowhere, and leaves nothing."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import world as worlds
from tests.world.names import rebinding
from tests.world.place import GATEWAY, SERVER, SERVER_6, World

pytestmark = pytest.mark.skipif(bool(worlds.why_not()), reason=worlds.why_not())


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as made:
        yield made


@pytest.mark.parametrize("address", [SERVER, "1.1.1.1", "10.0.0.1", "169.254.169.254", SERVER_6])
def test_every_address_answers_and_is_told(world: World, address: str) -> None:
    world.forget()
    with world.gateway.entered():
        connection = http.client.HTTPConnection(address, 80, timeout=10)
        connection.request("GET", "/hello")
    assert connection.getresponse().read() == b"hello\n"
    assert [visit.address for visit in world.visits] == [address]
    assert bool(world.trespasses) == (address in ("10.0.0.1", "169.254.169.254"))


@pytest.mark.parametrize("address", ["127.0.0.1", GATEWAY, "::1"])
def test_the_gateways_own_host_is_a_trespass(world: World, address: str) -> None:
    world.forget()
    with world.gateway.entered():
        socket.create_connection((address, 80), timeout=10).close()
    with world.gateway.entered():  # one that is answered, so the first was seen
        connection = http.client.HTTPConnection(address, 80, timeout=10)
        connection.request("GET", "/")
    connection.getresponse().read()
    assert len(world.trespasses) == 2


def test_tls_by_name(world: World) -> None:
    world.forget()
    trusting = ssl.create_default_context(cafile=world.authority.file)
    with world.gateway.entered():
        plain = socket.create_connection((SERVER, 443), timeout=10)
    with trusting.wrap_socket(plain, server_hostname="api.example.com") as secured:
        secured.sendall(b"GET /echo HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
        assert secured.recv(1000).startswith(b"HTTP/1.1 200")
    assert world.visits[0].name == "api.example.com"
    world.certificate("old.example.com", world.authority.context("old.example.com", expired=True))
    with world.gateway.entered():
        plain = socket.create_connection((SERVER, 443), timeout=10)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        trusting.wrap_socket(plain, server_hostname="old.example.com")


def test_scripted_names(world: World) -> None:
    world.forget()
    world.names.answers["moving.example.com"] = rebinding("moving.example.com", SERVER, "127.0.0.1")
    question = b"\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"
    question += b"\x06moving\x07example\x03com\x00\x00\x01\x00\x01"
    found = []
    for _ in range(2):
        with world.gateway.entered(), socket.socket(type=socket.SOCK_DGRAM) as asking:
            asking.settimeout(10)
            asking.sendto(question, ("93.184.216.53", 53))
            found.append(socket.inet_ntoa(asking.recv(512)[-4:]))
    assert found == [SERVER, "127.0.0.1"]
    assert world.names.count("moving.example.com") == 2


def test_it_leads_nowhere_and_leaves_nothing(world: World) -> None:
    """The host's own addresses are answered by the world, not by the host."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        for namespace in (world.outside, world.gateway, world.code):
            with namespace.entered(), pytest.raises(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1)
    with World() as other:
        left = [namespace.name for namespace in (other.outside, other.gateway, other.code)]
        assert Path("/etc/netns", other.gateway.name, "resolv.conf").exists()
    for name in left:
        assert not Path("/run/netns", name).exists()
        assert not Path("/etc/netns", name).exists()
