"""N1: what a name leads to. Only public addresses are dialled, those that were checked."""

from __future__ import annotations

import itertools
import socket
import threading
import urllib.error
import urllib.request

import pytest

from belljar.network import Allow
from tests.world.names import AAAA, CNAME, A, Records, rebinding
from tests.world.place import GATEWAY, GATEWAY_6, SERVER, SERVER_6, World
from tests.world.ways import Gate, Way, eventually

HOST = "api.example.com"
NEVER = [
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",  # metadata of a cloud
    "168.63.129.16",  # a cloud's host agent, and not private
    "169.254.169.254",
    "169.254.170.2",
    "172.16.0.1",
    "172.31.255.254",
    "192.0.0.192",  # metadata of a cloud
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    GATEWAY,  # public, and the gateway's own
    "93.184.216.255",  # its network's broadcast
    "::1",
    "::",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0:127.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::10.0.0.1",
    "100::1",
    "2001::1",
    "2001:0:4136:e378:8000:63bf:80ff:fffe",  # Teredo of 127.0.0.1
    "2001:db8::1",
    "2002:7f00:1::1",
    "2002:a9fe:a9fe::1",
    "2606:2800:220:1:0:5efe:127.0.0.1",  # ISATAP of 127.0.0.1
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",  # metadata of a cloud
    "fe80::1",
    "fec0::1",
    "ff02::1",
    GATEWAY_6,
]


@pytest.mark.parametrize("address", NEVER)
def test_never_dialled(way: Way, world: World, address: str) -> None:
    world.answers(HOST, address)
    assert way.get(HOST).status == 403
    connection, answer = way.connect(f"{HOST}:443")
    connection.close()
    assert answer.status == 403
    assert world.visits == []
    told = way.stopped(count=2)
    assert {one.verdict for one in told} == {"blocked"}
    assert {one.host for one in told} == {HOST}


@pytest.mark.parametrize("address", ["1.1.1.1", SERVER_6, "172.32.0.1", "64:ff9b::101:101"])
def test_public_ones_are(way: Way, world: World, address: str) -> None:
    world.answers(HOST, address)
    assert way.get(HOST, "/hello?secret=query").body == b"hello\n"
    (told,) = way.told(lambda one: one.verdict == "allowed")
    assert (told.host, told.port, told.method, told.path) == (HOST, 80, "GET", "/hello")
    assert (told.status, told.rule, told.count) == (200, HOST, 1)
    assert told.address == address and told.bytes_received >= 6 and told.bytes_sent > 0
    assert [visit.address for visit in world.visits] == [address]


def test_good_answers_among_bad_ones(way: Way, world: World) -> None:
    world.answers(HOST, "10.0.0.1", "127.0.0.1", SERVER, "169.254.169.254", "::1")
    for _ in range(5):
        assert way.get(HOST).status == 200
    assert {visit.address for visit in world.visits} == {SERVER}


def test_rebinding(way: Way, world: World) -> None:
    """One look-up per connection; the next one is judged anew (and a pooled one is the old one)."""
    world.names.answers[HOST] = rebinding(HOST, SERVER, "127.0.0.1")
    assert way.get(HOST).status == 200
    assert world.names.count(HOST) == 1
    for _ in range(3):
        assert way.get(HOST).status in (200, 403)
    connection, _ = way.connect(f"{HOST}:443")
    connection.close()
    assert {visit.address for visit in world.visits} <= {SERVER}


def test_rebinding_within_one_look_up(way: Way, world: World) -> None:
    """Good by IPv4 and bad by IPv6, or the second time within a connection's attempts."""

    def answer(kind: int, count: int) -> Records:
        if kind == AAAA:
            return [(HOST, AAAA, "::ffff:127.0.0.1"), (HOST, AAAA, "::1")]
        return [(HOST, A, SERVER if count == 1 else "10.0.0.1")]

    world.names.answers[HOST] = answer
    assert way.get(HOST).status == 200
    assert way.get(HOST).status in (200, 403)


