"""Starting a wasm zygote and asking it for sandboxes: the host's end of zygote.py."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
from importlib.util import find_spec
from pathlib import Path

from belljar.engines.linux.answer import answer
from belljar.engines.linux.control import send
from belljar.errors import EngineError, EngineUnavailable
from belljar.extras import install
from belljar.runtimes.interpreter import base_interpreter

from . import runtimes
from .runtimes import Runtime

START_S = 60.0
ROOM_HINT = "raise the limit of open files (ulimit -n) or processes (ulimit -u)"
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[3])
_START = "import os; exec(os.read({control}, 4096))"
_BOOT = """\
import sys
sys.path[:0] = {paths!r}
from belljar.engines.wasm import zygote
zygote.boot({control})
"""


class Zygote:
    """A running zygote. Its sandboxes end when it does."""

    def __init__(
        self,
        control: socket.socket,
        process: subprocess.Popen[bytes],
        *,
        identity: str,
        memory_bytes: int,
    ) -> None:
        self.identity = identity
        self.memory_bytes = memory_bytes
        """What the interpreter itself takes, before any code."""
        self.alive = True
        self._control = control
        self._process = process
        self._turn = asyncio.Lock()

    @classmethod
    async def start(cls, runtime: Runtime, module: Path) -> Zygote:
        """The zygote once its interpreter is warm and waits."""
        control, process, complaints = _launch(runtime, module)
        try:
            async with asyncio.timeout(START_S):
                born, _ = await answer(control)
            if "ready" not in born:
                raise EngineError(str(born.get("error", "it ended without a word")))
        except BaseException as error:
            control.close()
            process.kill()
            process.wait()
            said = os.pread(complaints, 4000, 0).decode("utf-8", "replace").strip()
            if isinstance(error, asyncio.CancelledError):
                raise
            why = error if str(error) else f"it took longer than {START_S:.0f} s"
            raise EngineError(
                f"the wasm zygote of {runtime.name} did not start: {why} {said}".strip(),
                hint="belljar doctor shows what this machine lacks",
            ) from error
        finally:
            os.close(complaints)
        ready = born["ready"]
        return cls(control, process, identity=ready["identity"], memory_bytes=ready["memory_bytes"])

    async def spawn(
        self, stream: socket.socket, *, disk_bytes: int, disk_files: int, rehearse: bool
    ) -> int:
        """A new sandbox on `stream`, which is closed here; returns its pidfd."""
        order = {"disk_bytes": disk_bytes, "disk_files": disk_files, "rehearse": rehearse}
        async with self._turn:
            try:
                with stream:
                    send(self._control, order, [stream.fileno()])
                reply, handles = await answer(self._control)
            except (OSError, EngineError) as error:
                code = getattr(error, "errno", None)
                if code not in (errno.ETOOMANYREFS, errno.EMFILE, errno.ENFILE):
                    self.close()
                raise EngineError(
                    f"the wasm zygote could not be asked for a sandbox: {error}", hint=ROOM_HINT
                ) from error
            except asyncio.CancelledError:
                self.close()  # the answer to this order would be taken for the next one's
                raise
        if "error" in reply or not handles:
            raise EngineError(
                f"the kernel refused a new sandbox: {reply.get('error', 'no descriptor is left')}",
                hint=ROOM_HINT,
            )
        return handles[0]

    def close(self) -> None:
        """Ends the zygote and with it every sandbox that came from it."""
        if self.alive:
            self.alive = False
            self._control.close()
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()


def _launch(runtime: Runtime, module: Path) -> tuple[socket.socket, subprocess.Popen[bytes], int]:
    spec = find_spec("wasmtime")
    if spec is None or not spec.origin:
        raise EngineUnavailable("wasmtime is not installed", hint=install("wasm"))
    paths = [_PACKAGE_ROOT, str(Path(spec.origin).parents[1])]
    configuration = {
        "runtime": runtime.name,
        "module": str(module),
        "boot": runtimes.boot_program(runtime),
    }
    complaints = os.memfd_create("belljar-wasm")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    owner = os.pidfd_open(os.getpid())
    try:
        with theirs:
            control = theirs.fileno()
            process = subprocess.Popen(
                [base_interpreter(), "-SsB", "-c", _START.format(control=control)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=complaints,
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/"},
                cwd="/",
                start_new_session=True,
                pass_fds=(control,),
            )
        ours.setblocking(False)
        ours.send(_BOOT.format(paths=paths, control=control).encode())
        send(ours, configuration, [owner])
    except OSError as error:
        ours.close()
        os.close(complaints)
        raise EngineError(f"no wasm zygote could be started: {error}", hint=ROOM_HINT) from error
    finally:
        os.close(owner)
    return ours, process, complaints
