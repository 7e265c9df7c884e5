"""KVM or emulation: tried, because a device file promises nothing.

Where this host is itself a guest, /dev/kvm may be there and start no kernel. The answer is kept
until the host boots anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import tempfile
from pathlib import Path

from belljar.engines.linux.pidfd import exited, kill
from belljar.errors import EngineError
from belljar.model import MIB
from belljar.settings import Settings

from . import launch, machine, snapshots
from .contents import INTERPRETER
from .image import Image

TRIAL_S = 15.0
_DEVICE = "/dev/kvm"


def usable() -> bool:
    """Whether it is worth trying."""
    return os.access(_DEVICE, os.R_OK | os.W_OK)


def remembered(settings: Settings, image: Image, program: str) -> bool | None:
    """What came of the last trial; None: there was none."""
    try:
        found = json.loads(_file(settings).read_text())
    except (OSError, ValueError):
        return None
    same = isinstance(found, dict) and found.get("circumstances") == _circumstances(image, program)
    return found["works"] is True if same else None


async def works(settings: Settings, image: Image, program: str) -> bool:
    """Starts a small machine with KVM and waits for its first word."""
    if not usable():
        return False
    known = remembered(settings, image, program)
    if known is not None:
        return known
    found = await _trial(settings, image, program)
    facts = {"circumstances": _circumstances(image, program), "works": found}
    target = _file(settings)
    with tempfile.NamedTemporaryFile("w", dir=target.parent, delete=False) as file:
        file.write(json.dumps(facts))
    os.rename(file.name, target)
    return found


async def _trial(settings: Settings, image: Image, program: str) -> bool:
    kind = machine.Machine(
        program=program, accelerator="kvm", memory_bytes=512 * MIB, cpus=1, has_disk=False
    )
    launcher = await launch.Launcher.start(program, snapshots.home_of(settings), kvm=True)
    with contextlib.ExitStack() as undo:
        undo.callback(launcher.close)
        stream, monitor = socket.socketpair()
        undo.enter_context(stream)
        undo.enter_context(monitor)
        log = os.memfd_create("belljar-console")
        ram = snapshots.new_ram(kind.memory_bytes)
        kernel = await launcher.open(image.kernel)
        root = await launcher.open(image.root)
        inherited = [ram, stream.fileno(), monitor.fileno(), kernel, root]
        for descriptor in (log, ram, kernel, root):
            undo.callback(os.close, descriptor)
        n = [launch.descriptor(index) for index in range(len(inherited))]
        argv = machine.original(
            kind,
            machine.Descriptors(ram=n[0], stream=n[1], monitor=n[2]),
            machine.Boot(
                kernel=f"/proc/self/fd/{n[3]}",
                root=f"/proc/self/fd/{n[4]}",
                command=f"{INTERPRETER} -- -I -c print('belljar')",
            ),
        )
        try:
            pidfd = await launcher.qemu(argv, log, inherited)
        except EngineError:
            return False
        undo.callback(os.close, pidfd)
        try:
            async with asyncio.timeout(TRIAL_S):
                await exited(pidfd)  # the interpreter has ended, and with it the machine
        except TimeoutError:
            kill(pidfd)
            await exited(pidfd)
        return b"belljar" in os.pread(log, 1 << 20, 0)


def _circumstances(image: Image, program: str) -> list[object]:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return [boot, os.path.realpath(program), os.stat(program).st_mtime_ns, image.digest]


def _file(settings: Settings) -> Path:
    return settings.home.absolute() / "microvm" / "accelerator.json"
