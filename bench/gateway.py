"""The gateway beside no gateway: the same client and the same server, on loopback.

`python -m bench --only gateway` measures these alone. Three ways to a server that answers at once:
directly, through the gateway alone, and from a sandbox of the jail through it. Connections are kept
open, or made anew for each request, as programs without a session do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import track

from belljar import Allow, Belljar, Settings
from belljar.egress.gateway import Gateway, Lease
from belljar.network import Egress
from bench.timing import percentile
from tests.world.certificates import Authority

HOST = "bench.example.com"
CLIENTS = 16
KINDS = ("plain, kept", "plain, new", "intercepted, kept", "intercepted, new")

CLIENT = """
import json, os, socket, ssl, sys, time
host, plain, secure, proxy, count = {host!r}, {plain}, {secure}, {proxy!r}, {count}
trust = ssl.create_default_context(cafile={authorities!r} or os.environ.get("SSL_CERT_FILE"))
def dial(port):
    made = socket.create_connection(proxy or ("127.0.0.1", port))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made
def tls():
    made = dial(secure)
    if proxy:
        to = f"{{host}}:{{secure}}"
        made.sendall(f"CONNECT {{to}} HTTP/1.1\\r\\nHost: {{to}}\\r\\n\\r\\n".encode())
        head = b""
        while b"\\r\\n\\r\\n" not in head:
            head += made.recv(1000)
        assert head.startswith(b"HTTP/1.1 200"), head
    return trust.wrap_socket(made, server_hostname=host)
def ask(made, port, absolute):
    path = f"http://{{host}}:{{port}}/" if absolute else "/"
    made.sendall(f"GET {{path}} HTTP/1.1\\r\\nHost: {{host}}:{{port}}\\r\\n\\r\\n".encode())
    answer = b""
    while not answer.endswith(b"hello\\n"):
        piece = made.recv(10000)
        assert piece, answer
        answer += piece
    assert answer.startswith(b"HTTP/1.1 200"), answer
def timed(once):
    taken = []
    for _ in range(count):
        started = time.perf_counter()
        once()
        taken.append((time.perf_counter() - started) * 1000)
    return taken
def anew(make, port, absolute):
    made = make()
    ask(made, port, absolute)
    made.close()
found = {{}}
kept = dial(plain)
found["plain, kept"] = timed(lambda: ask(kept, plain, bool(proxy)))
found["plain, new"] = timed(lambda: anew(lambda: dial(plain), plain, bool(proxy)))
kept = tls()
found["intercepted, kept"] = timed(lambda: ask(kept, secure, False))
found["intercepted, new"] = timed(lambda: anew(tls, secure, False))
print(json.dumps(found))
"""

CROWD = """
import asyncio, json, time
proxy, left, failures = {proxy!r}, {count}, 0
data = b"GET http://{host}:{plain}/ HTTP/1.1\\r\\nHost: {host}:{plain}\\r\\n\\r\\n"
async def client():
    global left, failures
    reader, writer = await asyncio.open_connection(*proxy)
    while left > 0:
        left -= 1
        writer.write(data)
        try:
            head = await reader.readuntil(b"\\r\\n\\r\\n")
            await reader.readexactly(6)
            failures += not head.startswith(b"HTTP/1.1 200")
        except (OSError, asyncio.IncompleteReadError):
            failures += 1
            reader, writer = await asyncio.open_connection(*proxy)
async def crowd():
    await asyncio.gather(*(client() for _ in range({clients})))
began = time.perf_counter()
asyncio.run(crowd())
print(json.dumps({{"seconds": time.perf_counter() - began, "failures": failures}}))
"""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A server in a process of its own, and settings with which the gateway reaches it."""

    plain: int
    secure: int
    settings: Settings
    authorities: Path

    @property
    def rule(self) -> Allow:
        return Allow(f"{HOST}:{self.plain}", f"{HOST}:{self.secure}")

    def client(self, *, proxy: tuple[str, int] | None, count: int, authorities: str = "") -> str:
        return CLIENT.format(
            host=HOST,
            plain=self.plain,
            secure=self.secure,
            proxy=proxy,
            count=count,
            authorities=authorities,
        )

    def crowd(self, *, proxy: tuple[str, int], count: int) -> str:
        """Clients side by side in one process."""
        return CROWD.format(host=HOST, plain=self.plain, proxy=proxy, count=count, clients=CLIENTS)


def measure(*, rounds: int, requests: int) -> dict[str, Any]:
    """`requests` go through one gateway while its memory is watched."""
    with _place() as place:
        return asyncio.run(_alone(place, rounds, requests)) | _in_turns_with_a_sandbox(
            place, rounds
        )


