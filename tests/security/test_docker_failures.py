"""What becomes of runs when Docker, the host program or somebody else lets a container down.

Needs a daemon of its own, which it stops, fills up and kills; so for root only, and never the one
that DOCKER_HOST names.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import belljar
from belljar import Belljar, Settings
from belljar.engines.docker import available
from belljar.engines.docker.daemon import Daemon, find_address
from belljar.engines.docker.owner import FILTER
from belljar.errors import Unavailable

IMAGES = Path(os.environ.get("BELLJAR_TEST_HOME") or Settings().home)
TRIES_S = 20.0

pytestmark = pytest.mark.slow


class OwnDaemon:
    """A dockerd with everything it keeps in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = f"unix://{folder}/docker.sock"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def api(self) -> Daemon:
        return Daemon(find_address(self.socket))

    def start(self) -> None:
        command = ["dockerd", "--data-root", f"{self.folder}/data"]
        command += ["--exec-root", f"{self.folder}/exec", "--pidfile", f"{self.folder}/docker.pid"]
        command += ["--host", self.socket, "--iptables=false", "--bridge=none"]
        command += ["--config-file", f"{self.folder}/none.json"]
        (self.folder / "none.json").write_text("{}")
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + TRIES_S
        while True:
            try:
                self.api.call_now("GET", "/_ping", wait_s=2)
                return
            except belljar.BelljarError:
                assert time.monotonic() < deadline, (self.folder / "log").read_text()[-2000:]
                time.sleep(0.1)

    def stop(self) -> None:
        if self.process:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            self.process.wait(60)

    def containers(self) -> list[dict[str, Any]]:
        query = {"all": "1", "filters": FILTER}
        found: list[dict[str, Any]] = self.api.call_now("GET", "/containers/json", query=query)
        return found

    def settings(self, home: Path, **more: Any) -> Settings:
        return Settings(home=home, docker_host=self.socket, **more)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnDaemon]:
    if os.geteuid() != 0 or not shutil.which("dockerd"):
        pytest.skip("starts a Docker daemon of its own: needs root and dockerd")
    found = OwnDaemon(tmp_path_factory.mktemp("docker"))
    found.start()
    try:
        build_base(found)
        yield found
    finally:
        found.stop()


def build_base(daemon: OwnDaemon) -> None:
    """From the archive that `belljar image build` keeps, if it was built before."""
    environment = {**os.environ, "DOCKER_HOST": daemon.socket, "BELLJAR_HOME": str(IMAGES)}
    command = [sys.executable, "-m", "belljar.cli.main", "image", "build", "base"]
    command += ["--method", "mmdebstrap"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no image: {done.stderr[-300:]}")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def eventually(look: Callable[[], object], wanted: object, *, within_s: float = 15.0) -> None:
    deadline = time.monotonic() + within_s
    while (seen := look()) != wanted and time.monotonic() < deadline:
        time.sleep(0.05)
    assert seen == wanted


def running(jar: Belljar, daemon: OwnDaemon, code: str, **options: Any) -> Any:
    """Starts a run and waits until its code prints something."""
    seen: list[bytes] = []
    live = jar.submit(code, engine="docker", on_output=lambda _, data: seen.append(data), **options)
    eventually(lambda: bool(seen), True)
    return live


ENDLESS = "import time\nprint('up', flush=True)\ntime.sleep(60)"


def test_a_daemon_that_hangs(daemon: OwnDaemon, home: Path) -> None:
    """An error that says so, for runs under way and for new ones, and no hanging caller; when the
    daemon goes on, so does Belljar."""
    assert daemon.process
    with Belljar(daemon.settings(home, pool_size=1)) as jar:
        assert jar.run("print(1)", engine="docker").stdout == "1\n"
        live = running(jar, daemon, ENDLESS, timeout_s=3)
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            started = time.monotonic()
            with pytest.raises(belljar.EngineError, match="stopped answering"):
                live.result(30)
            assert time.monotonic() - started < 3 + 2 + 3
            started = time.monotonic()
            with pytest.raises(belljar.BelljarError, match="answer"):
                jar.run("print(2)", engine="docker", timeout_s=3, disk_files=77)
            assert time.monotonic() - started < 20
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        assert jar.run("print(3)", engine="docker").stdout == "3\n"
        eventually(lambda: len(jar.run("print(4)", engine="docker").stdout), 2)
    eventually(daemon.containers, [])


def test_a_container_removed_by_somebody(daemon: OwnDaemon, home: Path) -> None:
    with Belljar(daemon.settings(home, pool_size=0)) as jar:
        live = running(jar, daemon, ENDLESS, timeout_s=20)
        (container,) = daemon.containers()
        started = time.monotonic()
        daemon.api.call_now("DELETE", f"/containers/{container['Id']}", query={"force": "1"})
        with pytest.raises(belljar.EngineError, match="was lost"):
            live.result(15)
        assert time.monotonic() - started < 10
        assert jar.run("print(1)", engine="docker").stdout == "1\n"
    eventually(daemon.containers, [])


def test_waiting_containers_removed_by_somebody(daemon: OwnDaemon, home: Path) -> None:
    """The pool notices and makes new ones; no caller meets a dead one."""
    with Belljar(daemon.settings(home, pool_size=2)) as jar:
        jar.warm("base", 2, engine="docker")
        waiting = daemon.containers()
        assert len(waiting) == 2
        for container in waiting:
            daemon.api.call_now("DELETE", f"/containers/{container['Id']}", query={"force": "1"})
        time.sleep(0.3)
        for number in range(4):
            assert jar.run(f"print({number})", engine="docker").stdout == f"{number}\n"
    eventually(daemon.containers, [])


def test_a_daemon_that_was_restarted(daemon: OwnDaemon, home: Path) -> None:
    with Belljar(daemon.settings(home, pool_size=1)) as jar:
        jar.warm("base", 1, engine="docker")
        live = running(jar, daemon, ENDLESS, timeout_s=30)
        daemon.stop()
        with pytest.raises(belljar.EngineError):
            live.result(20)
        with pytest.raises(Unavailable, match="cannot be reached"):
            jar.run("print(1)", engine="docker", disk_files=77)
        daemon.start()
        eventually(lambda: attempt(jar), "1\n")
    eventually(daemon.containers, [])


def attempt(jar: Belljar) -> str:
    try:
        return jar.run("print(1)", engine="docker").stdout
    except belljar.BelljarError as error:
        return str(error)


def test_a_disk_that_is_full(tmp_path: Path, home: Path) -> None:
    """The daemon's data on a small file system that has no room left for another container."""
    if os.geteuid() != 0 or not shutil.which("dockerd"):
        pytest.skip("starts a Docker daemon of its own: needs root and dockerd")
    place = tmp_path / "docker"
    place.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(place)]
    if subprocess.run(mounted).returncode:
        pytest.skip("cannot mount a tmpfs")
    small = OwnDaemon(place)
    try:
        small.start()
        build_base(small)
        with Belljar(small.settings(home, pool_size=0)) as jar:
            assert jar.run("print(1)", engine="docker").stdout == "1\n"
            filler = place / "filler"
            with filler.open("wb") as file, pytest.raises(OSError):
                while True:
                    file.write(bytes(1 << 16))
                    file.flush()
            with pytest.raises(belljar.EngineError, match="no space left") as caught:
                jar.run("print(2)", engine="docker")
            assert "prune" in caught.value.hint
            filler.unlink()
            eventually(lambda: attempt(jar), "1\n")
    finally:
        small.stop()
        subprocess.run(["umount", "--lazy", "--recursive", str(place)])


