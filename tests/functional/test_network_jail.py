"""The jail's side of the network (N1): doors in a sandbox's own namespace, a gateway behind them.

The gateway here is a small one of the tests' own: it takes the listening sockets from the wire and
says which door a connection came through.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from belljar import aio, execution, inputs
from belljar.conversation import Conversation
from belljar.engines.base import Doors, hosts_file
from belljar.engines.jail.engine import JailEngine
from belljar.engines.jail.process import Zygote
from belljar.environments.catalogue import BASE
from belljar.errors import EngineError, InvalidRequest
from belljar.model import Limits, Request
from belljar.probes import load
from belljar.receiver import Outcome
from belljar.sandbox import Sandbox
from belljar.settings import Settings

HOSTS = {"api.example.com": "127.0.0.1"}
PROXY = {"http_proxy": "http://127.0.0.1:3128"}


class Answering:
    """What is behind the doors: one thread per wire and per door."""

    def __init__(self, name: str = "gateway", *, accepting: bool = True) -> None:
        self.name = name
        self.accepting = accepting
        self.offered = Doors(wire=self.wire, hosts=HOSTS)
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
                if not self.accepting:
                    continue
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
        """Those who wait for a connection learn it, too."""
        while self.doors:
            door = self.doors.pop()
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
        self.isolation: Mapping[str, str] = {}
        """Of the last sandbox."""

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
            self.isolation = sandbox.isolation
            await sandbox.destroy()

    def zygote(self) -> Zygote:
        (task,) = self.engine._zygotes.values()
        return task.result()

    def descriptors(self) -> tuple[int, int]:
        """How many are open in this process and in the zygote; the latter only root can see."""
        pidfd = self.zygote()._pidfd
        said = Path(f"/proc/self/fdinfo/{pidfd}").read_text()
        pid = next(line.split()[1] for line in said.splitlines() if line.startswith("Pid:"))
        counted = len(os.listdir("/proc/self/fd"))
        try:
            return counted, len(os.listdir(f"/proc/{pid}/fd"))
        except PermissionError:
            return counted, 0


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
def test_n1_code_reaches_the_gateway_by_its_three_doors(
    jail: Jail, gateway: Answering, fresh: bool
) -> None:
    """By proxy variables, and by name where a client knows no proxy."""
    code = """
import socket, urllib.request
print(urllib.request.urlopen("http://other.example.com/a").read().decode())
plain = urllib.request.build_opener(urllib.request.ProxyHandler({}))
print(plain.open("http://api.example.com/b").read().decode())
print(plain.open("http://api.example.com:443/c").read().decode())
"""
    lines = said(jail.run(gateway.offered, code, fresh_exec=fresh)).splitlines()
    assert lines == [
        "gateway 0: GET http://other.example.com/a HTTP/1.1",
        "gateway 1: GET /b HTTP/1.1",
        "gateway 2: GET /c HTTP/1.1",
    ]
    assert jail.isolation["network"] == "named hosts, by the gateway (namespace)"


def test_n1_names_can_be_read_and_not_written(jail: Jail, gateway: Answering) -> None:
    code = """
import os
print(open("/etc/hosts").read())
attempts = (
    lambda: open("/etc/hosts", "a"),
    lambda: os.chmod("/etc/hosts", 0o666),
    lambda: os.remove("/etc/hosts"),
    lambda: os.rename("/etc/hosts", "/tmp/hosts"),
    lambda: os.rename("/tmp/mine", "/etc/hosts"),
    lambda: os.link("/etc/hosts", "/tmp/hosts"),
    lambda: os.utime("/etc/hosts"),
    lambda: os.open(f"/proc/self/fd/{os.open('/etc/hosts', os.O_RDONLY)}", os.O_WRONLY),
)
open("/tmp/mine", "w").close()
for number, attempt in enumerate(attempts):
    try:
        attempt()
        print("could", number)
    except OSError:
        pass
"""
    assert said(jail.run(gateway.offered, code)) == (
        "127.0.0.1 localhost belljar\n::1 localhost\n127.0.0.1 api.example.com"
    )


def test_i4_all_but_the_doors_is_as_without_them(jail: Jail, gateway: Answering) -> None:
    """Direct dials, UDP, raw sockets, name servers, other families: the very same errors."""
    code = """
import socket
def tried(*what, to=None, send=b""):
    try:
        one = socket.socket(*what)
        one.settimeout(5)
        if to and send:
            one.sendto(send, to)
            one.connect(to)
            one.send(send)
            return one.recv(100)
        return one.connect(to) if to else "made"
    except OSError as error:
        return error.args[0] if error.args[0] != "timed out" else "timed out"
