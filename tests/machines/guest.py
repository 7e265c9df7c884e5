"""A running guest: booted, asked to run commands, killed when it hangs."""

from __future__ import annotations

import base64
import json
import os
import re
import select
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from .errors import GuestLost, TimeUp
from .qemu import Qemu

BOOT_S = 600.0
"""Emulated, on a busy machine. One to two minutes are usual."""
MEMORY_MIB = 3072
TAIL_LINES = 15
_APPEND = "root=/dev/vda rw console=ttyS0 net.ifnames=0 mitigations=off nokaslr panic=-1"


@dataclass(frozen=True)
class Hardware:
    kernel: Path
    initrd: Path | None
    root: Path
    layer: Path
    cpus: int = 2


@dataclass(frozen=True)
class Answer:
    status: int
    printed: str
    seconds: float


def arguments(qemu: Qemu, hardware: Hardware, *, console: Path, port: Path) -> list[str]:
    """Both drives are snapshots: whatever a guest writes is gone with it."""
    return [
        *qemu.command,
        *qemu.processor,
        *("-M", "q35", "-smp", str(hardware.cpus), "-m", str(MEMORY_MIB)),
        *("-nodefaults", "-no-reboot", "-display", "none"),
        *("-kernel", str(hardware.kernel), "-append", _APPEND),
        *(("-initrd", str(hardware.initrd)) if hardware.initrd else ()),
        *("-drive", f"file={hardware.root},if=virtio,format=raw,snapshot=on"),
        *("-drive", f"file={hardware.layer},if=virtio,format=raw,snapshot=on"),
        *("-device", "virtio-rng-pci"),
        *("-chardev", f"file,id=console,path={console}", "-serial", "chardev:console"),
        *("-chardev", f"socket,id=agent,path={port}"),
        *("-device", "virtio-serial-pci"),
        *("-device", "virtserialport,chardev=agent,name=belljar"),
    ]


class Booted:
    """A guest from its boot to its end, as a context."""

    def __init__(self, qemu: Qemu, hardware: Hardware, console: Path) -> None:
        self._qemu = qemu
        self._hardware = hardware
        self._console = console
        self._rest = b""
        self._runs = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._port: socket.socket | None = None
        self.release = ""
        """Of the kernel."""
        self.boot_s = 0.0

    def __enter__(self) -> Booted:
        try:
            self._boot()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def _boot(self) -> None:
        started = time.monotonic()
        self._console.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="belljar-machine-") as folder:
            listening = socket.socket(socket.AF_UNIX)
            with listening:
                port = Path(folder, "port")
                listening.bind(str(port))
                listening.listen(1)
                # QEMU connects, not we: so the port has a host from the first moment.
                command = arguments(self._qemu, self._hardware, console=self._console, port=port)
                self._process = subprocess.Popen(
                    # It must not outlive us, not even if we are killed.
                    ["setpriv", "--pdeathsig", "KILL", *command],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._console.with_suffix(".qemu").open("wb"),
                    # Snapshots may grow to gigabytes, which /tmp may not hold.
                    env={**os.environ, "TMPDIR": str(self._console.parent)},
                )
                listening.settimeout(30)
                try:
                    self._port, _ = listening.accept()
                except TimeoutError as error:
                    raise self._lost("QEMU did not start") from error
        ready = self._receive(started + BOOT_S, f"the guest did not boot within {BOOT_S:.0f} s")
        self.release = str(ready["ready"])
        self.boot_s = time.monotonic() - started

    def run(self, command: str, *, limit_s: float, log: IO[str] | None = None) -> Answer:
        """A shell command as root, without a session. What it prints goes to the log at once.

        Raises TimeUp after the limit, and the guest is lost: nothing can be said of what still
        runs in there.
        """
        assert self._port is not None
        self._runs += 1
        asked = json.dumps({"run": self._runs, "command": command}).encode() + b"\n"
        started = time.monotonic()
        self._port.sendall(asked)
        printed: list[bytes] = []
        while True:
            try:
                said = self._receive(started + limit_s, f"no end after {limit_s:.0f} s")
            except TimeUp as late:
                late.printed = b"".join(printed).decode(errors="replace")
                raise
            if said.get("run") != self._runs:
                continue
            if "exit" in said:
                text = b"".join(printed).decode(errors="replace")
                return Answer(int(said["exit"]), text, time.monotonic() - started)
            chunk = base64.b64decode(said["printed"])
            printed.append(chunk)
            if log is not None:
                log.write(chunk.decode(errors="replace"))
                log.flush()

    def _receive(self, deadline: float, late: str) -> dict[str, Any]:
        assert self._port is not None and self._process is not None
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0:
                lost = self._lost(late)
                raise TimeUp(str(lost), tail=lost.tail)
            if select.select([self._port], [], [], min(left, 5.0))[0]:
                chunk = self._port.recv(1 << 16)
                if not chunk:
                    raise self._lost("the guest ended by itself")
                self._rest += chunk
            elif self._process.poll() is not None:
                raise self._lost("the guest ended by itself")
        line, _, self._rest = self._rest.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said

    def _lost(self, message: str) -> GuestLost:
        self.kill()
        tail = console_tail(self._console)
        complaint = console_tail(self._console.with_suffix(".qemu"))
        return GuestLost(message, tail="\n".join(part for part in (complaint, tail) if part))

    @property
    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._port is not None:
            self._port.close()


def console_tail(console: Path) -> str:
    """The last lines, without the colours."""
    try:
        text = console.read_bytes()[-8192:].decode(errors="replace")
    except OSError:
        return ""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", text)
    lines = [line for line in plain.splitlines() if line.strip()]
    return "\n".join(lines[-TAIL_LINES:])
