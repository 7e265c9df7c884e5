"""A gateway under test, and ways through it as code in a sandbox has them.

The listeners that a sandbox would have are made here, in a namespace with loopback alone, and given
to the gateway by a lease's wire.
"""

from __future__ import annotations

import asyncio
import functools
import http.client
import itertools
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from belljar.egress.gateway import Gateway, Lease
from belljar.network import Allow, Egress, Secret, rules
from belljar.settings import Settings
from tests.world.place import World

T = TypeVar("T")
DOORS = {"proxy": 3128, "http": 80, "https": 443}
PATIENCE_S = 30.0
"""For what certainly comes, on a machine that is busy with other things."""


@dataclass
class Reply:
    """What came back: status 0 is a connection that ended without a whole head."""

    status: int = 0
    reason: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    whole: bool = False
    """The body is as long as the head said."""


class Gate:
    """A gateway with a loop and a home of its own. Used as a context."""

    def __init__(self, world: World, **settings: Any) -> None:
        self.world = world
        self._home = tempfile.TemporaryDirectory(prefix="belljar-gate-")
        self.settings = Settings(
            home=Path(self._home.name),
            network_namespace=world.gateway.name,
            network_authorities=world.authority.file,
            **({"network_requests_per_s": 1e6} | settings),
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._numbers = itertools.count(1)

    def __enter__(self) -> Gate:
        self._thread.start()
        self.gateway = Gateway(self.settings)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.run(self.gateway.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._home.cleanup()

    @property
    def pid(self) -> int:
        """Of the gateway's process; there is one as soon as a way was opened."""
        (process,) = self.gateway.processes
        return process.pid

    def run(self, work: Coroutine[Any, Any, T], within_s: float = PATIENCE_S) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(within_s)

    def open(
        self, *given: Allow | str, secrets: Mapping[str, Secret] | None = None, doors: bool = True
    ) -> Way:
        return Way(self, rules(given), secrets or {}, number=next(self._numbers), doors=doors)


class Way:
    """One sandbox's lease and its three doors. Used as a context, or closed."""

    def __init__(
        self,
        gate: Gate,
        given: tuple[Allow, ...],
        secrets: Mapping[str, Secret],
        *,
        number: int,
        doors: bool,
    ) -> None:
        self.gate, self.world = gate, gate.world
        self.egress: list[Egress] = []
        self.lease: Lease = gate.run(
            gate.gateway.open(given, secrets, on_egress=self.egress.append)
        )
        self._address = f"127.{number >> 8}.{number & 255}.1"
        self.proxy = f"http://{self._address}:{DOORS['proxy']}"
        if doors:
            self._give_doors()

    @functools.cached_property
    def trusting(self) -> ssl.SSLContext:
        """As clients inside: what they find in the sandbox, and nothing else."""
        (bundle,) = self.lease.files.values()
        return ssl.create_default_context(cadata=bundle.decode())

    def __enter__(self) -> Way:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.gate.run(self.lease.close())

    def change(self, *given: Allow | str) -> None:
        self.gate.run(self.lease.change(rules(given)))

    def _give_doors(self) -> None:
        with self.world.code.entered():
            listening = [
                socket.create_server((self._address, port), backlog=128) for port in DOORS.values()
            ]
        with self.lease.wire() as wire:
            socket.send_fds(wire, [b"L"], [door.fileno() for door in listening])
            for door in listening:
                door.close()
            # Held until the gateway has them; it then needs the wire no more than to see its end.
            self._wire = wire.dup()

    def dial(self, door: str = "proxy", timeout_s: float = PATIENCE_S) -> socket.socket:
        with self.world.code.entered():
            return socket.create_connection((self._address, DOORS[door]), timeout_s)

    def ask(self, data: bytes, door: str = "proxy", method: str = "GET") -> Reply:
        """Bytes as they are, and the first answer to them."""
        with self.dial(door) as connection:
            try:
                connection.sendall(data)
            except OSError:
                pass  # refused before it was read to its end; the answer may be there
            return reply(connection, method)

    def get(self, host: str, path: str = "/hello", **headers: str) -> Reply:
        """A plain request through the proxy."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return self.ask(f"GET http://{host}{path} HTTP/1.1\r\nHost: {host}\r\n{lines}\r\n".encode())

    def connect(self, target: str) -> tuple[socket.socket, Reply]:
        connection = self.dial()
        connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        return connection, tunnel_reply(connection)

    def secure(
        self, target: str, name: str | None = None, context: ssl.SSLContext | None = None
    ) -> ssl.SSLSocket:
        """A tunnel and TLS in it, for the target's name unless another is given."""
        connection, answer = self.connect(target)
        if answer.status != 200:
            connection.close()
            raise ConnectionError(f"{answer.status} {answer.reason}")
        host = target.rpartition(":")[0] if name is None else name
        return (context or self.trusting).wrap_socket(connection, server_hostname=host or None)

    def get_secure(self, host: str, path: str = "/hello", **headers: str) -> Reply:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        with self.secure(f"{host}:443") as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{lines}\r\n".encode())
            return reply(connection)

    def told(
        self, wanted: Callable[[Egress], bool] = lambda _: True, *, count: int = 1
    ) -> list[Egress]:
        """The records like this, once there are as many; what is missing is an error."""
        deadline = time.monotonic() + PATIENCE_S
        while sum(one.count for one in self.egress if wanted(one)) < count:
            if time.monotonic() > deadline:
                raise AssertionError(f"not told {count} times, only: {self.egress}")
            time.sleep(0.01)
        return [one for one in self.egress if wanted(one)]

    def stopped(self, count: int = 1) -> list[Egress]:
        """The records of what was not let through."""
        return self.told(lambda one: one.verdict in ("refused", "blocked"), count=count)


def reply(connection: socket.socket, method: str = "GET") -> Reply:
    found = http.client.HTTPResponse(connection, method=method)
    try:
        found.begin()
    except (OSError, http.client.HTTPException):
        return Reply()
    answer = Reply(found.status, found.reason, dict(found.headers))
    try:
        answer.body = found.read()
        answer.whole = True
    except http.client.IncompleteRead as error:
        answer.body = error.partial
    except (OSError, http.client.HTTPException):
        pass
    return answer


def tunnel_reply(connection: socket.socket) -> Reply:
    """To CONNECT, byte by byte: what follows belongs to the tunnel."""
    head = bytearray()
    while not head.endswith(b"\r\n\r\n"):
        try:
            byte = connection.recv(1)
        except OSError:
            return Reply()
        if not byte:
            return Reply()
        head += byte
    status, _, reason = head.split(b"\r\n")[0].decode("latin-1").partition(" ")[2].partition(" ")
    return Reply(int(status), reason)


def ended(connection: socket.socket) -> bool:
    """Reads what still comes until the other end closes it; False if it stays open."""
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def eventually(wanted: Callable[[], Any], within_s: float = PATIENCE_S) -> Any:
    deadline = time.monotonic() + within_s
    while not (found := wanted()):
        if time.monotonic() > deadline:
            raise AssertionError("it did not come to be")
        time.sleep(0.01)
    return found


def resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS:"))) * 1024