STREAM, DGRAM, RAW = socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW
for address in ("192.0.2.1", "10.0.0.1", "169.254.169.254", "1.1.1.1", "255.255.255.255"):
    for port in (53, 80, 443, 3128):
        print(address, port, tried(2, STREAM, to=(address, port)))
        print(address, port, tried(2, DGRAM, to=(address, port), send=b"x"))
for address in ("2001:db8::1", "fe80::1", "::ffff:192.0.2.1"):
    print(address, tried(10, STREAM, to=(address, 443)), tried(10, DGRAM, to=(address, 443)))
for port in (1, 22, 53, 8080):
    print(port, tried(2, STREAM, to=("127.0.0.1", port)))
    print(port, tried(2, DGRAM, to=("127.0.0.1", port), send=b"x"))
for kind in ((2, RAW, 1), (2, RAW, 6), (10, RAW, 58), (17, RAW), (17, DGRAM), (2, DGRAM, 1),
             (16, RAW, 0), (40, STREAM), (38, 5), (2, STREAM, 262), (2, STREAM, 132), (1, RAW)):
    print(kind, tried(*kind))
for name in ("example.com", "unknown.invalid", "metadata.google.internal"):
    try:
        print(socket.getaddrinfo(name, 80))
    except OSError as error:
        print(name, error)
"""
    without = said(jail.run(None, code))
    assert said(jail.run(gateway.offered, code)) == without
    assert "[Errno -3] Temporary failure in name resolution" in without
    assert "made" not in without


def test_n1_many_connections_at_once_wait_for_a_slow_gateway(jail: Jail) -> None:
    """It accepts none of them; TCP would otherwise try again after a second, and again."""
    code = """
import socket
ports = [3128, 443] * 64
print(len([socket.create_connection(("127.0.0.1", port), 20) for port in ports]))
"""
    gateway = Answering(accepting=False)
    assert said(jail.run(gateway.offered, code)) == "128"
    gateway.close()


def test_l2_little_waits_where_nobody_accepts(jail: Jail) -> None:
    """Such bytes are charged to nobody: few at a door, fewer at what the code itself listens on."""
    code = """
import socket
own = socket.create_server(("127.0.0.1", 0), backlog=4096)
for port in (3128, 443, own.getsockname()[1]):
    held = connected = 0
    for _ in range(80):
        client = socket.socket()
        client.settimeout(0.005)
        try:
            client.connect(("127.0.0.1", port))
            connected += 1
            while True:
                held += client.send(bytes(65536))
        except OSError:
            pass
        client.close()
    print(connected, held)
"""
    gateway = Answering(accepting=False)
    proxy, https, own = [
        [int(number) for number in line.split()]
        for line in said(jail.run(gateway.offered, code)).splitlines()
    ]
    gateway.close()
    for connected, held in (proxy, https):
        assert connected <= 65 and held < 8 << 20
    assert own[0] <= 33 and own[1] < 8 << 20


def test_i4_doors_are_not_handed_on(jail: Jail, gateway: Answering) -> None:
    """A namespace without traffic goes to the next sandbox; one with doors never does."""
    code = """
import socket
for port in (3128, 80, 443):
    try:
        socket.create_connection(("127.0.0.1", port), 5)
        print("connected to", port)
    except ConnectionRefusedError:
        pass
"""
    for _ in range(3):
        said(jail.run(gateway.offered, "pass"))
        assert said(jail.run(None, code)) == ""
    assert jail.isolation["network"] == "none (namespace)"


def test_i4_two_sandboxes_have_nothing_in_common(jail: Jail) -> None:
    code = """
import socket, sys, time, urllib.request
own = socket.create_server(("0.0.0.0", 9000))
said = urllib.request.urlopen("http://x.example.com/").read().decode()
print(said.split()[0], flush=True)
for _ in range(20):
    urllib.request.urlopen("http://x.example.com/").read()
own.settimeout(0.1)
try:
    print("a visitor", own.accept())
except TimeoutError:
    pass
"""
    first, second = Answering("first"), Answering("second")

    async def both() -> list[Outcome]:
        made = [jail.running(one.offered, code) for one in (first, second)]
        return await asyncio.gather(*made)

    assert [said(one) for one in jail.runner.run(both())] == ["first", "second"]
    assert (first.heard, second.heard) == (21, 21)
    first.close()
    second.close()


def test_i4_the_code_has_neither_wire_nor_listeners(jail: Jail, gateway: Answering) -> None:
    code = """
