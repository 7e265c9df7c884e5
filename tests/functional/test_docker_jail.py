"""The jail inside a container, as root and as an ordinary user, with the options that doctor names:
they are taken from its own words and typed (I8)."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from belljar import Belljar, Settings
from belljar.engines import registry
from belljar.engines.docker.daemon import find_address
from belljar.testing.base import REQUIRED

RESTRICTED = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
"""Where this is on, as on Ubuntu, a container needs a profile that is written on the host."""
PROFILE = "unconfined"
if RESTRICTED.exists() and RESTRICTED.read_text().strip() != "0":
    PROFILE = "belljar-container"
SOURCE = Path(__file__).parents[2] / "src"
DOCUMENTED = tuple(
    f"--security-opt={option}"
    for option in ("seccomp=unconfined", f"apparmor={PROFILE}", "systempaths=unconfined")
)
MAPS_OTHERS = ("--cap-drop=ALL", "--cap-add=SETUID", "--cap-add=SETGID")
COUNT_CHILDREN = """
import os, time
made = 0
try:
    for made in range(300):
        if not os.fork():
            time.sleep(20)
except OSError:
    pass
print(made, os.getuid())
"""


@pytest.fixture(scope="module", autouse=True)
def docker() -> None:
    missing = registry.why_not("docker", Settings())
    why = missing.why if missing else ""
    why = why or ("" if shutil.which("docker") else "the command docker is not installed")
    if why and os.environ.get(REQUIRED):
        pytest.fail(why)
    elif why:
        pytest.skip(why)
    with Belljar(Settings(pool_size=0)) as jar:  # makes the image if it is not there
        assert jar.run("print(1)", engine="docker", environment="base").stdout == "1\n"
    if PROFILE != "unconfined":
        _type_on_the_host(advice())


def _type_on_the_host(hint: str) -> None:
    found = re.search(r"on the host, not in this container: (.*)$", hint)
    assert found, hint
    if not os.environ.get("BELLJAR_CHANGE_MACHINE"):
        pytest.skip("AppArmor needs a profile: for a guest, with BELLJAR_CHANGE_MACHINE=1")
    command = found[1].replace("sudo ", "") if os.geteuid() == 0 else found[1]
    subprocess.run(["bash", "-c", command], check=True, capture_output=True)


def inside(*options: str, command: list[str]) -> subprocess.CompletedProcess[str]:
    """A command in a container that has this checkout and nothing else of the host."""
    packages = sysconfig.get_paths()["purelib"]
    return subprocess.run(
        [
            *("docker", "--host", find_address().text, "run", "--rm", "--network=none", "--init"),
            *("-v", f"{SOURCE}:/belljar:ro", "-v", f"{packages}:/packages:ro"),
            *("-e", "PYTHONPATH=/belljar:/packages", "-e", "PYTHONDONTWRITEBYTECODE=1"),
            *("-e", "BELLJAR_HOME=/tmp/belljar", *options, "belljar/base"),
            *command,
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
    )


def belljar(*options: str, command: str, **more: str) -> tuple[int, dict[str, Any]]:
    words = ["python3", "-m", "belljar.cli.main", *shlex.split(command), *more.values(), "--json"]
    done = inside(*options, command=words)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def run(*options: str, code: str = "print(6 * 7)") -> dict[str, Any]:
    return belljar(*options, command="run --engine jail -c", code=code)[1]


@pytest.mark.parametrize(
    ("more", "user"),
    [
        ((), "namespace, own uid"),
        (MAPS_OTHERS, "namespace, own uid"),
        (("--cap-add=SYS_ADMIN",), "namespace, own uid"),
        (("--user=1000:1000",), "namespace, shared uid"),
        (("--user=1000:1000", "--cap-drop=ALL"), "namespace, shared uid"),
    ],
    ids=["root", "root-maps-others", "root-sys-admin", "user", "user-no-capabilities"],
)
def test_it_works_with_the_documented_options(more: tuple[str, ...], user: str) -> None:
    """K1: a sandbox is built and says what it is made of; the processes in it are counted."""
    result = run(*DOCUMENTED, *more, code=COUNT_CHILDREN)
    assert result.get("status") == "ok", result
    assert result["isolation"]["user"] == user
    made, uid = map(int, result["stdout"].split())
    assert made < 64 and uid == 1000


def test_root_without_sys_admin_is_as_well_walled_as_ever() -> None:
    """Attacks that got through where sandboxes had the id of the container's root."""
    probes = "CC-50,FS-51,FS-57,PR-10,PR-11,PV-17"
    status, report = belljar(*DOCUMENTED, command=f"prove --only {probes}")
    assert status == 0, report
    assert {one["outcome"] for one in report["probes"]} == {"held"}


