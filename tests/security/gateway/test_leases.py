"""N1: connections come to their end with their lease and with the rules that allowed them."""

from __future__ import annotations

import select
import ssl
from pathlib import Path

import pytest

from belljar.network import Allow
from tests.world.place import World
from tests.world.ways import Gate, Way, ended, eventually, reply

HOST = "api.example.com"


def start(path: str) -> bytes:
    return f"GET http://{HOST}{path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()


def test_a_lease_that_ends_cuts_everything(gate: Gate, world: World) -> None:
    way = gate.open(Allow(HOST), Allow(HOST, "blind.wild.example.com", inspect=False))
    world.answers("blind.wild.example.com")
    waiting = way.dial()
    waiting.sendall(start("/deaf"))
    tunnel = way.secure("blind.wild.example.com:443", context=_careless())
    resting = way.dial()
    eventually(lambda: len(world.visits) == 2)
    way.close()
    told = [one for one in way.egress if one.host]
    assert {one.host for one in told} == {HOST, "blind.wild.example.com"}
    assert [ended(connection) for connection in (waiting, tunnel, resting)] == [True] * 3
    eventually(lambda: all(visit.ended.is_set() for visit in world.visits if visit.name))
    with pytest.raises(OSError):
        way.dial()


def test_a_lease_that_ends_at_once_leaves_nothing(gate: Gate) -> None:
    """A connection that has just been accepted, of which nothing was done yet, is closed, too."""
    folder = Path(f"/proc/{gate.pid}/fd")
    before = len(list(folder.iterdir()))
    for _ in range(20):
        way = gate.open(Allow(HOST))
        connection = way.dial()
        way.close()
        assert ended(connection)
    eventually(lambda: len(list(folder.iterdir())) <= before)


def test_a_change_of_rules_cuts_what_they_do_not_name(gate: Gate, world: World) -> None:
    other = "other.wild.example.com"
    world.answers(other)
    with gate.open(Allow(HOST), Allow(other)) as way:
        stays, goes = way.secure(f"{HOST}:443"), way.dial()
        goes.sendall(start("/deaf").replace(HOST.encode(), other.encode()))
        kept = way.dial()  # alive between two requests to what is not allowed any more
        kept.sendall(start("/hello").replace(HOST.encode(), other.encode()))
        assert reply(kept).status == 200
        eventually(lambda: len(world.visits) >= 2)
        way.change(Allow(HOST))
        assert ended(goes)
        kept.sendall(start("/hello").replace(HOST.encode(), other.encode()))
        assert reply(kept).status in (0, 403)
        stays.sendall(f"GET /hello HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        assert reply(stays).status == 200
        assert way.get(other).status == 403
        way.change()
        stays.sendall(f"GET /hello HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        assert reply(stays).status in (0, 403)
        way.stopped(count=3)


def test_a_change_of_paths_cuts_what_is_under_way(gate: Gate, world: World) -> None:
    with gate.open(Allow(HOST)) as way, way.dial() as goes:
        goes.sendall(start("/deaf"))
        eventually(lambda: world.visits)
        way.change(Allow(HOST, paths=("/deaf",)))
        way.change(Allow(HOST, paths=("/v1/*",)))
        assert ended(goes)
        assert "any more" in way.stopped()[0].why


def test_connections_at_once(world: World) -> None:
    """All places taken by requests that get no answer: more are refused, others' are free."""
    with (
        Gate(world, network_connections=8) as gate,
        gate.open(Allow(HOST)) as way,
        gate.open(Allow(HOST)) as bystander,
    ):
        _crowd(way, bystander)


def _crowd(way: Way, bystander: Way) -> None:
    taken = [way.dial() for _ in range(8)]
    for connection in taken:
        connection.sendall(start("/deaf"))
    eventually(lambda: len(way.world.visits) == 8)
    more = [way.dial() for _ in range(20)]
    for connection in more:
        connection.sendall(start("/hello"))
    assert bystander.get(HOST).status == 200
    # As many as there are places wait for one; the others are told so at once.
    way.told(lambda one: one.verdict == "refused" and "connections" in one.why, count=12)
    answered = eventually(lambda: select.select(more, [], [], 0)[0])
    assert all(reply(connection).status == 503 for connection in answered)
    for connection in taken + more:
        connection.close()


def _careless() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
