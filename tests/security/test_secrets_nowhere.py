"""While code uses a secret, its value is searched for everywhere that it must not be (N2)."""

from __future__ import annotations

import base64
import http.server
import os
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import belljar
from belljar import Allow, Secret
from belljar.egress.authority import Authority
from belljar.egress.certificates import Contexts

API = "api.example.test"
OURS = b"\0-SsB\0"
"""How all processes of Belljar are started that are not a run's program."""
USE = """
import os, urllib.request

def ask(path="/", host="{host}"):
    headers = {{"Authorization": "Bearer " + os.environ["API_KEY"]}}
    request = urllib.request.Request("https://" + host + path, headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode() + str(answer.headers)

echo = ask()
assert "Bearer " + os.environ["API_KEY"] in echo, echo
print(echo)
"""


class Echo(http.server.BaseHTTPRequestHandler):
    seen: list[str]

    def do_GET(self) -> None:
        self.seen.append(str(self.headers))
        body = str(self.headers).encode()
        self.send_response(200, self.headers["Authorization"])
        self.send_header("X-Echo", self.headers["Authorization"])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@dataclass
class Place:
    jar: belljar.Belljar
    home: Path
    host: str
    value: str
    seen: list[str]
    ticks: int
    """Of the system's clock when it began."""

    def forms(self) -> list[bytes]:
        # Not all of it: its ends share characters with what is around it in base64.
        shifted = [base64.b64encode(b"x" * n + self.value.encode())[4:-4] for n in range(3)]
        return [self.value.encode(), self.value.encode().hex().encode(), *shifted]

    def is_in(self, data: bytes) -> bool:
        return any(form in data for form in self.forms())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("authority")
    authority = Authority.load(folder)
    (folder / "trusted.pem").write_bytes(authority.certificate_pem)
    Echo.seen = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    server.socket = Contexts(authority).for_name(API).wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # Known to nobody else, so that finding it means something; and in the environment here, which
    # none of the processes that are started may inherit.
    value = secrets.token_urlsafe(30)
    os.environ["BELLJAR_TEST_KEY"] = value
    home = tmp_path_factory.mktemp("home")
    settings = belljar.Settings(
        home=home,
        engine="jail",
        network_private=("127.0.0.0/8",),
        network_names={API: "127.0.0.1"},
        network_authorities=folder / "trusted.pem",
        trail=f"sqlite:///{home}/trail.db",
        trail_text=True,
    )
    ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
    with belljar.Belljar(settings) as jar:
        yield Place(jar, home, f"{API}:{server.server_port}", value, Echo.seen, ticks)
    del os.environ["BELLJAR_TEST_KEY"]
    server.shutdown()
    server.server_close()


def started_since(ticks: int) -> list[int]:
    """Zygotes and sandboxes are nobody's children here, so by their age."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            fields = of_process(int(entry), "stat").rpartition(b")")[2].split()
            if fields and int(fields[19]) >= ticks:
                found.append(int(entry))
    return found


def memory(pid: int) -> Iterator[bytes]:
    """All of it that is not the unchanged content of a file."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        for line in maps:
            bounds, rights, *rest = line.split()
            if "r" not in rights or (len(rest) > 3 and rest[3].startswith(("[v", "/dev"))):
                continue
            if "w" not in rights and len(rest) > 3:
                continue
            start, end = (int(bound, 16) for bound in bounds.split("-"))
            try:
                file.seek(start)
                while start < end and (piece := file.read(min(end - start, 1 << 26))):
                    start += len(piece)
                    yield piece
            except OSError:
                continue


def of_process(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""


def test_n2_a_run(place: Place) -> None:
    result = place.jar.run(
        USE.format(host=place.host),
        network=Allow(place.host),
        secrets={"API_KEY": Secret("env:BELLJAR_TEST_KEY", host=API)},
    )
    assert result.success, result.stderr
    assert f"Bearer {place.value}" in place.seen[-1]
    assert not place.is_in(repr(result).encode() + result.stdout.encode())


def test_n2_a_kept_sandbox_with_checkpoints(
    place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = Secret("env:BELLJAR_TEST_KEY", host=API)
    with belljar.Sandbox(
        jar=place.jar, network=Allow(place.host), secrets={"API_KEY": secret}
    ) as box:
        first = box.run(USE.format(host=place.host))
        assert first.success, first.stderr
        assert box.run("again = ask('/?page=2')").success
        held = box.run(
            "import urllib.error\n"
            "try:\n"
            "    ask('/' + os.environ['API_KEY'])\n"
            "except urllib.error.HTTPError as error:\n"
            "    print(error.code, error.reason, error.read().decode())\n"
        )
        assert "403" in held.stdout and "API_KEY stands in the address" in held.stdout
        assert [one.verdict for one in held.egress] == ["blocked"]
        assert len(place.seen) >= 2 and place.value in place.seen[-1]
        search(place, first.stdout.partition("Bearer ")[2].split()[0])
        assert len(box.checkpoints()) == 3
        box.rollback(held.run_id)
        assert box.run("print(len(again))").success
        assert not place.is_in(repr((first, held)).encode())
    for path in place.home.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert not place.is_in(path.read_bytes()), path
    assert not place.is_in("".join(capfd.readouterr()).encode())


def search(place: Place, placeholder: str) -> None:
    """Found in one process, the gateway, which shows that the search finds; or in none, where the
    gateway cannot be looked into. And the search was where the sandbox is."""
    having, inside, zygotes = [], [], []
    for pid in started_since(place.ticks):
        command = of_process(pid, "cmdline")
        for what in (command, of_process(pid, "environ")):
            assert not place.is_in(what), (pid, command)
        if OURS not in command:
            continue
        try:
            pieces = list(memory(pid))
        except OSError:
            continue
        if any(place.is_in(piece) for piece in pieces):
            having.append((pid, command))
        elif any(placeholder.encode() in piece for piece in pieces):
            inside.append((pid, command))
        elif pieces:
            zygotes.append((pid, command))
    if os.geteuid() == 0:
        assert len(having) == 1, having
    else:
        assert not having
    # The interpreter and what it left behind before each run.
    assert len(inside) >= 4, inside
    assert zygotes
