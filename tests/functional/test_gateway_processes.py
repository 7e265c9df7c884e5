"""N1, N2, F2: one tenant's gateway is no other's, and one that is lost is followed by another."""

from __future__ import annotations

import contextlib
import http.server
import os
import resource
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from belljar.egress import gateway as gateways
from belljar.egress import running
from belljar.errors import NetworkUnavailable
from belljar.network import (
    MOST_HOSTS_TOGETHER,
    MOST_PATH_CHARACTERS,
    Allow,
    Egress,
    Secret,
    rules,
)
from tests.functional.test_gateway import VALUE, Place, Way, _eventually

MANY = [Allow(*(f"h{n}.{'a' * 60}.{one * 60}.test" for n in range(200))) for one in "abcd"]
"""More than fits one message to the gateway."""


class Tenants(Place):
    """As the place of the tests of one gateway, for several tenants."""

    @contextlib.contextmanager
    def of(self, tenant: str, *given: Allow | str, **secrets: Secret) -> Iterator[Way]:
        told: list[Egress] = []
        opening = self.gateway.open(
            rules(given or (f"api.test:{self.http}",)),
            secrets,
            on_egress=told.append,
            tenant=tenant,
        )
        lease = self.portal.run(opening)
        try:
            yield Way(self, lease, told)
        finally:
            self.portal.run(lease.close())

    @property
    def pids(self) -> set[int]:
        return {process.pid for process in self.gateway.processes}

    def url(self, path: str = "/") -> str:
        return f"http://api.test:{self.http}{path}"


def _pid(way: Way) -> int:
    return way.lease._begun().pid


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Tenants]:
    made = Tenants(tmp_path)
    yield made
    made.close()


# -- each its own ---------------------------------------------------------------------------------


def test_f2_a_gateway_that_hangs_is_one_tenants_and_soon_another(place: Tenants) -> None:
    with place.of("a") as first, place.of("b") as other:
        hanging = _pid(first)
        assert hanging != _pid(other)
        os.kill(hanging, signal.SIGSTOP)
        assert other.get(place.url())[0] == 200
        with place.of("a") as second:  # nobody had to say that the first one hangs
            assert second.get(place.url())[0] == 200
            assert hanging not in place.pids and first.lease.lost
        assert other.get(place.url())[0] == 200 and not other.lease.lost


def test_f2_a_question_to_a_gateway_that_hangs_may_be_asked_again(place: Tenants) -> None:
    with place.of("a") as way:
        os.kill(_pid(way), signal.SIGSTOP)
        with pytest.raises(NetworkUnavailable, match="does not answer") as caught:
            place.portal.run(way.lease.change(rules("other.test")))
        assert "try again" in caught.value.hint


def test_f2_many_orders_to_a_gateway_that_hangs_stop_nobody(place: Tenants) -> None:
    """More than its socket holds: the host neither waits for it nor loses a descriptor."""
    with place.of("a") as way, place.of("b") as other:
        os.kill(_pid(way), signal.SIGSTOP)
        before = len(os.listdir("/proc/self/fd"))

        async def wires() -> list[socket.socket]:
            return [way.lease.wire() for _ in range(900)]

        for wire in place.portal.run(wires()):
            wire.close()
        assert other.get(place.url())[0] == 200
    _eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_f2_as_many_processes_as_the_operator_says_and_idle_ones_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateways, "IDLE_S", 0.05)
    place = Tenants(tmp_path, network_processes=2)
    try:
        with place.of("a") as a, place.of("b") as b, place.of("c") as c:
            assert len(place.pids) == 2 and _pid(a) != _pid(b)
            assert _pid(c) in (_pid(a), _pid(b)), "where there are too many they share"
            assert [one.get(place.url())[0] for one in (a, b, c)] == [200] * 3
        _eventually(lambda: len(place.pids) == 1)
        with place.of("d") as d, place.of("e") as e:
            assert _pid(d) != _pid(e) and len(place.pids) == 2
    finally:
        place.close()


def test_f2_who_is_alone_never_waits_for_another_process(
    place: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateways, "IDLE_S", 0.0)
    with place.of("a") as way:
        first = _pid(way)
    with place.of("a") as way:
        assert _pid(way) == first


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tenants]:
    """Its gateways have 64 descriptors."""
    limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (64, 64))
    starting = partial(subprocess.Popen, preexec_fn=limit)
    monkeypatch.setattr(
        running, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": starting})
    )
    made = Tenants(tmp_path)
    yield made
    made.close()


def test_f2_a_gateway_without_free_descriptors_lives_and_says_so(few: Tenants) -> None:
    """It answers what came without its descriptor, and tells a sandbox that has no way out."""

    async def wires(way: Way) -> list[socket.socket]:
        return [way.lease.wire() for _ in range(70)]

    with few.of("a") as first, few.of("a") as other:
        pid = _pid(first)
        held = few.portal.run(wires(other))
        _eventually(lambda: any("no free file descriptor" in one.why for one in other.told))
        with pytest.raises(NetworkUnavailable, match="gateway failed") as caught:
            few.portal.run(few.gateway.open(rules(MANY), on_egress=print, tenant="a"))
        assert "descriptor" in str(caught.value)
        for wire in held:
            wire.close()
        _eventually(lambda: first.get(few.url())[0] == 200)
        with few.of("a", *MANY) as later:
            assert _pid(first) == _pid(later) == pid and not first.lease.lost


