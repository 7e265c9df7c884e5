"""Where a soak happens: a server with its own home, port and databases, three tenants, and a host
for their code to reach. Everything is in one folder, which is removed afterwards."""

from __future__ import annotations

import base64
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from belljar.settings import Settings, default_home
from belljar.testing.served import to_toml
from belljar.testing.upstream import Upstream

from .dockerd import Dockerd
from .record import Life, Record

TENANTS = ("alice", "bob", "carol")
METERED = TENANTS[0]
"""Has one-shot runs only, so that what it is charged can be compared exactly."""
DISK_BYTES = 4 << 30
"""Of the file system for the databases; it takes memory only as it is filled."""
CPU_S_PER_DAY = 1_000_000
START_S = 60.0
STOP_S = 60.0


@dataclass(frozen=True)
class Tenant:
    name: str
    key: str
    secret: str
    """A credential that its code uses without having it."""

    def forms(self) -> Iterator[bytes]:
        """How the secret may show: as it is, in hexadecimal, in base64 wherever it begins there."""
        value = self.secret.encode()
        yield value
        yield value.hex().encode()
        for before in range(3):  # the ends share characters with what is around them
            yield base64.b64encode(b"x" * before + value)[4:-4]


class Place:
    """Use `place()`. The server is started, killed and stopped here, and each life recorded."""

    def __init__(
        self, folder: Path, upstream: Upstream, record: Record, now: Callable[[], float]
    ) -> None:
        self.folder = folder
        self.upstream = upstream
        self.home = folder / "home"
        self.disk = folder / "disk"
        self.temporary = folder / "tmp"
        self.log = folder / "server.log"
        self.trail_url = f"sqlite:///{self.disk}/trail.db"
        self.tenants: dict[str, Tenant] = {}
        self.operator = ""
        self.has_disk = False
        """Whether the databases' file system is one of its own, that can be filled."""
        self.docker: Dockerd | None = None
        self._record = record
        self._now = now
        self._process: subprocess.Popen[str] | None = None
        self._variables = os.environ | {
            "BELLJAR_HOME": str(self.home),
            "TMPDIR": str(self.temporary),
        }
        self.port = _free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def life(self) -> Life:
        return self._record.lives[-1]

    def prepare(self, seed: int, *, docker: bool) -> None:
        for folder in (self.home, self.disk, self.temporary):
            folder.mkdir(mode=0o700)
        built = Path(os.environ.get("BELLJAR_TEST_HOME") or default_home()) / "environments"
        if built.is_dir():
            (self.home / "environments").symlink_to(built)
        self.has_disk = os.geteuid() == 0 and self.mount(DISK_BYTES, first=True)
        if not self.has_disk:
            self._record.notes.append("no disk was filled: that takes root, to mount one")
        if docker:
            self._start_docker()
        (self.home / "server.toml").write_text(to_toml(self._settings()))
        chance = random.Random(f"{seed} secrets")
        self.operator = self.belljar("keys", "add", "operator", "--operator").stdout.strip()
        for name in TENANTS:
            key = self.belljar("keys", "add", name).stdout.strip()
            secret = f"soak-{name}-{chance.randbytes(18).hex()}"
            self.tenants[name] = Tenant(name, key, secret)

    def _start_docker(self) -> None:
        docker = Dockerd(self.folder / "docker")
        if why := docker.why_not():
            self._record.notes.append(f"no Docker: {why}")
            return
        self.docker = docker
        if not docker.start():
            raise RuntimeError(f"dockerd does not start: {docker.log.read_text()[-1000:]}")
        if not docker.has_image:
            self._variables["DOCKER_HOST"] = docker.host
            self.belljar("image", "build", "base")

    def _settings(self) -> dict[str, object]:
        reached = self.upstream.settings(Settings())
        return {
            "port": self.port,
            "trail": self.trail_url,
            "state": f"sqlite:///{self.disk}/state.db",
            "drain_s": 10.0,
            "quotas": {"cpu_s_per_day": CPU_S_PER_DAY},
            "sandboxes": {
                "engine": "jail",
                "pool_size": 2,
                "pool_maximum": 8,
                "pool_idle_s": 5.0,
                "concurrency": 16,
                "build_environments": False,
                "network_allowed": list(self.upstream.rule()),
                "network_names": dict(reached.network_names),
                "network_private": list(reached.network_private),
                "network_authorities": str(reached.network_authorities),
                "docker_host": self.docker.host if self.docker else "unix:///nowhere",
            },
        }

    def mount(self, size: int, *, first: bool = False) -> bool:
        """The databases' disk, this large from now on."""
        options = f"size={size},mode=700"
        argv = ["mount", "-t", "tmpfs", "-o", options, "belljar-soak", str(self.disk)]
        if not first:
            argv = ["mount", "-o", f"remount,{options}", str(self.disk)]
        return subprocess.run(argv, capture_output=True).returncode == 0

    def fill(self) -> bool:
        """Not one page more can be written: the file system shrinks to what it holds."""
        held = os.statvfs(self.disk)
        return self.mount((held.f_blocks - held.f_bfree) * held.f_frsize)

    def make_room(self) -> None:
        if not self.mount(DISK_BYTES):
            raise RuntimeError(f"{self.disk} cannot be made larger again")

    def belljar(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A command with this server's home and trail."""
        return subprocess.run(
            [sys.executable, "-m", "belljar.cli.main", *arguments],
            env=self._variables | {"BELLJAR_TRAIL": self.trail_url},
            capture_output=True,
            text=True,
            check=check,
            timeout=300,
        )

    # -- the server --------------------------------------------------------------------------------

    def start(self) -> bool:
        """Whether it printed its address; it may not be ready yet. In a session of its own: an
        interrupt at the terminal is for the soak, which then ends the server in its own time."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "belljar.cli.main", "serve"],
                env=self._variables,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._record.lives.append(Life(pid=self._process.pid, began=self._now()))
        assert self._process.stdout is not None
        return "http://" in self._process.stdout.readline()

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def alive(self) -> bool:
        """Notes down a death of its own."""
        if self._process is None or self._process.poll() is None:
            return self._process is not None
        if not self.life.how:
            self.life.how = "died"
            self._ended()
        return False

    def kill(self) -> None:
        self.life.how = "killed"  # before it is: others look whether it died by itself
        self.signal(signal.SIGKILL)
        self._ended()

    def stop(self) -> bool:
        """Told to end as a service manager would; whether it did in time."""
        assert self._process is not None
        self.life.how = "stopped"
        self.signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        self._ended()
        return True

    def _ended(self) -> None:
        assert self._process is not None
        self.life.exit_status = self._process.wait()
        self.life.ended = self._now()
        if self._process.stdout:
            self._process.stdout.close()

    def close(self) -> None:
        """Whatever happened: no server, no daemon, no mount."""
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGCONT)
            self.kill()
        if self.docker:
            self.docker.stop()
        if self.has_disk:
            subprocess.run(["umount", "--lazy", str(self.disk)], capture_output=True)


@contextlib.contextmanager
def place(record: Record, now: Callable[[], float], *, docker: bool) -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="belljar-soak-"))
    try:
        authority = folder / "upstream"
        authority.mkdir(mode=0o700)
        with Upstream(authority) as upstream:
            made = Place(folder, upstream, record, now)
            try:
                made.prepare(record.seed, docker=docker)
                yield made
            finally:
                made.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as asking:
        asking.bind(("127.0.0.1", 0))
        return int(asking.getsockname()[1])
