"""A network of named hosts, through the gateway, and no other way out (N1, N2)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from belljar.engines import registry
from belljar.errors import Unsupported
from belljar.jar import Belljar
from belljar.kept.sync import Sandbox
from belljar.network import Secret
from belljar.testing.base import Suite
from belljar.testing.upstream import NAME, OTHER, SECOND, Upstream, digest

GET = """
import json, socket, urllib.error, urllib.request
def get(url, proxies=None):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
    try:
        with opener.open(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)
"""
NO_OTHER_WAY = """
import socket
def tried(what):
    try:
        what()
        return 'done'
    except OSError:
        return 'failed'
def datagram(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect((address, PORT))
        s.send(b'out')
        s.settimeout(0.2)
        s.recv(10)
def raw():
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as s:
        s.sendto(bytes(8), (ADDRESS, 0))
for address in (ADDRESS, '192.0.2.1'):
    print(tried(lambda: socket.create_connection((address, PORT), timeout=2)))
    print(tried(lambda: datagram(address)))
print(tried(raw))
print(tried(lambda: socket.getaddrinfo(OTHER, 80)))
"""
MANY = """
import hashlib, socket
def ask(path):
    s = socket.create_connection(('127.0.0.1', 3128), timeout=90)
    lines = (f'GET {URL}{path} HTTP/1.1', f'Host: {HOST}', 'Connection: close', '', '')
    s.sendall('\\r\\n'.join(lines).encode())
    return s
def body(s):
    file = s.makefile('rb')
    status = file.readline()
    while (line := file.readline().strip()):
        pass
    return status, file
large = ask(f'/bytes/{SIZE}')
small = [ask('/hello') for _ in range(COUNT)]
print(sum(body(one)[1].read() == b'hello' for one in small))
found = hashlib.sha256()
status, content = body(large)
while data := content.read(1 << 16):
    found.update(data)
print(found.hexdigest())
"""
SECRET = """
import os, urllib.error, urllib.request
held = os.environ['KEY']
for url in URLS:
    request = urllib.request.Request(url, headers={'Authorization': f'Bearer {held}'})
    try:
        print(urllib.request.urlopen(request, timeout=60).read().decode() == f'Bearer {held}')
    except urllib.error.HTTPError as error:
        print(error.code)
"""
CUT = """
import http.client
try:
    whole = len(held.read()) == 40_000_000
except (http.client.IncompleteRead, ConnectionError):
    whole = False
'whole' if whole else 'cut'
"""


class Networked(Suite):
    @pytest.fixture(scope="class")
    @classmethod
    def upstream(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
        cls.check_available()
        if not registry.capabilities(cls.engine).network:
            pytest.skip(f"{cls.engine} declares that it has no network")
        with Upstream(tmp_path_factory.mktemp("upstream")) as upstream:
            yield upstream

    @pytest.fixture(scope="class")
    @classmethod
    def connected(cls, upstream: Upstream) -> Iterator[Belljar]:
        """A Belljar whose gateway reaches the servers of the test, and nothing else."""
        with Belljar(upstream.settings(cls.settings())) as jar:
            jar.warm("base", 1, engine=cls.engine)
            yield jar

    def test_n1_without_the_capability_it_is_refused(self, jar: Belljar) -> None:
        if self.can.network:
            pytest.skip(f"{self.engine} has a network")
        with pytest.raises(Unsupported, match="network"):
            jar.run("print(1)", network=NAME, engine=self.engine)

    def test_n1_a_named_host_is_reached_and_no_other(
        self, connected: Belljar, upstream: Upstream
    ) -> None:
        """By clients that know of a proxy and by those that do not. A refusal says what is missing,
        and everything that was tried is told."""
        ways = [(name, secure) for name in (NAME, OTHER) for secure in (False, True)]
        urls = [upstream.url("/hello", name, secure=secure) for name, secure in ways]
        direct = urls[:2] if upstream.usual_ports else []
        code = (
            f"{GET}print(json.dumps([get(url) for url in {urls}]))\n"
            f"print(json.dumps([get(url, {{}}) for url in {direct}]))\n"
            "print(open('/etc/hosts').read())"
        )
        result = connected.run(code, network=upstream.rule(), engine=self.engine, timeout_s=100)
        assert result.status == "ok", result
        through, without, hosts = result.stdout.split("\n", 2)
        answers = json.loads(through)
        assert answers[:2] == [[200, "hello"]] * 2, answers
        refused, tunnel = answers[2:]
        assert refused[0] == 403 and f"no rule allows {OTHER}" in refused[1], answers
        assert tunnel[0] == 0 and f"no rule allows {OTHER}" in tunnel[1], answers
        assert json.loads(without) == [[200, "hello"]] * len(direct), without
        assert (f"127.0.0.1 {NAME}" in hosts) == upstream.usual_ports and OTHER not in hosts
        told = [(one.host, one.verdict) for one in result.egress]
        reached = [(NAME, "allowed")] * (2 + len(direct))
        assert sorted(told) == sorted(reached + [(OTHER, "refused")] * 2), result.egress
        assert result.isolation["network"].startswith("named hosts")

    def test_n1_there_is_no_other_way_out(self, connected: Belljar, upstream: Upstream) -> None:
        """Direct dials, datagrams, raw sockets and look-ups end inside, as without a network."""
        before = list(upstream.heard)
        given = f"ADDRESS, PORT, OTHER = {upstream.address!r}, {upstream.port}, {OTHER!r}\n"
        result = connected.run(
            given + NO_OTHER_WAY, network=upstream.rule(), engine=self.engine, timeout_s=100
        )
        assert result.stdout.split() == ["failed"] * 6, result
        assert upstream.heard == before

    def test_n1_many_bytes_and_many_connections_at_once(
        self, connected: Belljar, upstream: Upstream
    ) -> None:
        size, count = (50_000_000, 50) if self.time_scale <= 4 else (5_000_000, 25)
        url = upstream.url("")
        given = f"URL, HOST, SIZE, COUNT = {url!r}, {url[7:]!r}, {size}, {count}\n"
        result = connected.run(
            given + MANY, network=upstream.rule(), engine=self.engine, timeout_s=120
        )
        assert result.stdout.split() == [str(count), digest(size)], result
        assert len(result.egress) == count + 1
        assert {one.verdict for one in result.egress} == {"allowed"}

    def test_n2_a_secret_is_used_and_never_had(
        self, connected: Belljar, upstream: Upstream
    ) -> None:
        """Its host gets the value, and what that says back has the placeholder; another host that
        is allowed, and plain http, get nothing."""
        value = "sk-conformance-0123456789"
        ways = ((NAME, True), (SECOND, True), (NAME, False))
        urls = [upstream.url("/echo", name, secure=secure) for name, secure in ways]
        upstream.shown.clear()
        result = connected.run(
            f"URLS = {urls}\n{SECRET}",
            network=upstream.rule() + upstream.rule(SECOND),
            secrets={"KEY": Secret(value, host=NAME)},
            engine=self.engine,
            timeout_s=100,
        )
        assert result.stdout.split() == ["True", "403", "403"], result
        assert upstream.shown == [f"Bearer {value}"]
        assert [one.verdict for one in result.egress] == ["allowed", "blocked", "blocked"]
        assert value not in result.to_json()

    def test_n1_a_kept_sandboxes_rules_change_while_it_lives(
        self, connected: Belljar, upstream: Upstream
    ) -> None:
        """For new connections and for those that there are; its state stays."""
        self.needs("kept")
        first, second = (upstream.url("/hello", name) for name in (NAME, SECOND))
        both = f"[get({first!r})[0], get({second!r})[0]]"
        held = f"held = urllib.request.urlopen({upstream.url('/bytes/40000000')!r}); held.status"
        with Sandbox(
            connected,
            engine=self.engine,
            environment="base",
            network=upstream.rule(),
            timeout_s=100,
        ) as box:
            seen = box.run(f"{GET}{both}")
            assert seen.value == "[200, 403]", seen
            assert [one.verdict for one in seen.egress] == ["allowed", "refused"]
            assert box.run(held).value == "200"
            box.set_network(upstream.rule(SECOND))
            assert box.run(both).value == "[403, 200]"
            assert box.run(CUT).value == "'cut'"
            names = box.run("open('/etc/hosts').read()").value or ""
            assert NAME not in names and (SECOND in names) == upstream.usual_ports
            box.set_network(None)
            assert box.run(both).value == "[403, 403]"
