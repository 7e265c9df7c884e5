"""The agent outside a zygote (I5): any Python, pid 1 of a pid namespace, a stream to the host."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from belljar.conversation import Conversation
from belljar.engines.base import Inside, Seen
from belljar.model import MIB, Limits
from belljar.receiver import Outcome
from belljar.runtimes.guest import protocol, standalone
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
        names = ("workspace", "input", "output", *(("tmp", "store") if "kept" in changes else ()))
        roots = {name: str(folder / name) for name in names}
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


@pytest.fixture
def in_memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_s1_it_can_be_kept_and_watches_memory_itself(in_memory: Path) -> None:
    """S1, S6, L2: over the limit everything ends but the state from before the run."""
    wall = PlainWall(in_memory, kept=True)
    disk = os.statvfs(in_memory)  # what is in files counts, and others have some there
    limit = 96 * MIB + (disk.f_blocks - disk.f_bfree) * disk.f_frsize
    set_up: dict[str, Any] = {
        "env": {"HOME": "/"},
        "rlimits": {},
        "folder": str(in_memory / "workspace"),
        "package_path": [],
        "woken": None,
        "checkpoints": 2,
        "watch_memory_bytes": limit,
        "cpus": None,
        "driver": None,
    }

    async def drive() -> tuple[list[Any], dict[str, Any]]:
        talk = Conversation(wall)

        async def cell(run: int, code: str) -> dict[str, Any]:
            asked = {"code": code, "name": f"<run {run}>", "run": run, "output_bytes": 1000}
            value = bytearray()

            def receive(stream: int, data: bytes) -> None:
                if stream == protocol.Stream.VALUE:
                    value.extend(data)

            told = await talk.ask("run", stdin=False, receive=receive, **asked)
            return {**told, "value": value.decode()}

        try:
            await talk.ask("set_up", **set_up)
            await cell(1, "import os\nx = [1]\nopen('f', 'w').write('old')")
            await cell(2, "x.append(2)\nopen('f', 'w').write('new')")
            await talk.ask("rollback", run=2, next_run=3)
            back = await cell(3, "x, open('f').read()")
            hog = "if os.fork() == 0:\n    os.setsid()\n    b = bytearray(b'x') * (200 << 20)\n"
            spent = await cell(4, hog + "import time\ntime.sleep(60)")
            await talk.ask("rollback", run=4, next_run=5)
            again = await cell(5, "x")
            return [back["value"], again["value"]], spent
        finally:
            await talk.destroy()

    values, spent = asyncio.run(drive())
    assert values == ["([1], 'old')", "[1]"]
    assert spent["lost"] and spent["used"]["out_of_memory"] and spent["checkpoints"] == [4]
    assert spent["used"]["peak_memory_bytes"] > limit
