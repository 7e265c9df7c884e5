"""One QEMU, known by a descriptor of its process; and an original on its way to a snapshot."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import struct
from typing import Any

from belljar.engines.base import Ground
from belljar.engines.linux.pidfd import exited, kill
from belljar.errors import EngineError
from belljar.model import Limits
from belljar.runtimes.guest import protocol

from . import clock, contents, cpio, launch, machine, snapshots
from .disks import Disk
from .image import Image
from .monitor import Monitor

BOOT_S = {"kvm": 60.0, "tcg": 240.0}
"""Until the packages are imported; an emulated machine takes a minute for the largest."""


def message(content: dict[str, Any]) -> bytes:
    """As inside.py receives it."""
    data = json.dumps(content).encode()
    return struct.pack(">I", len(data)) + data


async def make_snapshot(
    launcher: launch.Launcher,
    kind: machine.Machine,
    image: Image,
    ground: Ground,
    disk: Disk | None,
    limits: Limits,
) -> tuple[int, bytes]:
    """Boots a machine, lets it get everything ready, and returns its memory and its state."""
    with contextlib.ExitStack() as undo:
        ours, theirs = (undo.enter_context(end) for end in socket.socketpair())
        monitor, their_monitor = (undo.enter_context(end) for end in socket.socketpair())
        ours.setblocking(False)
        monitor.setblocking(False)
        log = _opened(undo, os.memfd_create("belljar-console"))
        kernel = _opened(undo, await launcher.open(image.kernel))
        root = _opened(undo, _root(image))
        state = _opened(undo, os.memfd_create("belljar-state"))
        ram = snapshots.new_ram(kind.memory_bytes)
        keep = contextlib.ExitStack()
        undo.enter_context(keep)
        keep.callback(os.close, ram)
        inherited = [ram, theirs.fileno(), their_monitor.fileno(), kernel, root]
        if disk:
            inherited.append(_opened(undo, await launcher.open(disk.path)))
        numbers = [launch.descriptor(index) for index in range(len(inherited))]
        argv = machine.original(
            kind,
            machine.Descriptors(
                ram=numbers[0],
                stream=numbers[1],
                monitor=numbers[2],
                disk=numbers[5] if disk else -1,
            ),
            machine.Boot(
                kernel=f"/proc/self/fd/{numbers[3]}",
                root=f"/proc/self/fd/{numbers[4]}",
                tsc_khz=clock.tsc_khz() if kind.accelerator == "tcg" else 0,
            ),
        )
        pidfd = _opened(undo, await launcher.qemu(argv, log, inherited))
        undo.callback(kill, pidfd)
        theirs.close()
        their_monitor.close()
        told = {
            "file_system": disk.file_system if disk else "",
            "mount": ground.mount,
            "package_path": list(ground.package_path),
            "preload": list(ground.preload),
            "rehearsal": ground.rehearsal,
            "kept": ground.kept,
            "disk_bytes": limits.disk_bytes,
            "disk_files": limits.disk_files,
        }
        try:
            async with asyncio.timeout(BOOT_S[kind.accelerator]):
                await asyncio.get_running_loop().sock_sendall(ours, message(told))
                await _ready(ours)
        except (TimeoutError, OSError) as error:
            said = os.pread(log, 1 << 20, 0).decode(errors="replace")
            said = said.partition("Kernel panic")[0].strip()  # before it: why pid 1 ended
            raise EngineError(
                f"the machine for {ground.key!r} did not come up: {said[-800:] or error}",
                hint="belljar image build --microvm makes the guest's image anew",
            ) from error
        talk = Monitor(monitor)
        await talk.greet()
        await talk.save(state)
        kill(pidfd)
        await exited(pidfd)
        content = os.pread(state, os.fstat(state).st_size, 0)
        keep.pop_all()
        return ram, content


def _opened(undo: contextlib.ExitStack, descriptor: int) -> int:
    undo.callback(os.close, descriptor)
    return descriptor


def _root(image: Image) -> int:
    """The guest's root: the image's part, and this version of Belljar's."""
    root = os.memfd_create("belljar-root")
    with open(root, "wb", closefd=False) as file:
        with open(image.root, "rb") as base:
            shutil.copyfileobj(base, file, 1 << 20)
        cpio.write(file, contents.guest())
    return root


async def _ready(stream: socket.socket) -> None:
    reader = protocol.Reader(protocol.FROM_AGENT)
    while True:
        data = await asyncio.get_running_loop().sock_recv(stream, 65536)
        if not data:
            raise ConnectionResetError("QEMU ended")
        for kind, payload in reader.feed(data):
            if kind == protocol.READY:
                return
            raise EngineError(f"the guest could not get ready: {payload.decode(errors='replace')}")
