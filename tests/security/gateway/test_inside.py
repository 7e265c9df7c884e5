"""N1, P2: the attacks once more as code in a sandbox of the jail, with the gateway in the tests'
world. What reaches the gateway is in the result and in the trail; the rest has no way to go."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from belljar import Allow, Belljar, Result, Settings
from belljar.trail.trail import Trail
from tests.world.names import rebinding
from tests.world.place import DNS, GATEWAY, GATEWAY_6, SERVER, SERVER_6, World

HOST, WILD = "api.example.com", "*.wild.example.com"
RULE = Allow(HOST, WILD)


class Inside:
    """A Belljar whose gateway works in the world."""

    def __init__(self, world: World, home: Path) -> None:
        self.trail = f"sqlite:///{home}/trail.db"
        self.jar = Belljar(
            Settings(
                home=home,
                trail=self.trail,
                network_namespace=world.gateway.name,
                network_authorities=world.authority.file,
            )
        )

    def run(self, code: str, **options: Any) -> Result:
        return self.jar.run(code, engine="jail", environment="base", network=RULE, **options)

    def told(self, code: str, **options: Any) -> tuple[Any, Result]:
        """What the code prints as JSON. What is in the result (of many the first) is in the
        trail."""
        result = self.run(code, **options)
        assert result.success, result.stderr
        with Trail(self.trail) as trail:
            lines = trail.egress(id_=result.execution_id, limit=1000)
        told = Counter((one.verdict, one.host) for one in result.egress)
        assert told <= Counter((line["status"], line.get("host", "")) for line in lines)
        return json.loads(result.stdout), result


@pytest.fixture(scope="module")
def inside(world: World) -> Iterator[Inside]:
    with tempfile.TemporaryDirectory(prefix="belljar-inside-") as home:
        found = Inside(world, Path(home))
        with found.jar:
            yield found


def test_the_usual_way(inside: Inside, world: World) -> None:
    """Without it, nothing below would mean anything."""
    code = f"""
import json, urllib.request
urls = ["http://{HOST}/hello?q=1", "https://{HOST}/hello?q=1"]
print(json.dumps([urllib.request.urlopen(url, timeout=30).read().decode() for url in urls]))
"""
    printed, result = inside.told(code)
    assert printed == ["hello\n", "hello\n"]
    assert [(one.verdict, one.path, one.address) for one in result.egress] == [
        ("allowed", "/hello", SERVER)
    ] * 2
    assert [visit.name for visit in world.visits] == ["", HOST]


DIALS = f"""
import errno, json, os, socket
got = {{}}
def attempt(name, call):
    try:
        found = call()
    except OSError as error:
        got[name] = errno.errorcode.get(error.errno, str(error))
    else:
        got[name] = "OPEN " + repr(found)
def tcp(address, port, family=socket.AF_INET):
    with socket.socket(family) as dialled:
        dialled.settimeout(5)
        dialled.connect((address, port))
def udp(address, port, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_DGRAM) as sending:
        sending.sendto(b"x" * 1200, (address, port))
for address in ("{SERVER}", "{GATEWAY}", "1.1.1.1", "10.0.0.1", "169.254.169.254"):
    attempt(f"tcp {{address}}", lambda: tcp(address, 80))
    attempt(f"udp {{address}}", lambda: udp(address, 53))
    attempt(f"quic {{address}}", lambda: udp(address, 443))
for address in ("{SERVER_6}", "{GATEWAY_6}", "64:ff9b::101:101"):
    attempt(f"tcp {{address}}", lambda: tcp(address, 443, socket.AF_INET6))
    attempt(f"udp {{address}}", lambda: udp(address, 443, socket.AF_INET6))
attempt("dns", lambda: udp("{DNS}", 53))
attempt("look-up", lambda: socket.getaddrinfo("other.wild.example.com", 80))
for kind in ((2, 3, 6), (2, 3, 1), (2, 2, 1), (17, 3, 768), (40, 1, 0)):
    attempt(f"socket {{kind}}", lambda: socket.socket(*kind))  # raw, ICMP, ping, packets, vsock
listening = []
for port in (*range(1, 1025), 3128, 8080, 8443):
    for address in ("127.0.0.1", "127.0.0.2"):
        with socket.socket() as dialled:
            dialled.settimeout(5)
            if dialled.connect_ex((address, port)) == 0:
                listening.append([address, port])
got["listening"] = listening
with open("/proc/net/unix") as table:
    named = [line.split()[7:] for line in table.read().splitlines()[1:]]
got["unix"] = [name for name in named if name]
got["descriptors"] = []
for number in range(1000):
    try:
        got["descriptors"].append(os.readlink(f"/proc/self/fd/{{number}}").split(":")[0])
    except OSError:
        pass