def test_f2_connections_leave_descriptors_for_what_the_host_sends(few: Tenants) -> None:
    with few.of("a") as greedy, contextlib.ExitStack() as held:
        for _ in range(100):
            made = held.enter_context(socket.create_connection(("127.0.0.1", greedy.ports[0])))
            made.sendall(b"GET http://api.test")
        _eventually(lambda: any("too many connections" in one.why for one in greedy.told))
        with few.of("a", *MANY) as later:
            assert _pid(later) == _pid(greedy)


# -- what rules and secrets can cost --------------------------------------------------------------


def test_f2_the_dearest_rules_that_are_accepted_harm_nobody(place: Tenants) -> None:
    """Patterns that a matcher which tries again and again never gets to the end of."""
    piece = "/" + "*a" * 24 + "*b"
    few = (MOST_PATH_CHARACTERS - 10) // len(piece)
    names = [f"h{n}.dear.test" for n in range(100)]
    dear = [Allow(f"api.test:{place.http}", paths=(piece,) * min(100, few))]
    dear += [Allow(f"api.test:{place.http}", paths=(piece,) * (few - 100))] if few > 100 else []
    dear += [Allow(*names) for _ in range(MOST_HOSTS_TOGETHER // 100 - 1)]
    with place.of("a", *dear) as way, place.of("b") as other, ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(way.get, place.url("/" + "a" * 4_000)) for _ in range(8)]
        assert other.get(place.url())[0] == 200
        assert [one.result()[0] for one in asked] == [403] * 8
        assert way.get(place.url("/" + "a" * 5_000 + "b"))[0] == 403
        assert way.get(place.url("/" + "a" * 4_000 + "b"))[0] == 200


def test_f2_a_secret_that_is_dear_to_look_for_harms_nobody_else(tmp_path: Path) -> None:
    """Whatever the scan costs: another tenant is served meanwhile."""
    place = Tenants(tmp_path)
    value = "a" * 4_095 + "&"
    try:
        rule, secret = f"api.test:{place.https}", Secret(value, host="api.test")
        with (
            place.of("a", rule, K=secret) as way,
            place.of("b") as other,
            ThreadPoolExecutor(1) as threads,
        ):
            data = b"a" * 30_000
            asked = threads.submit(_quietly, way, f"https://api.test:{place.https}/", data)
            for _ in range(20):
                assert other.get(place.url())[0] == 200
            os.kill(_pid(way), signal.SIGKILL)
            asked.result()
    finally:
        place.close()


def _quietly(way: Way, url: str, data: bytes | None = None) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        way.get(url, data)


# -- what is left of one that was lost ------------------------------------------------------------


class Silent(http.server.BaseHTTPRequestHandler):
    """Takes requests, and answers none."""

    heard = threading.Event()
    over = threading.Event()

    def do_GET(self) -> None:
        self.heard.set()
        self.over.wait()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_n1_what_was_under_way_when_the_gateway_ended_is_told(place: Tenants, end: int) -> None:
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    Silent.heard.clear()
    Silent.over.clear()
    try:
        with place.of("a", f"api.test:{port}", f"api.test:{place.http}") as way:
            assert way.get(place.url("/before"))[0] == 200
            with ThreadPoolExecutor(1) as threads:
                asked = threads.submit(_quietly, way, f"http://api.test:{port}/under/way?q")
                assert Silent.heard.wait(30)
                os.kill(_pid(way), end)
                if end == signal.SIGSTOP:  # it is given up when the sandbox ends
                    place.portal.run(way.lease.close())
                _eventually(lambda: len(way.told) > 1)
                asked.result()
            before, lost = way.told
            assert (before.verdict, before.path) == ("allowed", "/before")
            assert (lost.verdict, lost.host, lost.port) == ("failed", "api.test", port)
            assert (lost.method, lost.path) == ("GET", "/under/way")
            assert "gateway was lost" in lost.why
    finally:
        Silent.over.set()
        server.shutdown()
        server.server_close()


def test_n1_what_has_come_to_its_end_is_not_told_twice(place: Tenants) -> None:
    with place.of("a", f"api.test:{place.http}", f"api.test:{place.https}") as way:
        for _ in range(5):
            assert way.get(place.url())[0] == 200
            assert way.get(f"https://api.test:{place.https}/")[0] == 200
        _eventually(lambda: len(way.told) == 10)
        os.kill(_pid(way), signal.SIGKILL)
        _eventually(lambda: way.lease.lost)
    assert len(way.told) == 10


def test_n2_code_that_holds_a_placeholder_gets_its_network_back(place: Tenants) -> None:
    url = f"https://api.test:{place.https}/"
    secret = Secret(VALUE, host="api.test", header="X-Key: {}", body=True)
    lost: list[bool] = []
    opening = place.gateway.open(
        rules(f"api.test:{place.https}"),
        {"K": secret},
        on_egress=lambda _: None,
        on_lost=lambda: lost.append(True),
    )
    lease = place.portal.run(opening)
    key = lease.variables["K"]
    os.kill(lease._begun().pid, signal.SIGKILL)
    _eventually(lambda: lease.lost and lost == [True])
    place.portal.run(place.gateway.renew(lease))
    way = Way(place, lease, [])
    assert lease.variables["K"] == key
    # Echoed, and scrubbed on its way back: in another header it would have been stopped.
    status, body = way.get(url, **{"X-Key": key})
    assert status == 200 and f"X-Key: {key}" in body and VALUE not in body
    assert way.get(url, **{"X-Other": key})[0] == 403
    place.portal.run(lease.close())
