"""What is the docker engine's own; what every engine must do is in the conformance suite."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from belljar import Belljar, Sandbox, Settings
from belljar.engines import registry
from belljar.engines.docker.daemon import Daemon, find_address
from belljar.engines.docker.owner import FILTER
from belljar.errors import BelljarError, EngineUnavailable, EnvironmentUnavailable
from belljar.testing.base import REQUIRED


@pytest.fixture(scope="module")
def docker() -> Iterator[Belljar]:
    if missing := registry.why_not("docker", Settings()):
        if os.environ.get(REQUIRED):
            pytest.fail(missing.why)
        pytest.skip(missing.why)
    with Belljar(Settings(pool_size=1)) as jar:
        yield jar


def containers() -> list[dict[str, Any]]:
    query = {"all": "1", "filters": FILTER}
    found: list[dict[str, Any]] = Daemon(find_address()).call_now(
        "GET", "/containers/json", query=query
    )
    return found


def run(jar: Belljar, code: str, **options: Any) -> Any:
    return jar.run(code, engine="docker", environment="base", **options)


def test_each_container_has_a_uid_of_its_own(docker: Belljar) -> None:
    """RS-18: what the kernel counts by user is not shared."""
    code = "import os, pwd; print(os.getuid(), pwd.getpwuid(os.getuid()).pw_name)"
    seen = [run(docker, code).stdout.split() for _ in range(4)]
    assert {name for _, name in seen} == {"sandbox"}
    assert len({uid for uid, _ in seen}) == 4 and "0" not in {uid for uid, _ in seen}


def test_the_exact_filter_is_on_beside_dockers(docker: Belljar) -> None:
    """I3: two filters, and the table's own errnos: Docker's profile alone cannot say them."""
    code = """
import ctypes, errno, re
libc = ctypes.CDLL(None, use_errno=True)
print(re.search(r'Seccomp_filters:\\t(\\d+)', open('/proc/self/status').read())[1])
for call in (lambda: libc.prctl(22, 2, 0, 0, 0),        # another filter
             lambda: libc.fcntl(0, 1024, 0),            # a lease
             lambda: libc.socket(16, 3, 0),             # netlink
             lambda: libc.unshare(0x10000000)):
    ctypes.set_errno(0)
    call()
    print(errno.errorcode[ctypes.get_errno()])
"""
    lines = run(docker, code).stdout.split()
    assert int(lines[0]) >= 2
    assert lines[1:] == ["EINVAL", "EACCES", "EAFNOSUPPORT", "EPERM"]


def test_a_flood_costs_the_host_little(docker: Belljar) -> None:
    """L5: 10 GB on standard output, none of it in our memory or in Docker's logs."""
    run(docker, "print(1)")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code = "import os\nblock = b'y' * (1 << 20)\nfor _ in range(10_000): os.write(1, block)"
    result = run(docker, code, timeout_s=60)
    assert result.dropped.stdout > (100 << 20), result.status
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown_mib < 64


def test_nothing_is_left_when_it_is_closed(tmp_path: Path) -> None:
    """R3"""
    settings = Settings(pool_size=2, home=tmp_path)
    if missing := registry.why_not("docker", settings):
        pytest.skip(missing.why)
    before = {container["Id"] for container in containers()}
    with Belljar(settings) as jar:
        jar.warm("base", 2, engine="docker")
        run(jar, "print(1)", inputs={"a": b"b"})
        mine = [c for c in containers() if c["Id"] not in before]
        assert mine and all(
            c["Labels"]["belljar.owner"].startswith(f"{os.getpid()}-") for c in mine
        )
        live = jar.submit("import time; time.sleep(60)", engine="docker")
        time.sleep(0.5)
    with pytest.raises(BelljarError):
        live.result(10)
    assert {container["Id"] for container in containers()} <= before
    assert list((tmp_path / "docker").iterdir()) == []


def test_inputs_are_closed_to_other_users_of_the_host(tmp_path: Path) -> None:
    """S2: while the sandbox lives, its inputs lie in files that any uid may read, since a container
    has any; so nobody else may get to them."""
    if missing := registry.why_not("docker", Settings()):
        pytest.skip(missing.why)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        os.chmod(place, 0o755)
        home = Path(place)
        given = tmp_path / "given"
        given.write_text("for the sandbox")
        inputs = {"secret.txt": given}
        with (
            Belljar(Settings(pool_size=0, home=home)) as jar,
            Sandbox(jar, engine="docker", environment="base", inputs=inputs) as box,
        ):
            code = "print(open('/data/input/secret.txt').read())"
            assert box.run(code).stdout == "for the sandbox\n"
            (file,) = home.glob("docker/*/*/secret.txt")
            for other in (file, *home.glob("docker/*/*.hosts")):
                assert attempt_as_another_user(other) == "PermissionError"