print(json.dumps(got))
"""


def test_there_is_no_other_way(inside: Inside, world: World) -> None:
    """A direct dial, UDP, QUIC, DNS, raw sockets; only the three doors listen, and no socket of the
    gateway's can be seen."""
    printed, result = inside.told(DIALS)
    assert sorted(printed.pop("listening")) == [["127.0.0.1", port] for port in (80, 443, 3128)]
    assert printed.pop("unix") == []
    assert "socket" not in printed.pop("descriptors")
    assert not [name for name, how in printed.items() if how.startswith("OPEN")], printed
    assert len(printed) > 25
    assert world.visits == [] and world.names.asked == []
    assert all(one.verdict != "allowed" for one in result.egress)


def test_nw_22(inside: Inside, world: World) -> None:
    """A name that is allowed and moves to the host's listener, and an allowed server that redirects
    there: neither arrives (NW-22)."""
    rebind = "rebind.wild.example.com"
    world.names.answers[rebind] = rebinding(rebind, SERVER, "127.0.0.1")
    world.answers("inner.wild.example.com", "169.254.169.254")
    code = f"""
import json, urllib.error, urllib.request
def fetch(url):
    try:
        return urllib.request.urlopen(url, timeout=30).status
    except urllib.error.URLError as error:
        return str(error)
print(json.dumps([fetch(url) for url in (
    "http://{rebind}/", "http://{rebind}/", "https://{rebind}/", "http://{rebind}:80/",
    "http://{HOST}/redirect?to=http://127.0.0.1/", "http://{HOST}/redirect?to=http://127.1/",
    "https://{HOST}/redirect?to=http://169.254.169.254/",
    "http://{HOST}/redirect?to=http://{rebind}/", "http://inner.wild.example.com/",
    "http://{HOST}/redirect?to=http://inner.wild.example.com/",
)]))
"""
    printed, result = inside.told(code)
    # Some clients do not ask a proxy for 127.0.0.1: there is only the sandbox's own there.
    assert printed[0] == 200
    assert not [one for one in printed[1:] if one == 200], printed
    assert {visit.address for visit in world.visits} == {SERVER}
    assert sum(one.verdict in ("refused", "blocked") for one in result.egress) >= 6


def test_refusals_are_told_to_the_code_and_to_the_trail(inside: Inside, world: World) -> None:
    code = f"""
import json, os, socket, urllib.error, urllib.request
said = []
for url in ("http://other.example.com/", "https://other.example.com/", "http://2130706433/",
            "http://{HOST}:22/", "http://[::ffff:7f00:1]/", "http://93.184.216.34/"):
    try:
        urllib.request.urlopen(url, timeout=30)
    except urllib.error.URLError as error:
        said.append(str(error))
raw = socket.create_connection(("127.0.0.1", 3128), 30)
raw.sendall(b"POST http://{HOST}/ HTTP/1.1\\r\\nHost: {HOST}\\r\\nContent-Length: 4\\r\\n"
            b"Transfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n"
            b"GET /smuggled HTTP/1.1\\r\\n\\r\\n")
said.append(raw.recv(1000).decode())
print(json.dumps(said))
"""
    printed, result = inside.told(code)
    assert len(printed) == 7 and all("403" in one or "400" in one for one in printed), printed
    assert "other.example.com" in printed[0] and "other.example.com" in printed[1]
    assert sum(one.verdict in ("refused", "blocked") for one in result.egress) == 7
    assert world.visits == []


def test_a_flood_from_inside(inside: Inside, world: World) -> None:
    """Connections that are opened and left; another sandbox is served meanwhile."""
    code = f"""
import json, socket, time
held = []
for number in range(400):
    try:
        one = socket.create_connection(("127.0.0.1", 3128), 1)
        one.sendall(b"GET http://{HOST}/deaf HTTP/1.1\\r\\nHost: {HOST}\\r\\n\\r\\n")
        held.append(one)
    except OSError:
        pass
print(json.dumps(len(held)))
"""
    printed, _ = inside.told(code)
    assert printed > 0
    assert len(world.visits) <= inside.jar.settings.network_connections
    again, _ = inside.told(
        f"import urllib.request; print(urllib.request.urlopen('http://{HOST}/', timeout=30).status)"
    )
    assert again == 200


def test_one_sandboxs_rules_are_not_anothers(inside: Inside, world: World) -> None:
    """Nor is a way left open for the next: sandboxes that follow have none, or their own."""
    world.answers("other.example.com")
    code = "import urllib.request; print(urllib.request.urlopen('http://%s/', timeout=30).status)"
    theirs = inside.jar.run(
        code % "other.example.com", engine="jail", environment="base", network="other.example.com"
    )
    assert theirs.success, theirs.stderr
    ours = inside.run(code % "other.example.com")
    assert not ours.success and "403" in ours.stderr
    without = inside.jar.run(code % HOST, engine="jail", environment="base")
    assert not without.success and not without.egress
