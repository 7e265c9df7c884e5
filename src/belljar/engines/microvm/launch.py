"""The host's side of the launcher: starting QEMUs, each known by a descriptor of its process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import secrets
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from belljar.engines.linux.control import send
from belljar.engines.linux.wait import readable
from belljar.errors import EngineError
from belljar.runtimes.interpreter import base_interpreter

from .launcher import FIRST_DESCRIPTOR

_PACKAGE_ROOT = str(Path(__file__).resolve().parents[3])
_BOOT = """\
import sys
sys.path[0] = {root!r}
from belljar.engines.microvm import launcher
launcher.live({control})
"""
_UIDS = (0x6000_0000, 1 << 20)
"""Users that no account has: first and how many. Where we are root, each QEMU is another one."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


def descriptor(index: int) -> int:
    """The number under which QEMU finds the descriptor that was passed as the `index`th."""
    return FIRST_DESCRIPTOR + index


class Launcher:
    """One per engine. Orders are answered in turn."""

    def __init__(
        self, control: socket.socket, process: subprocess.Popen[bytes], files: Path
    ) -> None:
        self._control = control
        self._files = files
        self._process = process
        self._turn = asyncio.Lock()
        first, count = _UIDS
        self._uids = (first + n % count for n in itertools.count(secrets.randbelow(count)))

    @classmethod
    async def start(cls, program: str, files: Path, *, kvm: bool) -> Launcher:
        """`files`: the folder of everything that machines start from."""
        with contextlib.ExitStack() as undo:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.enter_context(ours)
            complaints = undo.enter_context(os.fdopen(os.memfd_create("belljar"), "rb"))
            with theirs:
                boot = _BOOT.format(root=_PACKAGE_ROOT, control=theirs.fileno())
                process = subprocess.Popen(
                    [base_interpreter(), "-SsB", "-c", boot],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=complaints,
                    env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
                    cwd="/",
                    start_new_session=True,
                    pass_fds=(theirs.fileno(),),
                )
            undo.callback(process.wait)
            undo.callback(process.kill)
            ours.setblocking(False)
            owner = os.pidfd_open(os.getpid())
            try:
                devices = [*_DEVICES, "/dev/kvm"] if kvm else list(_DEVICES)
                configuration = {"binds": _binds(program), "devices": devices, "files": str(files)}
                send(ours, configuration, [owner])
            finally:
                os.close(owner)
            answer, _ = await _receive(ours)
            if "ready" not in answer:
                said = answer.get("error") or os.pread(complaints.fileno(), 2000, 0).decode()
                raise EngineError(
                    f"no place could be walled in for QEMU: {said}",
                    hint="QEMU runs in namespaces of its own: belljar doctor --engine jail"
                    " says whether this machine lets you make some",
                )
            undo.pop_all()
            complaints.close()
            return cls(ours, process, files)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    async def qemu(
        self,
        argv: Sequence[str],
        log: int,
        inherited: Sequence[int],
        *,
        entrances: Sequence[int] = (),
        lend: bool = False,
    ) -> int:
        """Starts one; returns its pidfd. Not to be cancelled: answers come in turn.

        `lend`: the first it inherits is a file to read its memory from (borrowed.py)."""
        uid = next(self._uids) if os.geteuid() == 0 else 0
        order = {"argv": list(argv), "uid": uid, "entrances": len(entrances), "lend": lend}
        return await self._ask("QEMU could not be started", order, [log, *inherited, *entrances])

    async def open(self, path: Path) -> int:
        """A file below the folder of files, in such a way that nobody who has the descriptor can
        write to it, or open it for writing. Not to be cancelled."""
        order = {"open": str(path.relative_to(self._files))}
        return await self._ask("what a machine starts from could not be opened", order)

    async def _ask(self, failed: str, order: dict[str, Any], passed: Sequence[int] = ()) -> int:
        async with self._turn:
            try:
                send(self._control, order, passed)
                answer, descriptors = await _receive(self._control)
            except OSError as error:
                raise EngineError(f"QEMU's launcher is gone: {error}") from error
        if not descriptors:
            raise EngineError(f"{failed}: {answer.get('error', 'its launcher is gone')}")
        return descriptors[0]

    def close(self) -> None:
        """Every QEMU dies with it."""
        self._control.close()
        self._process.kill()
        self._process.wait()


def _binds(program: str) -> list[str]:
    """What QEMU loads: its own files and the system's libraries."""
    found = ["/usr"]
    found += [p for p in ("/bin", "/lib", "/lib64") if os.path.isdir(p) and not os.path.islink(p)]
    found += [p for p in ("/etc/ld.so.cache", "/etc/alternatives") if os.path.exists(p)]
    folder = os.path.dirname(os.path.realpath(program))
    if not folder.startswith("/usr/"):
        found.append(os.path.dirname(folder) if os.path.basename(folder) == "bin" else folder)
    return found


async def _receive(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    while True:
        try:
            data, descriptors, _, _ = socket.recv_fds(control, 65536, 4)
        except BlockingIOError:
            await readable(control)
            continue
        return (json.loads(data) if data else {}), descriptors