def attempt_as_another_user(path: Path) -> str:
    """What comes of reading it. Only root can try as somebody else; others look at the way."""
    if os.getuid():
        closed = not path.parent.parent.stat().st_mode & 0o077
        return "PermissionError" if closed else path.read_text()
    code = (
        "import os, sys\nos.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: print(open(sys.argv[1]).read())\n"
        "except OSError as error: print(type(error).__name__)"
    )
    done = subprocess.run(
        ["/usr/bin/env", "python3", "-c", code, str(path)], capture_output=True, text=True
    )
    return done.stdout.strip()


def test_limits_of_a_waiting_container_are_changed(docker: Belljar) -> None:
    """L2, L3: it was made with the defaults."""
    docker.warm("base", 1, engine="docker")
    more = run(docker, "x = b'x' * (700 << 20); print(len(x) >> 20)", memory_bytes=1 << 30)
    assert more.stdout == "700\n", more.stderr
    docker.warm("base", 1, engine="docker")
    less = run(docker, "x = b'x' * (200 << 20)", memory_bytes=100 << 20)
    assert less.status == "out_of_memory"
    docker.warm("base", 1, engine="docker")
    code = """
import os, time
try:
    for _ in range(20):
        os.fork() or time.sleep(5)
except OSError as error:
    print(error.errno)
"""
    few = run(docker, code, processes=8)
    assert few.stdout == "11\n", few


def test_an_image_without_python(docker: Belljar) -> None:
    settings = Settings(pool_size=0, docker_python="/usr/bin/no-python")
    with Belljar(settings) as jar, pytest.raises(BelljarError, match="no-python") as caught:
        run(jar, "print(1)")
    assert "docker_python" in caught.value.hint


def test_an_image_that_is_not_there(docker: Belljar) -> None:
    settings = Settings(pool_size=0, docker_images={"data": "no/such:image"})
    with Belljar(settings) as jar, pytest.raises(EnvironmentUnavailable, match="no/such") as caught:
        jar.run("import numpy", environment="data", engine="docker")
    assert "image build" in caught.value.hint


def test_an_image_with_volumes_is_refused(docker: Belljar) -> None:
    """L4: a volume is writable, on the host's disk, and without a limit."""
    from belljar.engines.docker import images

    daemon = Daemon(find_address())
    with images._context({"Dockerfile": "FROM belljar/base\nVOLUME /var/lib/x\n"}, None) as file:
        images._build(daemon, "belljar-test/volume", file, {})
    try:
        settings = Settings(pool_size=0, docker_images={"base": "belljar-test/volume"})
        with Belljar(settings) as jar, pytest.raises(EngineUnavailable, match="volumes"):
            run(jar, "print(1)")
    finally:
        daemon.call_now("DELETE", "/images/belljar-test/volume", query={"force": "1"})


def test_an_image_of_ones_own(docker: Belljar) -> None:
    """Any image with Python will do, whatever it is set up to run, and as whom."""
    from belljar.engines.docker import images

    daemon = Daemon(find_address())
    recipe = 'FROM belljar/base\nENTRYPOINT ["/bin/false"]\nENV PYTHONHOME=/x\nUSER root\n'
    with images._context({"Dockerfile": recipe}, None) as file:
        images._build(daemon, "belljar-test/own", file, {})
    try:
        with Belljar(Settings(pool_size=0, docker_images={"base": "belljar-test/own"})) as jar:
            result = run(jar, "import socket; print(socket.gethostbyname('localhost'))")
            assert result.stdout == "127.0.0.1\n", result.stderr
            look_up = run(jar, "import socket; socket.gethostbyname('example.com')")
            assert "[Errno -3]" in look_up.stderr
    finally:
        daemon.call_now("DELETE", "/images/belljar-test/own", query={"force": "1"})


def test_doctor_says_what_it_is_made_of(docker: Belljar) -> None:
    controls = {c.name: c for c in registry.create("docker", Settings()).controls()}
    assert all(control.works for control in controls.values() if control.essential), controls
    assert {"daemon", "memory", "processes", "cpu", "system_calls", "image base"} <= set(controls)
    assert json.dumps([control.hint for control in controls.values()])
