"""What deploy/ promises: systemd takes the unit, and the image runs code in the jail inside it."""

from __future__ import annotations

import configparser
import contextlib
import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
IMAGE, BASE = "belljar-test-server", "belljar-test-base"


# -- systemd ---------------------------------------------------------------------------------------


def unit() -> dict[str, Any]:
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "belljar.service")
    return {name: dict(parser[name]) for name in parser.sections()}


def test_f2_the_unit_starts_the_server_that_the_readme_installs() -> None:
    service = unit()["Service"]
    program, *arguments = service["ExecStart"].split()
    readme = (DEPLOY / "README.md").read_text()
    assert f"{program.rpartition('/')[0]}/pip install" in readme
    assert arguments[:1] == ["serve"] and arguments[2] in readme.replace("/ &&", "/server.toml &&")
    assert service["Environment"] == "BELLJAR_HOME=/var/lib/belljar"
    assert service["User"] == service["Group"] == service["StateDirectory"] == "belljar"
    assert int(service["TimeoutStopSec"]) > 30 + 10, "longer than drain_s and what comes after"


def test_i1_the_unit_leaves_the_walls_what_they_are_made_of() -> None:
    service = unit()["Service"]
    assert set(service["Delegate"].split()) == {"cpu", "memory", "pids"}
    assert (service["NoNewPrivileges"], service["CapabilityBoundingSet"]) == ("yes", "")
    breaking = {
        *("ProtectKernelTunables", "ProtectControlGroups", "ProtectKernelLogs", "ProcSubset"),
        *(
            "RestrictNamespaces",
            "SystemCallFilter",
            "ProtectProc",
            "PrivateUsers",
            "PrivateNetwork",
        ),
        *("MemoryDenyWriteExecute", "ProtectKernelModules", "ProtectHostname", "RootDirectory"),
    }
    assert not breaking & set(service)


