"""What the host puts in the probes' way: a secret file, a listener, a process, an environment.

Everything is made for one proving, under random names, and removed after it. The caps bound what a
bomb does where a wall is broken: a few hundred processes, two gigabytes.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

CAPS = {
    "PID_CAP": "300",
    "THREAD_CAP": "600",
    "FD_CAP": "5000",
    "INODE_CAP": "25000",
    "MEM_CAP_MB": "2048",
    "MEM_LIMIT_MB": "128",
    "DISK_MB": "24",
    "DISK_CAP_MB": "256",
}
PLACES = {
    "OUT_DIR": "/data/output",
    "WORK_DIR": "/workspace",
    "INPUT_DIR": "/data/input",
    "SCRIPT_PATH": "/workspace/main.py",
}
PLANTED = (
    "HOST_CANARY_PATH",
    "HOST_CANARY_TOKEN",
    "HOST_CANARY_TS",
    "HOST_MARKER_PATH",
    "HOST_TCP_PORT",
    "HOST_BANNER_TOKEN",
    "HOST_LAN_IP",
    "HOST_ABSTRACT_NAME",
    "HOST_PID",
    "HOST_PROC_TOKEN",
    "HOST_ENV_NAME",
    "MEM_CANARY_HALF_A",
    "MEM_CANARY_HALF_B",
    "HOST_IDENTITY_DIGESTS",
    "INSIDE_SANDBOX_ACK",
)
BY_JUDGE = (
    "ALSO",
    "CACHED_FILE",
    "CASE",
    "ENDLESS",
    "EXIT_CASE",
    "FLOOD_BLOCKS",
    "MARK",
    "MEETING_NAME",
    "MEETING_PORT",
    "ROLE",
    "STAY_S",
    "WITH_NUMPY",
)
ALLOWED = {"ALLOWED_HOST": "allowed.invalid"}
"""What probes with a network may ask for: a name that leads nowhere."""

KNOWN = frozenset((*CAPS, *PLACES, *ALLOWED, *PLANTED, *BY_JUDGE))

_IDENTITY_FILES = (
    "/proc/sys/kernel/random/boot_id",
    "/etc/machine-id",
    "/proc/cmdline",
    "/sys/class/dmi/id/product_uuid",
    "/sys/class/dmi/id/product_serial",
    "/sys/class/dmi/id/board_serial",
)
_COMMON_NAMES = ("", "localhost", "(none)", "belljar")


class Fixtures:
    """`values` fill the placeholders of the probes while this is entered."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {**CAPS, **PLACES, **ALLOWED}
        self._stack = ExitStack()

    def __enter__(self) -> Fixtures:
        try:
            self._plant_files()
            self._plant_environment()
            self._plant_listeners()
            self._plant_process()
        except BaseException:
            self._stack.close()
            raise
        self.values["HOST_IDENTITY_DIGESTS"] = " ".join(_identity_digests())
        self.values["INSIDE_SANDBOX_ACK"] = "yes"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def memory_canary(self) -> str:
        return self.values["MEM_CANARY_HALF_A"] + self.values["MEM_CANARY_HALF_B"]

    def _plant_files(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="belljar-probe-"))
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        token = secrets.token_hex(16)
        canary, typescript = folder / "canary.txt", folder / "canary.ts"
        canary.touch(mode=0o600)
        canary.write_text(token + "\n")
        typescript.touch(mode=0o600)
        typescript.write_text(f"let let = {token} (((\n")  # compilers quote the line they reject
        self.values |= {
            "HOST_CANARY_PATH": str(canary),
            "HOST_CANARY_TOKEN": token,
            "HOST_CANARY_TS": str(typescript),
            "HOST_MARKER_PATH": str(folder / "written-by-a-guest"),
        }

    def _plant_environment(self) -> None:
        name = "PROBE_CANARY_" + secrets.token_hex(4).upper()
        halves = secrets.token_hex(12), secrets.token_hex(12)
        os.environ[name] = "".join(halves)
        self._stack.callback(os.environ.pop, name, None)
        self.values |= {
            "HOST_ENV_NAME": name,
            "MEM_CANARY_HALF_A": halves[0],
            "MEM_CANARY_HALF_B": halves[1],
        }

    def _plant_listeners(self) -> None:
        token = secrets.token_hex(8)
        lan = _lan_address()
        first = socket.create_server(("127.0.0.1", 0))
        port = first.getsockname()[1]
        abstract = "belljar-probe-" + secrets.token_hex(8)
        unix = socket.socket(socket.AF_UNIX)
        unix.bind("\0" + abstract)
        unix.listen()
        listeners = [first, unix]
        with suppress(OSError):
            listeners.append(socket.create_server(("::1", port), family=socket.AF_INET6))
        if lan != "127.0.0.1":
            with suppress(OSError):
                listeners.append(socket.create_server((lan, port)))
        for listener in listeners:
            self._stack.callback(_close, listener)
            threading.Thread(
                target=_greet, args=(listener, token.encode()), name="probe-listener", daemon=True
            ).start()
        self.values |= {
            "HOST_TCP_PORT": str(port),
            "HOST_BANNER_TOKEN": token,
            "HOST_LAN_IP": lan,
            "HOST_ABSTRACT_NAME": abstract,
        }

    def _plant_process(self) -> None:
        token = secrets.token_hex(8)
        # It ends when its stdin does, so it cannot outlive a prover that was killed.
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()", token],
            stdin=subprocess.PIPE,
        )
        self._stack.callback(_end, process)
        self.values |= {"HOST_PID": str(process.pid), "HOST_PROC_TOKEN": token}


def _greet(listener: socket.socket, banner: bytes) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection, suppress(OSError):
            connection.sendall(banner)


def _close(listener: socket.socket) -> None:
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that is in accept()
    listener.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin:
        process.stdin.close()
    process.kill()
    process.wait()


def _lan_address() -> str:
    """The address of this host that others would use. Only a route is looked up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client, suppress(OSError):
        client.connect(("192.0.2.1", 9))
        return str(client.getsockname()[0])
    return "127.0.0.1"


def _identity_digests() -> list[str]:
    texts = {socket.gethostname(), os.uname().nodename} - set(_COMMON_NAMES)
    for path in _IDENTITY_FILES:
        with suppress(OSError):
            texts.add(Path(path).read_text(errors="replace")[:4096].strip())
    return [hashlib.sha256(text.encode()).hexdigest() for text in sorted(texts) if text]
