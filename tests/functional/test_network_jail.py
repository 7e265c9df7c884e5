"""The jail's side of the network (N1): doors in a sandbox's own namespace, a gateway behind them.

The gateway here is a small one of the tests' own: it takes the listening sockets from the wire and
says which door a connection came through.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from belljar import execution
from belljar.engines.base import Doors
from belljar.engines.jail.engine import JailEngine
from belljar.environments.catalogue import BASE
from belljar.model import Limits, Request
from belljar.receiver import Outcome
from belljar.sandbox import Sandbox
from belljar.settings import Settings

HOSTS = {"api.example.com": "127.0.0.1"}
PROXY = {"http_proxy": "http://127.0.0.1:3128"}


class Answering:
    """What is behind the doors: one thread per wire and per door."""

    def __init__(self, name: str = "gateway") -> None:
        self.name = name
        self.doors: list[socket.socket] = []
        self.heard = 0

    def wire(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        threading.Thread(target=self._take, args=(theirs,), daemon=True).start()
        return ours

    def _take(self, wire: socket.socket) -> None:
        with wire:
            kind, handles, _, _ = socket.recv_fds(wire, 1, 8)
            if kind != b"L":
                return
            for number, handle in enumerate(handles):
                door = socket.socket(fileno=handle)
                self.doors.append(door)
                threading.Thread(target=self._accept, args=(door, number), daemon=True).start()

    def _accept(self, door: socket.socket, number: int) -> None:
        while True:
            try:
                connection, _ = door.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection, number), daemon=True).start()

    def _answer(self, connection: socket.socket, number: int) -> None:
        with connection:
            asked = connection.recv(65536).split(b"\r\n")[0]
            self.heard += 1
            body = f"{self.name} {number}: ".encode() + asked
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    def close(self) -> None:
        for door in self.doors:
            door.shutdown(socket.SHUT_RDWR)
            door.close()


@pytest.fixture
def gateway() -> Iterator[Answering]:
    answering = Answering()
    yield answering
    answering.close()


class Jail:
    """The engine, on a loop that runs while it is asked for something."""

    def __init__(self, runner: asyncio.Runner, engine: JailEngine) -> None:
        self.runner = runner
        self.engine = engine

    def run(self, doors: Doors | None, code: str, **more: bool) -> Outcome:
        return self.runner.run(self.running(doors, code, **more))

    async def running(self, doors: Doors | None, code: str, **more: bool) -> Outcome:
        """One run as the service makes it."""
        ground = await execution.Grounds(Settings(), None).get(BASE, "", in_image=False)
        request = Request(code=code, env=PROXY, **more)  # type: ignore[arg-type]
        order = execution.order(request, ground, self.engine.interpreter)
        sandbox = Sandbox(await self.engine.create_with(ground, Limits(), (), doors=doors))
        try:
            return await sandbox.run(order)
        finally:
            await sandbox.destroy()


@pytest.fixture(scope="module")
def jail() -> Iterator[Jail]:
    with asyncio.Runner() as runner:

        async def made() -> JailEngine:
            return JailEngine(Settings())

        jail = Jail(runner, runner.run(made()))
        yield jail
        runner.run(jail.engine.close())


def said(outcome: Outcome) -> str:
    assert outcome.exit_code == 0, outcome.stderr.decode()
    return outcome.stdout.decode().strip()


@pytest.mark.parametrize("fresh", [False, True], ids=["fork", "fresh_exec"])
def test_code_reaches_the_gateway_by_its_three_doors(
    jail: Jail, gateway: Answering, fresh: bool
) -> None:
    """N1: by proxy variables, and by name where a client knows no proxy."""
    code = """
import socket, urllib.request
print(urllib.request.urlopen("http://other.example.com/a").read().decode())
plain = urllib.request.build_opener(urllib.request.ProxyHandler({}))
print(plain.open("http://api.example.com/b").read().decode())
print(plain.open("http://api.example.com:443/c").read().decode())
print(open("/etc/hosts").read().split())
"""
    doors = Doors(wire=gateway.wire, hosts=HOSTS)
    lines = said(jail.run(doors, code, fresh_exec=fresh)).splitlines()
    assert lines[:3] == [
        "gateway 0: GET http://other.example.com/a HTTP/1.1",
        "gateway 1: GET /b HTTP/1.1",
        "gateway 2: GET /c HTTP/1.1",
    ]
    assert lines[3] == str(
        ["127.0.0.1", "localhost", "belljar", "::1", "localhost", "127.0.0.1", "api.example.com"]
    )
