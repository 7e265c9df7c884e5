"""The network in the agent's stream (N1), behind each wall that has no doors of its own: what the
relay inside does, whoever is at the other end. Here that is a peer of the tests' own; with the real
gateway the conformance suite does the rest."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import pytest

from belljar import execution
from belljar.aio import Belljar, Sandbox
from belljar.engines import registry
from belljar.engines.base import Doors
from belljar.errors import EngineError
from belljar.model import Result
from belljar.sandbox import Order
from belljar.settings import Settings
from belljar.testing.base import REQUIRED
from tests.muxpeer import Answering, Visit, echo

WALLS = {
    "docker": ("docker", ""),
    "docker_runsc": ("docker", "runsc"),
    "gvisor": ("gvisor", ""),
    "microvm": ("microvm", ""),
}
HOSTS = {"api.example.com": "127.0.0.1"}
DIAL = """
import os, signal, socket
def dial(text, port=3128, host='127.0.0.1'):
    with socket.create_connection((host, port), timeout=60) as s:
        s.sendall(text)
        s.shutdown(socket.SHUT_WR)
        got = b''
        while data := s.recv(65536):
            got += data
    return got
def refused(port):
    try:
        dial(b'', port)
    except ConnectionRefusedError:
        return True
    except OSError:  # cut while it lived
        pass
    return False
"""
EACH_DOOR = DIAL + "print([dial(b'hello', port, 'api.example.com') for port in (3128, 80, 443)])"
NOBODY_THERE = DIAL + "print([refused(port) for port in (3128, 80, 443)])"


class Wall:
    """One Belljar with one engine, on a loop that runs while it is asked for something."""

    def __init__(self, runner: asyncio.Runner, label: str) -> None:
        self.runner = runner
        self.label = label
        self.engine, runtime = WALLS[label]
        self.settings = Settings(engine=self.engine, docker_runtime=runtime, pool_size=1)
        self._order = execution.order
        self.jar = runner.run(self._made())

    async def _made(self) -> Belljar:
        return Belljar(self.settings)

    def run(self, code: str, doors: Doors | None = None) -> Result:
        """With doors if they are given, whatever gateway there may be."""

        def order(*args: Any, **options: Any) -> Order:
            return dataclasses.replace(self._order(*args, **options), doors=doors)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(execution, "order", order)
            result = self.runner.run(self.jar.run(code, timeout_s=100, environment="base"))
        assert result.status == "ok", result
        return result

    def close(self) -> None:
        self.runner.run(self.jar.close())


@pytest.fixture(
    scope="module",
    params=[
        "docker",
        pytest.param("docker_runsc", marks=pytest.mark.slow),
        "gvisor",
        "microvm",
    ],
)
def wall(request: pytest.FixtureRequest) -> Iterator[Wall]:
    engine, runtime = WALLS[request.param]
    missing = registry.why_not(engine, Settings(docker_runtime=runtime))
    if missing and os.environ.get(REQUIRED):
        pytest.fail(missing.why)
    if missing:
        pytest.skip(missing.why)
    with asyncio.Runner() as runner:
        wall = Wall(runner, request.param)
        yield wall
        wall.close()


@pytest.fixture
def peer() -> Iterator[Answering]:
    peer = Answering(echo)
    yield peer
    assert not peer.problems


def doors(peer: Answering) -> Doors:
    return Doors(wire=peer.wire, hosts=HOSTS)


def test_n1_doors_open_by_the_order_names_lead_there_and_only_for_that_run(
    wall: Wall, peer: Answering
) -> None:
    """The sandbox waited in a pool, or slept in a snapshot: nothing in it knew of a network."""
    wall.runner.run(wall.jar.warm("base", 1, engine=wall.engine))
    result = wall.run(EACH_DOOR, doors(peer))
    assert result.stdout == "[b'hello', b'hello', b'hello']\n"
    assert [visit.door for visit in peer.peers[0].visits.values()] == [0, 1, 2]
    assert result.isolation["network"].startswith("named hosts")
    after = wall.run(NOBODY_THERE + "\nprint('example' in open('/etc/hosts').read())")
    assert after.stdout == "[True, True, True]\nFalse\n"
    assert after.isolation["network"].startswith("none")


def test_n1_the_relay_is_out_of_the_codes_reach_and_not_in_its_way(
    wall: Wall, peer: Answering
) -> None:
    """It is pid 1: no process more to see or to count, not to be killed, traced or read. Behind
    Docker's runsc the code has its uid and may end it, and with it itself alone."""
    code = """
def tried(what):
    try:
        what()
        return 'done'
    except OSError as error:
        return type(error).__name__
pids = {int(name) for name in os.listdir('/proc') if name.isdigit()}
print(pids - {1, os.getpid()})
print(tried(lambda: open('/proc/1/mem', 'rb').read(1)), tried(lambda: os.listdir('/proc/1/fd')))
print(tried(lambda: open('/etc/hosts', 'a')))
for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGINT, signal.SIGSEGV):
    if KILLS:
        tried(lambda: os.kill(1, number))
os.system('true')
print(dial(b'still there'))
"""
    kills = wall.label != "docker_runsc"
    told = wall.run(f"KILLS = {kills}\n{DIAL}{code}", doors(peer)).stdout.splitlines()
    assert told[0] == "set()"
    assert "done" not in told[1].split() or wall.label == "docker_runsc"
    assert told[2] in ("OSError", "PermissionError"), "a read-only file of root's"
    assert told[-1] == "b'still there'"


