"""The host's end of lender.py: mounts of its files, to be handed to sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess

from belljar.engines.base import CannotMount, Mount
from belljar.engines.linux.answer import answer
from belljar.engines.linux.control import send
from belljar.errors import EngineError
from belljar.runtimes.interpreter import base_interpreter

from .launch import PACKAGE_ROOT, ZYGOTE_VARIABLES

ANSWER_S = 30.0
_START = "import os; exec(os.read({control}, 4096))"
_BOOT = """\
import sys
sys.path[0] = {root!r}
from belljar.engines.jail import lender
lender.live({control})
"""


class Lending:
    """Starts the lender when it is first needed."""

    def __init__(self) -> None:
        self._lender: _Lender | None = None
        self._turn = asyncio.Lock()

    async def lend(self, mount: Mount, reader: tuple[int, int] | None) -> int:
        """A descriptor of a detached, read-only mount; CannotMount if there can be none."""
        async with self._turn:
            # One that was started earlier may have been killed since, and its view of the host's
            # mounts may be older than the file: then a new one is asked.
            if self._lender:
                told, handles = await self._ask(self._lender, mount, reader)
                if handles:
                    return handles[0]
                if not told["stale"]:
                    raise CannotMount(mount, str(told["error"]))
                self.close()
            try:
                self._lender = _Lender()
            except OSError as error:
                raise CannotMount(mount, f"no process can be started for it: {error}") from error
            told, handles = await self._ask(self._lender, mount, reader)
            if handles:
                return handles[0]
            raise CannotMount(mount, str(told["error"]))

    async def _ask(
        self, lender: _Lender, mount: Mount, reader: tuple[int, int] | None
    ) -> tuple[dict[str, object], list[int]]:
        try:
            return await lender.ask(mount, reader)
        except (OSError, EngineError, TimeoutError) as error:
            return {"error": f"the process that mounts is gone: {error}", "stale": True}, []
        except BaseException:
            self.close()  # its answer would be taken for the next one's
            raise

    def close(self) -> None:
        lender, self._lender = self._lender, None
        if lender:
            lender.close()


class _Lender:
    def __init__(self) -> None:
        with contextlib.ExitStack() as undo:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.enter_context(self._control)
            with theirs:
                control = theirs.fileno()
                self._process = subprocess.Popen(
                    [base_interpreter(), "-SsB", "-c", _START.format(control=control)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=ZYGOTE_VARIABLES,
                    cwd="/",
                    start_new_session=True,
                    pass_fds=(control,),
                )
            self._control.setblocking(False)
            self._control.send(_BOOT.format(root=PACKAGE_ROOT, control=control).encode())
            owner = os.pidfd_open(os.getpid())
            try:
                send(self._control, {}, [owner])
            finally:
                os.close(owner)
            undo.pop_all()

    async def ask(
        self, mount: Mount, reader: tuple[int, int] | None
    ) -> tuple[dict[str, object], list[int]]:
        order = {
            "path": str(mount.source),
            "identity": mount.identity,
            "executable": mount.executable,
            "reader": reader,
        }
        send(self._control, order)
        async with asyncio.timeout(ANSWER_S):
            return await answer(self._control)

    def close(self) -> None:
        """It ends by itself when it finds its control socket closed; it never holds anything."""
        self._control.close()
        self._process.kill()
        self._process.wait()