def test_files_below_roots_home_can_be_given() -> None:
    """Nobody else can pass through /root; what nobody else can read is copied, not mounted."""
    code = """
import belljar, os, pathlib
pathlib.Path("/root").chmod(0o700)
for mode in (0o755, 0o700):
    folder = pathlib.Path(f"/root/{mode:o}")
    folder.mkdir()
    (folder / "word").write_text("given")
    folder.chmod(mode)
    with belljar.Sandbox(inputs={"folder": folder}, environment="base") as box:
        print(box.run("print(open('/data/input/folder/word').read())").stdout.strip())
"""
    done = inside(*DOCUMENTED, command=["python3", "-c", code])
    assert done.stdout.splitlines() == ["given", "given"], done.stderr


# -- the advice, typed -----------------------------------------------------------------------------


@functools.cache
def advice(*options: str) -> str:
    """What a container without the right options is told to be started with."""
    told = run(*options)
    assert "error" in told, told
    return str(told["error"]["hint"])


def typed(hint: str) -> list[str]:
    found = re.search(r"docker run (.*?) …", hint)
    assert found, hint
    return shlex.split(found[1])


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--user=1000:1000",),
        ("--security-opt=seccomp=unconfined",),
        (*DOCUMENTED, "--cap-drop=ALL"),
        ("--cap-drop=ALL", "--user=1000:1000"),
    ],
    ids=["plain", "user", "only-seccomp", "no-capabilities", "user-no-capabilities"],
)
def test_what_is_wrong_is_mended_by_typing_the_hint(options: tuple[str, ...]) -> None:
    """Deliverable: advice that works when it is typed, also where the wall fails only later."""
    hint = advice(*options)
    kept = [option for option in options if "security-opt" not in option]
    result = run(*kept, *typed(hint))
    assert result.get("stdout") == "42\n", (hint, result)


def test_no_sandbox_has_roots_own_id() -> None:
    """With neither CAP_SETUID nor CAP_SETGID there is no other: refused, not weakened."""
    told = run(*DOCUMENTED, "--cap-drop=ALL", "--cap-add=SYS_ADMIN", "--cap-add=SETFCAP")
    assert "no sandbox may be root" in told["error"]["message"]
    assert "--user 1000:1000" in told["error"]["hint"]
    hint = told["error"]["hint"]
    extra = re.findall(r"--cap-add \w+", hint)
    result = run(*DOCUMENTED, "--cap-drop=ALL", *shlex.split(" ".join(extra)))
    assert result.get("stdout") == "42\n", result


def test_doctor_says_the_same_as_the_run() -> None:
    status, findings = belljar("--cap-drop=ALL", *DOCUMENTED, command="doctor")
    assert status == 1 and not findings["ok"]
    lines = {one["name"]: one for one in findings["controls"]}
    assert "--user 1000:1000" in lines["user_namespaces"]["hint"]
    assert "--user 1000:1000" in lines["sandbox"]["hint"]
    status, findings = belljar(*DOCUMENTED, command="doctor")
    lines = {one["name"]: one for one in findings["controls"]}
    assert status == 0 and lines["user"]["works"] and lines["sandbox"]["works"]