import ctypes, os, socket, subprocess, sys
def looked(tag):
    for number in range(1024):
        try:
            kind = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if kind.startswith("socket:"):
            one = socket.socket(fileno=os.dup(number))
            listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            print(tag, number, one.family.name, bool(listens))
looked("code")
for attempt in (
    lambda: os.listdir("/proc/1/fd"),
    lambda: os.open("/proc/1/fd/3", os.O_RDWR),
    lambda: os.open("/proc/1/ns/net", os.O_RDONLY),
    lambda: open("/proc/1/mem", "rb"),
):
    try:
        print("could", attempt())
    except OSError:
        pass
libc = ctypes.CDLL(None, use_errno=True)
one = libc.syscall(434, 1, 0)
for number in range(64):
    if one >= 0 and libc.syscall(438, one, number, 0) >= 0:
        print("took", number)
# In the doors' place: as another listener beside them, or in front of them.
for host in ("127.0.0.1", "0.0.0.0", "127.0.0.2"):
    for port in (3128, 80, 443):
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            mine = socket.socket()
            mine.setsockopt(socket.SOL_SOCKET, option, 1)
            try:
                mine.bind((host, port))
                mine.listen()
                print("listens", host, port)
            except OSError:
                pass
            mine.close()
"""
    told = said(jail.run(gateway.offered, code)).splitlines()
    assert [line for line in told if "127.0.0.2" not in line] == []
    assert all("127.0.0.2 3128" in line for line in told), "an address nobody is sent to"


def test_r3_two_hundred_sandboxes_leave_nothing(jail: Jail) -> None:
    """No descriptor and so no namespace: neither here nor in the zygote."""
    gateway = Answering()
    said(jail.run(gateway.offered, "pass"))
    gateway.close()
    before = jail.descriptors()

    async def all_of_them() -> None:
        for _ in range(50):
            made = [jail.running(gateway.offered, "pass") for _ in range(4)]
            for outcome in await asyncio.gather(*made):
                assert outcome.exit_code == 0, outcome.stderr

    jail.runner.run(all_of_them())
    gateway.close()
    # Spare namespaces that were there before have been used up: fewer is as it should be.
    deadline = time.monotonic() + 30
    while any(map(int.__gt__, jail.descriptors(), before)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(map(int.__le__, jail.descriptors(), before)), (jail.descriptors(), before)


def test_n1_a_zygote_that_died_is_replaced_and_gets_a_wire_of_its_own(
    jail: Jail, gateway: Answering
) -> None:
    code = 'import urllib.request; print(urllib.request.urlopen("http://x.example.com/").status)'
    assert said(jail.run(gateway.offered, code)) == "200"
    zygote = jail.zygote()
    signal.pidfd_send_signal(zygote._pidfd, signal.SIGKILL)
    assert said(jail.run(gateway.offered, code)) == "200"
    assert jail.zygote() is not zygote


def test_n1_without_a_gateway_there_is_no_sandbox(jail: Jail) -> None:
    """It fails closed, and costs nobody else anything."""

    def dead() -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours

    with pytest.raises(EngineError, match="doors to the gateway: Broken pipe"):
        jail.run(Doors(wire=dead, hosts=HOSTS), "pass")
    assert said(jail.run(None, "print(1)")) == "1"


@pytest.mark.parametrize("probe", ["NW-19", "NW-55"])
def test_i8_probes_object_to_a_gateway_that_lets_everybody_pass(
    jail: Jail, gateway: Answering, probe: str
) -> None:
    """What holds everywhere is no evidence: this one says 200 to whatever it hears."""
    (attack,) = [one for one in load() if one.id == probe]
    told = said(jail.run(gateway.offered, attack.render(dict.fromkeys(attack.fixtures, "1"))))
    assert f"PROBE {probe} BROKEN" in told


@pytest.mark.parametrize("name", ["a b", "x\n127.0.0.1 y", "UPPER", "", "ü", "x#"])
def test_n1_what_is_no_name_never_gets_into_the_table(name: str) -> None:
    with pytest.raises(EngineError):
        hosts_file({name: "127.0.0.1"})
    with pytest.raises(EngineError):
        hosts_file({"x.example.com": name})


def test_n1_a_table_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="2000 hosts do not fit"):
        hosts_file({f"host-{number}.example.com": "127.0.0.1" for number in range(2000)})


# -- kept sandboxes --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def jar(jail: Jail) -> Iterator[aio.Belljar]:
    jar = aio.Belljar()
    yield jar
    jail.runner.run(jar.close())


VISIT = """
import urllib.request
plain = urllib.request.build_opener(urllib.request.ProxyHandler({}))
def visit(name):
    try:
        return plain.open(f"http://{name}/").read().decode().split()[0]
    except OSError as error:
        why = getattr(error, "reason", error)
        return why if isinstance(why, str) else why.args[0]
