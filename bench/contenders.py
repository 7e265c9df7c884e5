"""Who takes part: bare Python, bubblewrap, Docker, and Belljar in its several ways."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from belljar import Belljar
from bench.timing import Absent, Contender, percentile

BASE, DATA = "print(1)", "import pandas; print(pandas.Series([1]).sum())"
REST_S = 0.03
DOCKER_IMAGE = "python:3-slim"


@dataclass(frozen=True, kw_only=True)
class Code:
    group: str
    text: str
    environment: str
    """Belljar's environment for it, and the folder of packages a bare interpreter needs."""
    packages: Path | None = None
    every: int = 1


def interpreter() -> str:
    """The program itself: a version manager's shim costs time of its own."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


@cache
def bare_python() -> str:
    """The same in an empty virtual environment.

    What someone installed for the interpreter (a .pth file that imports things) slows every start,
    and bare Python would look slower than it is.
    """
    folder = tempfile.mkdtemp(prefix="belljar-bench-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    subprocess.run([interpreter(), "-m", "venv", "--without-pip", folder], check=True)
    return f"{folder}/bin/python"


def lone_environment(code: Code) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | ({"PYTHONPATH": str(code.packages)} if code.packages else {})


def command(argv: Sequence[str], *, env: dict[str, str]) -> Callable[[], None]:
    def once() -> None:
        done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True)
        if done.returncode or done.stdout != b"1\n":
            raise RuntimeError(f"{argv[0]}: {done.stderr.decode(errors='replace')[-200:]}")

    return once


def bare(code: Code) -> Contender:
    argv = [bare_python(), "-c", code.text]
    once = command(argv, env=lone_environment(code))
    return Contender(name="bare python3", group=code.group, once=once, every=code.every)


def bubblewrap(code: Code, program: str | None) -> Contender | Absent:
    """The flags of a careful user: no network, no host files, own pids, no capability."""
    name = "bubblewrap"
    found = shutil.which(program or "bwrap")
    if not found:
        return Absent(name=name, group=code.group, why="bwrap is not installed")
    prefix = sysconfig.get_config_var("installed_base")
    argv = [found, "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"]
    argv += ["--cap-drop", "ALL", "--uid", "1000", "--gid", "1000", "--hostname", "box"]
    argv += ["--ro-bind", "/usr", "/usr"]
    for top in ("/bin", "/lib", "/lib64"):
        if os.path.islink(top):
            argv += ["--symlink", os.readlink(top), top]
        elif os.path.isdir(top):
            argv += ["--ro-bind", top, top]
    argv += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--chdir", "/tmp"]
    if not f"{prefix}/".startswith("/usr/"):
        argv += ["--ro-bind", prefix, prefix]
    argv += ["--tmpfs", sysconfig.get_path("purelib", vars={"base": prefix})]
    if code.packages:
        argv += [
            "--ro-bind",
            str(code.packages),
            "/packages",
            "--setenv",
            "PYTHONPATH",
            "/packages",
        ]
    once = command([*argv, "--", interpreter(), "-c", code.text], env=lone_environment(code))
    try:
        once()
    except RuntimeError as error:
        return Absent(name=name, group=code.group, why=str(error))
    return Contender(name=name, group=code.group, once=once, every=code.every)


def docker(code: Code) -> Contender | Absent:
    name = "docker run"
    if code.packages:
        return Absent(name=name, group=code.group, why="no common image with these packages")
    if not shutil.which("docker"):
        return Absent(name=name, group=code.group, why="docker is not installed")
    argv = ["docker", "run", "--rm", "--network=none", "--read-only", "--cap-drop=ALL"]
    argv += ["--user=1000:1000", "--security-opt=no-new-privileges", "--memory=512m"]
    argv += ["--pids-limit=64", "--tmpfs=/tmp", DOCKER_IMAGE, "python3", "-c", code.text]
    once = command(argv, env=dict(os.environ))
    try:
        subprocess.run(["docker", "version"], check=True, capture_output=True, timeout=10)
        once()
    except (subprocess.SubprocessError, RuntimeError) as error:
        detail = (getattr(error, "stderr", b"") or str(error).encode()).decode(errors="replace")
        return Absent(name=name, group=code.group, why=detail.strip().splitlines()[-1][:100])
    return Contender(name=name, group=code.group, once=once, every=10)


def in_jar(jar: Belljar, code: Code) -> Callable[[], None]:
    def once() -> None:
        result = jar.run(code.text, environment=code.environment)
        if result.stdout != "1\n" or not result.success:
            raise RuntimeError(f"{result.status}: {result.stderr[-200:]}")

    return once


def belljar(code: Code, pooled: Belljar, unpooled: Belljar) -> list[Contender]:
    def refilled() -> None:
        pooled.warm(code.environment, pooled.settings.pool_size)
        time.sleep(REST_S)  # the previous sandbox is still being taken down

    def rested() -> None:
        time.sleep(REST_S)

    return [
        Contender(
            name="belljar, pooled", group=code.group, once=in_jar(pooled, code), settle=refilled
        ),
        Contender(
            name="belljar, pooled, back to back",
            group=code.group,
            once=in_jar(pooled, code),
            settle=refilled,
            burst=10,
            every=5,
        ),
        Contender(
            name="belljar, pool off", group=code.group, once=in_jar(unpooled, code), settle=rested
        ),
    ]


def trailed(code: Code, jar: Belljar) -> Contender:
    """As "belljar, pooled", with every run written down before it starts and after it ended."""

    def refilled() -> None:
        jar.warm(code.environment, jar.settings.pool_size)
        time.sleep(REST_S)

    once = in_jar(jar, code)
    return Contender(name="belljar, pooled, trail on", group=code.group, once=once, settle=refilled)


def command_line(code: Code) -> Contender | Absent:
    name = "belljar run, cold command line"
    program = Path(sys.executable).with_name("belljar")
    if not program.exists():
        return Absent(name=name, group=code.group, why="the belljar command is not installed")
    once = command([str(program), "run", "-c", code.text], env=dict(os.environ))
    return Contender(name=name, group=code.group, once=once, every=4)


def row(item: Contender) -> dict[str, Any]:
    taken = item.samples_ms
    return {
        "samples": len(taken),
        "p50_ms": percentile(taken, 50) if taken else None,
        "p99_ms": percentile(taken, 99) if taken else None,
        "failures": len(item.failures),
        "first_failure": item.failures[0] if item.failures else "",
        "samples_ms": [round(sample, 3) for sample in taken],
    }
