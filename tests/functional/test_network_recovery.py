"""N1, N2, N3: a sandbox whose gateway is lost gets its network back; programs and pages have what
runs have; and what a client is told of a gateway says nothing about the machine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import belljar
import belljar.aio
from belljar import Allow, Caller, Secret
from belljar.errors import NetworkRefused, NetworkUnavailable
from belljar.server.errors import answer
from belljar.testing.served import served
from tests.functional.test_network import NAME, OTHER, TOKEN, TRY, Site, tried

POLL = """
import os, time, urllib.request
while True:
    asked = urllib.request.Request(URL, headers={"Authorization": "Bearer " + os.environ["K"]})
    try:
        urllib.request.urlopen(asked, timeout=10).read()
    except Exception:
        pass
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture
def trail_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/trail/trail.db"


@pytest.fixture
def jar(site: Site, trail_url: str) -> Iterator[belljar.Belljar]:
    with belljar.Belljar(site.settings(trail=trail_url, pool_size=0)) as jar:
        yield jar


def gateways(jar: belljar.Belljar) -> list[int]:
    service: Any = jar.asynchronous._service  # type: ignore[union-attr]
    return [process.pid for process in service._network._gateway.processes]


def leases(jar: belljar.Belljar) -> int:
    service: Any = jar.asynchronous._service  # type: ignore[union-attr]
    return sum(len(process.listeners) for process in service._network._gateway.processes)


