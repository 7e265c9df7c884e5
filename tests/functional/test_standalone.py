"""The agent outside a zygote (I5): any Python, pid 1 of a pid namespace, a stream to the host."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from belljar.engines.base import Inside, Seen
from belljar.model import Limits
from belljar.receiver import Outcome
from belljar.runtimes.guest import standalone
from belljar.sandbox import Order, Sandbox

UNSHARE = [
    "unshare",
    "--user",
    "--map-root-user",
    "--pid",
    "--fork",
    "--mount-proc",
    "--kill-child",
]


class PlainWall:
    """No wall at all: a pid namespace, and the agent in it."""

    isolation: Mapping[str, str] = {}
    inputs = None

    def __init__(self, folder: Path, **changes: object) -> None:
        self.stream, theirs = socket.socketpair()
        self.stream.setblocking(False)
        roots = {name: str(folder / name) for name in ("workspace", "input", "output")}
        for path in roots.values():
            os.mkdir(path)
        configuration = {
            "stream": [theirs.fileno(), theirs.fileno()],
            "roots": roots,
            "user": None,
            "package_path": [],
            "preload": ["json"],
            "rehearsal": "import json\njson.dumps(1)\n",
            "rehearse": True,
            **changes,
        }
        with theirs:
            self._process = subprocess.Popen(
                [*UNSHARE, sys.executable, "-I", standalone.__file__, json.dumps(configuration)],
                pass_fds=[theirs.fileno()],
            )

    def settle(self) -> None:
        pass

    def apply(self, limits: Limits) -> Inside:
        return Inside(rlimits={})

    def look(self) -> Seen | None:
        return None

    def kill(self) -> None:
        self._process.kill()

    async def destroy(self) -> None:
        self.kill()
        self._process.wait()
        self.stream.close()


@pytest.fixture(autouse=True)
def needs_unshare() -> None:
    if not shutil.which("unshare") or subprocess.run([*UNSHARE, "true"]).returncode:
        pytest.skip("unshare cannot make user namespaces here")


def run(wall: PlainWall, folder: Path, code: str) -> Outcome:
    async def drive() -> Outcome:
        sandbox = Sandbox(wall)
        await sandbox.ready()
        order = Order(
            path=str(folder / "workspace/main.py"),
            argv=None,
            compile=None,
            env={"HOME": "/"},
            stdin=b"words",
            workspace={"main.py": code.encode()},
            inputs={},
            limits=Limits(),
        )
        outcome = await sandbox.run(order)
        await sandbox.destroy()
        return outcome

    return asyncio.run(drive())


def test_runs_code_and_brings_back_output(tmp_path: Path) -> None:
    outcome = run(
        PlainWall(tmp_path),
        tmp_path,
        "import sys, os\nprint(sys.stdin.read(), os.getpid() > 1)\nsys.exit(3)",
    )
    assert (outcome.stdout, outcome.exit_code) == (b"words True\n", 3)


def test_the_agent_is_hidden_from_the_code(tmp_path: Path) -> None:
    """I1: the agent's memory and descriptors are closed to code of the same user."""
    code = (
        "import os, sys\n"
        "print([n for n in sys.modules if 'agent' in n])\n"
        "for path in ('/proc/1/mem', '/proc/1/fd/3'):\n"
        "    try:\n        open(path, 'rb').read(1); print('open', path)\n"
        "    except OSError as error: print(type(error).__name__)\n"
    )
    outcome = run(PlainWall(tmp_path), tmp_path, code)
    assert outcome.stdout.splitlines()[0] == b"[]"
    if os.getuid():  # the namespace's root keeps CAP_SYS_PTRACE there: not what walls start with
        assert b"open" not in outcome.stdout


def test_a_fault_is_told(tmp_path: Path) -> None:
    """An agent that cannot start says why instead of leaving the host to guess."""
    wall = PlainWall(tmp_path, rehearsal="raise ValueError('no such luck')")
    with pytest.raises(Exception, match="no such luck"):
        run(wall, tmp_path, "print(1)")