def test_f2_systemd_takes_the_unit(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("there is no systemd-analyze")
    text = (DEPLOY / "belljar.service").read_text()
    text = re.sub(
        "(?m)^ExecStart=.*", f"ExecStart={shutil.which('true')}", text
    )  # one that is here
    file = tmp_path / "belljar.service"
    file.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", file],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


# -- the image -------------------------------------------------------------------------------------


def docker(*arguments: object, timeout_s: float = 900.0, **options: Any) -> str:
    argv = ["docker", *map(str, arguments)]
    old = {"DOCKER_BUILDKIT": "0"}  # the builder that needs no plugin
    done = subprocess.run(
        argv, env=os.environ | old, capture_output=True, text=True, timeout=timeout_s, **options
    )
    assert done.returncode == 0, f"{argv}: {done.stdout[-3000:]} {done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Debian as the Dockerfile names it, or, without a registry, the same from its packages."""
    try:
        docker("info", timeout_s=30)
    except (OSError, AssertionError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"there is no Docker: {error}"[:200])
    usual = re.search("ARG BASE=(.*)", (DEPLOY / "Dockerfile").read_text())
    assert usual
    with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
        docker("pull", usual[1], timeout_s=60)
        return usual[1]
    if not shutil.which("mmdebstrap"):
        pytest.skip("no registry can be reached, and there is no mmdebstrap")
    archive = tmp_path_factory.mktemp("base") / "base.tar"
    suite = usual[1].partition(":")[2].partition("-")[0]
    made = ["mmdebstrap", "--quiet", "--variant=apt", suite, archive]
    subprocess.run(made, check=True, capture_output=True, timeout=900)
    docker("import", archive, BASE)
    archive.unlink()
    return BASE


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """All that the image installs, from wherever pip gets it here, on loopback."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    known = project["project"]["optional-dependencies"]
    asked = re.search(r"'/src\[(.*)\]'", (DEPLOY / "Dockerfile").read_text())
    assert asked
    names = [*project["build-system"]["requires"], *project["project"].get("dependencies", [])]
    for extra in (*asked[1].split(","), "trail"):
        names += [name for name in known[extra] if not name.startswith("belljar[")]
    folder = tmp_path_factory.mktemp("wheels")
    getting = ["pip", "download", "--quiet", "--only-binary=:all:", "--python-version=3.11"]
    python = ROOT / ".venv" / "bin" / "python"
    subprocess.run([python, "-m", *getting, "--dest", folder, *names], check=True, timeout=900)
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a3_the_image_runs_code_in_the_jail_inside_it(base: str, wheels: str) -> None:
    """As deploy/README.md says, but for the port: a daemon of tests has no bridge, so the server is
    asked from inside its container."""
    arguments = {"BASE": base, "PIP_FIND_LINKS": wheels, "PIP_NO_INDEX": "1"}
    given = [word for name, one in arguments.items() for word in ("--build-arg", f"{name}={one}")]
    docker("build", "--network=host", *given, "-f", DEPLOY / "Dockerfile", "-t", IMAGE, ROOT)
    said = re.search('options="(.*)"', (DEPLOY / "README.md").read_text())
    assert said
    options, volume = said[1].split(), f"{IMAGE}-{os.getpid()}:/var/lib/belljar"
    alone = ["--network=none", "-v", volume]
    name = f"{IMAGE}-{os.getpid()}"
    try:
        key = docker("run", "--rm", *alone, IMAGE, "keys", "add", "alice").strip()
        docker("run", "--detach", "--init", "--name", name, *options, *alone, IMAGE)
        deadline = time.monotonic() + 120
        while ask(name, key, "GET", "/ready").get("ready") is not True:
            assert time.monotonic() < deadline, docker("logs", name)
            time.sleep(0.5)
        ran = ask(name, key, "POST", "/execute", {"code": "print(1)"})
        assert (ran["success"], ran["output"]) == (True, "1\n")
        told = ask(name, key, "POST", "/v1/runs", {"code": "import os; print(os.listdir('/home'))"})
        assert told["engine"] == "jail" and "FileNotFoundError" in told["stderr"], "not the image's"
        assert told["isolation"]["filesystem"] == "private read-only root"
        assert told["isolation"]["system_calls"] == "seccomp allowlist"
        assert told["isolation"]["network"].startswith("none")
        fork = "import os\nwhile True: os.fork()"
        assert not ask(name, key, "POST", "/execute", {"code": fork, "timeout": 2})["success"]
        assert ask(name, key, "POST", "/execute", {"code": "print(2)"})["output"] == "2\n"
        docker("stop", "--time", "60", name)
        assert docker("inspect", "--format", "{{.State.ExitCode}}", name).strip() == "0"
        docker("start", name)  # with the same volume: keys and trail are there
        while ask(name, key, "GET", "/ready").get("ready") is not True:
            assert time.monotonic() < deadline + 120, docker("logs", name)
            time.sleep(0.5)
        assert len(ask(name, key, "GET", "/v1/trail")["lines"]) == 4
    finally:
        for leaving in (("rm", "-f", name), ("volume", "rm", volume.partition(":")[0])):
            with contextlib.suppress(AssertionError):
                docker(*leaving)


ASK = """
import json, sys, urllib.error, urllib.request
key, method, path, body = sys.argv[1:]
headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
url = "http://127.0.0.1:8321" + path
asked = urllib.request.Request(url, body.encode() or None, headers, method=method)
try:
    print(urllib.request.urlopen(asked, timeout=60).read().decode())
except urllib.error.HTTPError as error:
    print(error.read().decode())
except OSError as error:
    print(json.dumps({"nobody": str(error)}))
"""


def ask(name: str, key: str, method: str, path: str, body: Any = None) -> dict[str, Any]:
    text = json.dumps(body) if body else ""
    found: dict[str, Any] = json.loads(
        docker("exec", name, "python3", "-c", ASK, key, method, path, text)
    )
    return found