def _in_turns_with_a_sandbox(place: Place, rounds: int) -> dict[str, Any]:
    """Directly and from the jail, in turns, one client after the other."""
    direct, inside = _samples(), _samples()
    count = 20
    bare = place.client(proxy=None, count=count, authorities=str(place.authorities))
    behind = place.client(proxy=("127.0.0.1", 3128), count=count)
    with Belljar(place.settings) as jar:
        for _ in track(range(1 + rounds // count), description="gateway, from the jail"):
            _add(direct, _run(bare))
            _add(inside, _behind_a_wall(jar, place, behind))
        crowd = place.crowd(proxy=("127.0.0.1", 3128), count=2000)
        many = json.loads(_behind_a_wall(jar, place, crowd))
    return {
        "from the jail": _rows(direct, inside),
        "many, from the jail": {
            "per_second": 2000 / many["seconds"],
            "failures": float(many["failures"]),
        },
    }


def _behind_a_wall(jar: Belljar, place: Place, program: str) -> str:
    result = jar.run(program, engine="jail", environment="base", network=place.rule)
    if not result.success:
        raise RuntimeError(f"{result.status}: {result.stderr[-500:]}")
    return result.stdout


async def _alone(place: Place, rounds: int, requests: int) -> dict[str, Any]:
    gateway = Gateway(place.settings)
    told = 0

    def count_one(one: Egress) -> None:
        nonlocal told
        told += one.count

    lease = await gateway.open((place.rule,), on_egress=count_one)
    try:
        proxy = _doors(lease)
        own = place.settings.home / "own.pem"
        own.write_bytes(lease.files[".belljar/ca.pem"])
        direct, through = _samples(), _samples()
        count = 20
        bare = place.client(proxy=None, count=count, authorities=str(place.authorities))
        behind = place.client(proxy=proxy, count=count, authorities=str(own))
        for _ in track(range(1 + rounds // count), description="gateway, alone"):
            _add(direct, await asyncio.to_thread(_run, bare))
            _add(through, await asyncio.to_thread(_run, behind))
        (process,) = gateway.processes
        many = await asyncio.to_thread(_many, place, proxy, requests, process.pid)
        await lease.close()
        return {"alone": _rows(direct, through), "many": many | {"told": float(told)}}
    finally:
        await gateway.close()


def _many(place: Place, proxy: tuple[str, int], requests: int, pid: int) -> dict[str, float]:
    """Memory is looked at once buffers have their size, and at the end."""
    early = max(1000, requests // 10)
    first = json.loads(_run(place.crowd(proxy=proxy, count=early)))
    before = _resident_bytes(pid)
    then = json.loads(_run(place.crowd(proxy=proxy, count=requests - early)))
    after = _resident_bytes(pid)
    return {
        "requests": float(requests),
        "per_second": (requests - early) / then["seconds"],
        "failures": float(first["failures"] + then["failures"]),
        "resident_bytes": float(after),
        "grown_bytes": float(after - before),
    }


def _doors(lease: Lease) -> tuple[str, int]:
    """As a sandbox would: a listener, which the gateway gets."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening, lease.wire() as wire:
        socket.send_fds(wire, [b"L"], [listening.fileno()])
        address = listening.getsockname()
    return str(address[0]), int(address[1])


def _samples() -> dict[str, list[float]]:
    return {kind: [] for kind in KINDS}


def _run(program: str) -> str:
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])
    return done.stdout


def _add(samples: dict[str, list[float]], printed: str) -> None:
    for kind, taken in json.loads(printed).items():
        samples[kind] += taken


def _rows(direct: dict[str, list[float]], through: dict[str, list[float]]) -> dict[str, float]:
    rows = {}
    for kind in KINDS:
        beside, taken = percentile(direct[kind], 50), percentile(through[kind], 50)
        rows[f"{kind}: direct ms, p50"] = beside
        rows[f"{kind}: ms, p50"] = taken
        rows[f"{kind}: added ms, p50"] = taken - beside
    return rows


def _resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS:"))) * 1024


# -- the server, in a process of its own ----------------------------------------------------------


@contextlib.contextmanager
def _place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="belljar-bench-") as folder:
        home = Path(folder)
        ours, theirs = os.pipe()
        argv = [sys.executable, "-m", "bench.gateway", folder]
        server = subprocess.Popen(argv, stdout=theirs, cwd=_ROOT)
        os.close(theirs)
        try:
            with open(ours) as told:
                ports = json.loads(told.readline())
            authorities = Path(ports["authorities"])
            yield Place(
                plain=ports["plain"],
                secure=ports["secure"],
                authorities=authorities,
                settings=Settings(
                    home=home,
                    network_names={HOST: "127.0.0.1"},
                    network_private=("127.0.0.1/32",),
                    network_authorities=authorities,
                    network_requests_per_s=1e6,
                    network_bytes=1 << 40,
                ),
            )
        finally:
            server.kill()
            server.wait()


async def _serve(folder: Path) -> None:
    authority = Authority(folder)
    plain = await asyncio.start_server(_answer, "127.0.0.1", 0)
    secure = await asyncio.start_server(_answer, "127.0.0.1", 0, ssl=authority.context(HOST))
    ports = [server.sockets[0].getsockname()[1] for server in (plain, secure)]
    told = {"plain": ports[0], "secure": ports[1], "authorities": str(authority.file)}
    print(json.dumps(told), flush=True)
    await asyncio.Event().wait()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n")
            await writer.drain()
    writer.close()


_ROOT = str(Path(__file__).parent.parent)

if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