def test_aliases_lead_to_the_same_judgement(way: Way, world: World) -> None:
    def chain(end: str) -> object:
        names = [HOST, "one.example.net", "two.example.net", "localhost"]
        links = [(a, CNAME, b) for a, b in itertools.pairwise(names)]
        return lambda kind, _: [*links, (names[-1], A, end)] if kind == A else links

    world.names.answers[HOST] = chain("127.0.0.1")  # type: ignore[assignment]
    assert way.get(HOST).status == 403
    world.names.answers[HOST] = chain(SERVER)  # type: ignore[assignment]
    assert way.get(HOST).status == 200


def test_many_answers(way: Way, world: World) -> None:
    """All bad but the last; and a hundred good ones of which none answers is bounded."""
    world.answers(HOST, *(f"10.0.0.{number}" for number in range(1, 100)), SERVER)
    assert way.get(HOST).status in (200, 403)
    assert {visit.address for visit in world.visits} <= {SERVER}


def test_names_that_are_not(way: Way, world: World) -> None:
    assert way.get("no.wild.example.com").status == 502
    (told,) = way.told()
    assert told.verdict == "failed" and told.host == "no.wild.example.com" and told.why
    world.answers("empty.wild.example.com", "::1")
    assert way.get("empty.wild.example.com").status == 403


def test_a_slow_look_up_holds_up_nobody_else(gate: Gate, way: Way, world: World) -> None:
    """A sandbox waits for its own look-ups, another is served meanwhile."""
    slow = [f"slow{number}.wild.example.com" for number in range(6)]
    world.names.silent |= set(slow)
    threads = [threading.Thread(target=way.get, args=(name,)) for name in slow]
    for thread in threads:
        thread.start()
    eventually(lambda: any(name in slow for name, _ in world.names.asked))
    with gate.open(Allow(HOST)) as other:
        assert other.get(HOST).status == 200
    for thread in threads:
        thread.join()
    way.told(lambda one: one.verdict == "failed", count=len(slow))


@pytest.mark.parametrize(
    "to",
    [
        "http://127.0.0.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[::1]/",
        "http://localhost/",
        "http://inside.wild.example.com/",
        f"https://{HOST}:22/",
    ],
)
def test_a_redirect_is_a_request_like_any_other(way: Way, world: World, to: str) -> None:
    """NW-22: a client that follows it asks the gateway again, and is judged again."""
    world.answers("inside.wild.example.com", "10.0.0.1")
    proxies = dict.fromkeys(("http", "https"), way.proxy)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
    with world.code.entered(), pytest.raises(urllib.error.URLError, match="403"):
        opener.open(f"http://{HOST}/redirect?to={to}", timeout=30)
    assert len(world.visits) == 1
    way.told(lambda one: one.status == 302)
    way.stopped()


def test_nw_22_rebinding_and_the_hosts_listener(gate: Gate, world: World) -> None:
    """NW-22, the other half: the name is allowed, public for the first look-up, and the host's
    loopback or its metadata address for every other (TTL 0)."""
    with gate.open(Allow("rebind.example.com", "rebind.example.com:8080")) as way:
        for then in ("127.0.0.1", "169.254.169.254", GATEWAY):
            name = "rebind.example.com"
            world.names.answers[name] = rebinding(name, SERVER, then)
            world.names.asked.clear()
            for target in (name, f"{name}:8080", name):
                way.get(target)
            way.stopped()
    assert {visit.address for visit in world.visits} == {SERVER}


def test_the_world_would_have_noticed(world: World) -> None:
    """The same dials without a gateway in between do arrive."""
    for address in ("127.0.0.1", "10.0.0.1", GATEWAY):
        with world.gateway.entered():
            socket.create_connection((address, 80), timeout=30).close()
    eventually(lambda: len(world.trespasses) == 3)
    world.forget()