"""


def test_n1_a_sandbox_that_lives_gets_doors_and_its_branches_share_them(
    jail: Jail, jar: aio.Belljar, gateway: Answering
) -> None:
    """Live: none at first, then doors, then other names; copies made before and after."""

    async def lives() -> None:
        async with aio.Sandbox(jar, environment="base") as box:
            assert (await box.run(VISIT)).success
            (early,) = await box.fork()
            assert (await box.run("visit('api.example.com'), visit('127.0.0.1')")).value == (
                "(-3, 111)"
            )
            held = box._held
            assert held is not None and isinstance(held.engine, JailEngine)
            wall = held.conversation.wall
            await held.engine.open_doors(wall, gateway.offered)
            (late,) = await box.fork()
            for one in (box, early, late):
                result = await one.run("visit('api.example.com')")
                assert result.value == "'gateway'", result
                assert result.isolation["network"].startswith("named hosts")
            await held.engine.name_hosts(wall, {"b.example.com": "127.0.0.1"})
            for one in (box, early, late):
                code = "visit('api.example.com'), visit('b.example.com'), visit('localhost')"
                assert (await one.run(code)).value == "(-3, 'gateway', 'gateway')"
                hosts = await one.run("open('/etc/hosts').read().count('example')")
                assert hosts.value == "1"
                mounts = await one.run("open('/proc/self/mountinfo').read().count('/etc/hosts')")
                assert mounts.value == "1", "changes do not pile up"
            with pytest.raises(EngineError, match="in use"):
                await held.engine.open_doors(wall, gateway.offered)
            gateway.close()
            assert (await box.run("visit('b.example.com')")).value == "111"
            other = Answering("another")
            await held.engine.open_doors(wall, other.offered)
            assert (await early.run("visit('api.example.com')")).value == "'another'"
            other.close()

    jail.runner.run(lives())


def test_n1_a_kept_sandbox_has_doors_from_the_start(
    jail: Jail, jar: aio.Belljar, gateway: Answering
) -> None:
    async def lives() -> None:
        engine = JailEngine(Settings())
        ground = await execution.Grounds(Settings(), None).get(BASE, "", in_image=False)
        kept = dataclasses.replace(ground, kept=True)
        wall, _ = await inputs.walled(
            engine, kept, Limits(), (), (), doors=gateway.offered, whose=""
        )
        assert wall.isolation["network"].startswith("named hosts")
        talk = Conversation(wall)
        await talk.ready()
        await talk.destroy()
        await engine.close()

    jail.runner.run(lives())


def test_n1_the_gateway_itself_behind_the_doors(jail: Jail) -> None:
    """Rules that change while a sandbox lives change for its copies, too; without the gateway all
    of them are refused at once, and the next sandbox has a new one."""
    names = {"a.example.com": "127.0.0.1", "b.example.com": "127.0.0.1"}
    settings = Settings(network_private=("127.0.0.0/8",), network_names=names, trail=False)
    server = Answering("server")
    listening = socket.create_server(("127.0.0.1", 0))
    server.doors.append(listening)
    threading.Thread(target=server._accept, args=(listening, 9), daemon=True).start()
    port = listening.getsockname()[1]
    code = VISIT.replace("urllib.request.ProxyHandler({})", "")

    async def lives() -> None:
        async with aio.Belljar(settings) as jar:
            rule = f"a.example.com:{port}"
            async with aio.Sandbox(jar, environment="base", network=rule) as box:
                assert (await box.run(code)).success
                (copy,) = await box.fork()
                places = [f"a.example.com:{port}", f"b.example.com:{port}"]
                visits = f"[str(visit(place))[:16] for place in {places}]"
                for one in (box, copy):
                    assert (await one.run(visits)).value == "['server', 'belljar: no rule']"
                await box.set_network(f"b.example.com:{port}")
                for one in (copy, box):
                    result = await one.run(visits)
                    assert result.value == "['belljar: no rule', 'server']"
                    assert [each.verdict for each in result.egress] == ["refused", "allowed"]
                service = jar._service
                assert service is not None and service._network._gateway is not None
                (lost,) = service._network._gateway.processes
                lost.close()
                for one in (copy, box):
                    assert (await one.run(visits)).value == "['belljar: no rule', 'server']"
            result = await jar.run(code + f"print({visits})", environment="base", network=rule)
            assert result.stdout == "['server', 'belljar: no rule']\n"

    jail.runner.run(lives())
    server.close()