def test_n1_many_connections_and_many_bytes_at_once(wall: Wall, peer: Answering) -> None:
    """More connections than there may be: the rest waits. All bytes arrive, in their order."""
    many, size = (300, 3_000_000) if wall.engine != "microvm" else (60, 300_000)
    code = f"""
import hashlib, random, threading
whole = random.Random(7).randbytes({size})
back = {{}}
def send(s, data):
    s.sendall(data)
    s.shutdown(socket.SHUT_WR)
def large(n):
    with socket.create_connection(('127.0.0.1', 3128), timeout=90) as s:
        threading.Thread(target=send, args=(s, whole)).start()
        got = hashlib.sha256()
        while data := s.recv(65536):
            got.update(data)
        back[n] = got.hexdigest()
large_ones = [threading.Thread(target=large, args=(n,)) for n in range(3)]
for one in large_ones:
    one.start()
ends = [socket.create_connection(('127.0.0.1', 3128), timeout=90) for _ in range(20)]
for n in range({many}):
    ends.append(socket.create_connection(('127.0.0.1', 3128), timeout=90))
    ends[-1].sendall(b'%d' % n)
    if n >= 200:
        first = ends.pop(20)
        assert first.recv(100) == b'%d' % (n - 200), n
        first.close()
for one in large_ones:
    one.join()
print(set(back.values()) == {{hashlib.sha256(whole).hexdigest()}}, len(back))
"""
    assert wall.run(DIAL + code, doors(peer)).stdout == "True 3\n"


def test_n1_when_the_gateway_hangs_up_the_code_is_refused_at_once(wall: Wall) -> None:
    def serve(visit: Visit) -> None:
        if visit.received:
            peer.hang_up()

    peer = Answering(serve)
    code = DIAL + (
        "try:\n    print(dial(b'bye'))\nexcept OSError:\n    print('reset')\n"
        "print(refused(3128), refused(80))"
    )
    assert wall.run(code, doors(peer)).stdout == "reset\nTrue True\n"


def test_n1_a_kept_sandbox_gets_a_network_while_it_lives(wall: Wall, peer: Answering) -> None:
    async def life() -> None:
        async with Sandbox(wall.jar, engine=wall.engine, environment="base", timeout_s=60) as box:
            assert box._held
            talk = box._held.conversation
            await box.run(f"{DIAL}taken = socket.create_server(('127.0.0.1', 3128))")
            with pytest.raises(EngineError, match="in use") as error:
                await talk.open_doors(doors(peer))
            assert "3128" in error.value.hint
            await box.run("taken.close()")
            await box.restart()  # a checkpoint has the socket, too
            await talk.open_doors(doors(peer))
            shown = await box.run(f"{DIAL}line = dial(b'kept', 80, 'api.example.com')\nline")
            assert shown.value == "b'kept'", shown
            await talk.name_hosts({"other.example.com": "127.0.0.1"})
            names = await box.run("open('/etc/hosts').read().split()[-1]")
            assert names.value == "'other.example.com'"
            program = await box.exec(["python3", "-c", f"{DIAL}print(dial(b'program'))"])
            assert program.stdout == "b'program'\n", program
            assert names.isolation["network"].startswith("named hosts")
            peer.hang_up()
            lost = await box.run("import time\nwhile not refused(3128): time.sleep(0.01)\n1")
            assert lost.value == "1"
            again = Answering(echo)
            await talk.open_doors(doors(again))
            assert (await box.run("dial(b'again')")).value == "b'again'"

    wall.runner.run(life())