def eventually(wanted: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not wanted():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_n2_a_program_with_a_secret_gets_its_network_back_by_itself(
    jar: belljar.Belljar, site: Site
) -> None:
    """Nobody asks anything of the sandbox meanwhile, and its code holds the same placeholder."""
    secret = Secret(TOKEN, host=NAME)
    with belljar.Sandbox(jar, engine="jail", network=site.rule(), secrets={"K": secret}) as box:
        box.start(["python3", "-c", f"URL = {site.url('/echo/poll')!r}{POLL}"])
        for end in (signal.SIGKILL, signal.SIGSTOP):
            eventually(lambda: ("/echo/poll", f"Bearer {TOKEN}") in site.heard)
            (lost,) = gateways(jar)
            os.kill(lost, end)
            eventually(lambda lost=lost: gateways(jar) not in ([lost], []))
            site.heard.clear()
        eventually(lambda: ("/echo/poll", f"Bearer {TOKEN}") in site.heard)
        get = f"URLS = [{site.url('/hello')!r}]{TRY}"
        assert box.run(get).stdout == "200\n"


TAKE_THE_DOOR = """
import socket, threading, time
def take():
    while "taken" not in globals():
        door = socket.socket()
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            door.bind(("127.0.0.1", 3128))
            door.listen()
            globals()["taken"] = door
        except OSError:
            door.close()
            time.sleep(0.001)
threading.Thread(target=take, daemon=True).start()
"""


def test_n2_code_that_takes_its_own_door_goes_on_without_a_network(
    jar: belljar.Belljar, site: Site
) -> None:
    """Each result says so. Each try to bring its network back replaces the one before; rules can
    still be taken back, the network comes back when the code lets go of the door, and nothing is
    left when it has ended."""
    secret = Secret(TOKEN, host=NAME)
    with belljar.Sandbox(jar, engine="jail", network=site.rule(), secrets={"K": secret}) as box:
        assert box.run(TAKE_THE_DOOR).success
        (lost,) = gateways(jar)
        os.kill(lost, signal.SIGKILL)
        eventually(lambda: gateways(jar) not in ([lost], []))
        get = f"URLS = [{site.plain_url('/hello')!r}]{TRY}"
        for _ in range(5):
            result = box.run("1")
            assert result.success and not result.egress
            assert "no network" in result.warnings[-1] and "in use" in result.warnings[-1]
        assert "no network" in box.exec(["true"]).warnings[-1]
        assert leases(jar) == 1
        box.set_network(None)
        assert box.network == ()
        box.set_network(site.rule())
        # Not only closed: frozen copies of the interpreter (checkpoints) hold it, too.
        assert box.run("taken.shutdown(socket.SHUT_RDWR)").success
        again = box.run(get)
        assert (again.stdout, again.warnings) == ("200\n", ())
    assert leases(jar) == 0


def test_n1_a_caller_that_leaves_while_the_network_comes_back_breaks_nothing(site: Site) -> None:
    """Others still run, and rules that are taken back reach every program inside."""
    poll = ["python3", "-c", f"URL = {site.url('/echo/left')!r}{POLL}"]
    get = f"URLS = [{site.url('/hello')!r}]{TRY}"

    async def leave() -> None:
        async with (
            belljar.aio.Belljar(site.settings(pool_size=0)) as jar,
            belljar.aio.Sandbox(
                jar, engine="jail", network=site.rule(), secrets={"K": Secret(TOKEN, host=NAME)}
            ) as box,
        ):
            await box.start(poll)
            service: Any = jar._service  # type: ignore[union-attr]
            gateway = service._network._gateway
            held: Any = box._held
            for _ in range(3):
                (process,) = gateway.processes
                os.kill(process.pid, signal.SIGKILL)
                while not held.outlet.lease.lost:
                    await asyncio.sleep(0)
                run = asyncio.ensure_future(box.run("1"))
                while not run.done() and not (held.outlet._doorless and not held.outlet.lease.lost):
                    await asyncio.sleep(0)
                run.cancel()
                await asyncio.wait([run])
                assert (await box.run(get)).stdout == "200\n"
                assert [len(one.listeners) for one in gateway.processes] == [1]
            await box.set_network(None)
            assert (await box.run(get)).stdout != "200\n"
            await asyncio.sleep(0.5)  # for what was on its way
            site.heard.clear()
            await asyncio.sleep(0.5)
            assert not site.heard

    asyncio.run(leave())


def test_n1_a_single_run_is_told_that_it_lost_its_network(jar: belljar.Belljar, site: Site) -> None:
    """Only kept sandboxes get it back."""
    with socket.create_server((site.address, 0)) as silent:
        silent.settimeout(60)
        port = silent.getsockname()[1]
        code = f"URLS = ['http://{NAME}:{port}/']{TRY}"
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(jar.run, code, engine="jail", network=f"{NAME}:{port}")
            taken, _ = silent.accept()
            with taken:
                os.kill(gateways(jar)[0], signal.SIGKILL)
                result = asked.result(60)
    assert "gateway was lost" in result.warnings[-1]
    assert [one.verdict for one in result.egress] == ["failed"]
    get = f"URLS = [{site.plain_url('/hello')!r}]{TRY}"
    again = jar.run(get, engine="jail", network=site.rule())
    assert (again.stdout, again.warnings) == ("200\n", ())


def test_n1_a_run_does_not_wait_for_a_gateway_that_hangs(jar: belljar.Belljar, site: Site) -> None:
    get = f"URLS = [{site.plain_url('/hello')!r}]{TRY}"
    assert jar.run(get, engine="jail", network=site.rule()).stdout == "200\n"
    (hanging,) = gateways(jar)
    os.kill(hanging, signal.SIGSTOP)
    assert jar.run(get, engine="jail", network=site.rule()).stdout == "200\n"
    assert hanging not in gateways(jar)


def test_f2_each_caller_has_a_gateway_of_its_own(jar: belljar.Belljar, site: Site) -> None:
    get = f"URLS = [{site.plain_url('/hello')!r}]{TRY}"

    def ask(tenant: str) -> str:
        caller = Caller(tenant=tenant)
        return jar.run(get, engine="jail", network=site.rule(), caller=caller).stdout

    assert ask("a") == ask("b") == "200\n"
    (first, second) = gateways(jar)
    os.kill(first, signal.SIGSTOP)
    assert ask("b") == "200\n" and gateways(jar) == [first, second]
    assert ask("a") == "200\n" and first not in gateways(jar)


def test_n1_what_a_run_had_under_way_is_in_the_trail_when_the_gateway_dies(
    jar: belljar.Belljar, site: Site, trail_url: str
) -> None:
    """A host that takes the request and says nothing; then the gateway is killed."""
    with socket.create_server((site.address, 0)) as silent:
        silent.settimeout(60)
        port = silent.getsockname()[1]
        code = f"URLS = ['http://{NAME}:{port}/under/way?hush']{TRY}"
        with belljar.Sandbox(jar, engine="jail", network=f"{NAME}:{port}") as box:
            program = box.start(["python3", "-c", code])
            taken, _ = silent.accept()
            with taken:
                assert taken.recv(1)
                os.kill(gateways(jar)[0], signal.SIGKILL)
                result = program.wait(60)
        assert [(one.verdict, one.path) for one in result.egress] == [("failed", "/under/way")]
    (line,) = tried(trail_url)
    assert (line["host"], line["port"], line["status"]) == (NAME, port, "failed")
    assert "gateway was lost" in line["why"] and line["run"] == result.execution_id


BEGIN = """
import socket
asked = socket.create_connection(("127.0.0.1", 3128))
asked.sendall(HEAD)
assert b" 100 " in asked.recv(1000)
asked.sendall(b"what it knows")
"""


def test_n1_what_a_run_began_is_in_its_result_however_late_it_ends(
    jar: belljar.Belljar, site: Site, trail_url: str
) -> None:
    """A host that has the request, and answers while another run is under way."""
    with socket.create_server((site.address, 0)) as slow:
        slow.settimeout(60)
        port = slow.getsockname()[1]
        head = (
            f"POST http://{NAME}:{port}/steal HTTP/1.1\r\nHost: {NAME}:{port}\r\n"
            "Content-Length: 13\r\nExpect: 100-continue\r\n\r\n"
        ).encode()
        with belljar.Sandbox(jar, engine="jail", network=f"{NAME}:{port}") as box:
            first = box.run(f"HEAD = {head!r}{BEGIN}")
            assert first.success, first.stderr
            taken, _ = slow.accept()
            with taken:
                assert taken.recv(1)
                assert not box.run("1").egress
                taken.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                last = box.run("print(asked.recv(1000)[:12])")
            assert "200" in last.stdout and not last.egress
        (told,) = first.egress
        assert (told.verdict, told.method, told.path) == ("allowed", "POST", "/steal")
        assert "still under way" in told.why
    (line,) = tried(trail_url)
    assert (line["status"], line["run"]) == ("allowed", first.execution_id)


def test_n1_what_a_program_tried_is_in_its_result(
    jar: belljar.Belljar, site: Site, trail_url: str
) -> None:
    get = f"URLS = [{site.plain_url('/hello')!r}, {site.plain_url('/', OTHER)!r}]{TRY}"
    with belljar.Sandbox(jar, engine="jail", network=site.rule()) as box:
        result = box.exec(["python3", "-c", get])
        assert [(one.verdict, one.host) for one in result.egress] == [
            ("allowed", NAME),
            ("refused", OTHER),
        ]
        assert not box.exec(["true"]).egress
        program = box.start(["python3", "-c", get])
        assert len(program.wait(60).egress) == 2
    lines = tried(trail_url)
    assert [one["run"] for one in lines] == [result.execution_id] * 2 + [
        program.wait().execution_id
    ] * 2


def test_a3_at_a_server_too(site: Site) -> None:
    """What a program tried; and a page that needs a credential."""
    settings = site.settings()
    sandboxes = {
        "network_allowed": "any",
        "network_names": dict(settings.network_names),
        "network_private": list(settings.network_private),
        "network_authorities": str(site.bundle),
        "pool_size": 0,
    }
    get = f"URLS = [{site.plain_url('/hello')!r}]{TRY}"
    with served(sandboxes=sandboxes, warm=[]) as server:
        place = {"url": server.url, "key": server.key}
        with belljar.Sandbox(network=site.rule(), **place) as box:
            result = box.exec(["python3", "-c", get])
            assert [(one.verdict, one.host) for one in result.egress] == [("allowed", NAME)]
            program = box.start(["python3", "-c", get])
            assert [one.host for one in program.wait(60).egress] == [NAME]
            path = f"/v1/sandboxes/{box.sandbox_id}/processes/{program.process_id}"
            told = server.ask("GET", path, None).json()
            assert [one["host"] for one in told["result"]["egress"]] == [NAME]
        (site.folder / "secret.txt").write_text("a page")
        site.heard.clear()
        page = belljar.Belljar(**place).fetch(
            site.url("/secret.txt"), network=site.rule(), secrets={"K": Secret(TOKEN, host=NAME)}
        )
        assert page.text == "a page" and site.heard == [("/secret.txt", f"Bearer {TOKEN}")]


def test_n3_a_page_that_needs_a_credential(jar: belljar.Belljar, site: Site) -> None:
    secret = Secret(TOKEN, host=NAME)
    rule = site.rule(NAME, OTHER)
    site.heard.clear()
    page = jar.fetch(site.url("/page.txt"), network=rule, secrets={"K": secret})
    assert page.status == 404
    assert site.heard == [("/page.txt", f"Bearer {TOKEN}")]
    (site.folder / "page.txt").write_text("a page")
    page = jar.fetch(site.url("/page.txt"), network=rule, secrets={"K": secret})
    assert (page.status, page.text) == (200, "a page")
    # Neither another host nor a plain connection gets it.
    site.heard.clear()
    jar.fetch(site.url("/page.txt", OTHER), network=rule, secrets={"K": secret})
    jar.fetch(site.plain_url("/page.txt"), network=rule, secrets={"K": secret})
    assert site.heard == [("/page.txt", ""), ("/page.txt", "")]
    with pytest.raises(NetworkRefused, match="K is for"):
        jar.fetch(site.url("/page.txt", OTHER), network=Allow(OTHER), secrets={"K": secret})


def test_a3_a_gateway_that_is_not_there_is_worth_a_retry() -> None:
    error = NetworkUnavailable("it does not answer", hint="try again", detail="/srv/own.pem")
    told = answer(error, ran=False)
    assert (told.status_code, told.headers["Retry-After"]) == (503, "1")
    said = json.loads(bytes(told.body))["error"]
    assert said == {
        "code": "network_unavailable",
        "message": "it does not answer",
        "hint": "try again",
        "retryable": True,
    }
    assert "/srv/own.pem" in str(error)


def test_a3_no_error_shows_a_path_of_the_server(site: Site, tmp_path: Path) -> None:
    """The operator finds them in the log."""
    settings = site.settings()
    sandboxes = {
        "engines": ["jail", "docker"],
        "network_allowed": "any",
        "network_authorities": str(tmp_path / "missing.pem"),
        "docker_host": f"unix://{tmp_path}/docker.sock",
        "network_names": dict(settings.network_names),
        "pool_size": 0,
    }
    with served(sandboxes=sandboxes, warm=[]) as server:
        answers = [
            server.ask("POST", "/v1/runs", {"code": "1", "network": [NAME]}),
            server.ask("POST", "/v1/runs", {"code": "1", "engine": "docker"}),
            server.ask("GET", "/v1/engines", None),
        ]
        assert [one.status for one in answers] == [409, 409, 200]
        for one in answers:
            assert str(tmp_path) not in one.content.decode(), one.content
        piece = "/" + "*a" * 499
        dear = [{"hosts": [NAME], "paths": [piece] * 100}] * 100
        refused = server.ask("POST", "/v1/runs", {"code": "1", "network": dear})
        assert refused.status == 400 and "together" in refused.content.decode()
        assert answers[0].json()["error"]["message"] == (
            "settings.network_authorities cannot be read"
        )
        log = server.log.read_text()
        assert "missing.pem" in log and "docker.sock" in log