PROGRAM = """
import random, sys, threading, belljar

jar = belljar.Belljar(belljar.Settings(pool_size=2))
codes = ["print(1)", "while True: pass", "import time; time.sleep(60)",
         "import os\\nwhile True: os.write(1, b'y' * 65536)"]

def caller(number):
    chance = random.Random(number)
    while True:
        try:
            jar.run(chance.choice(codes), engine="docker", inputs={"a": b"b"},
                    timeout_s=chance.choice([0.5, 1, 30]))
        except belljar.BelljarError as error:
            print(error, flush=True)

for number in range(4):
    threading.Thread(target=caller, args=(number,), daemon=True).start()
threading.Event().wait()
"""


@pytest.mark.timeout(180)
def test_a_killed_host_leaves_nothing(daemon: OwnDaemon, home: Path) -> None:
    """R3: SIGKILL under load. Most containers end by themselves, since their input ends; the next
    start clears the rest, and the folders. Somebody else's are not touched."""
    stranger = strangers(daemon)
    environment = {**os.environ, "DOCKER_HOST": daemon.socket, "BELLJAR_HOME": str(home)}
    seen = 0
    for pause_s in (2.0, 3.1, 4.3):
        program = subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment)
        time.sleep(pause_s)
        assert program.poll() is None
        seen += len(daemon.containers())
        program.kill()
        program.wait()
    assert seen, "the test had nothing to look for"
    time.sleep(1)  # what the daemon was asked for last is still on its way
    with Belljar(daemon.settings(home, pool_size=0)) as jar:
        assert jar.run("print(1)", engine="docker").stdout == "1\n"
    eventually(daemon.containers, [stranger])
    assert list((home / "docker").iterdir()) == []
    daemon.api.call_now("DELETE", f"/containers/{stranger['Id']}", query={"force": "1"})


def strangers(daemon: OwnDaemon) -> dict[str, Any]:
    """A container of a Belljar on another machine, or so it says."""
    body = {
        "Image": "belljar/base",
        "Cmd": ["sleep", "60"],
        "Labels": {"belljar.owner": "1-1-0", "belljar.world": "elsewhere"},
    }
    daemon.api.call_now("POST", "/containers/create", body=body)
    return next(c for c in daemon.containers() if c["Labels"]["belljar.world"] == "elsewhere")


def test_why_not(daemon: OwnDaemon, home: Path) -> None:
    assert available.why_not(daemon.settings(home)) is None
    missing = available.why_not(daemon.settings(home, docker_images={"base": "no/such"}))
    assert missing and "no image" in missing.why and "image build" in missing.hint
    missing = available.why_not(daemon.settings(home, docker_runtime="nonesuch"))
    assert missing and "nonesuch" in missing.why
    missing = available.why_not(Settings(home=home, docker_host="unix:///nowhere.sock"))
    assert missing and "cannot be reached" in missing.why
