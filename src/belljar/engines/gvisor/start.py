"""Starting runsc: in its group, with the agent's stream as its standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Sequence

from belljar.engines.linux import cgroups
from belljar.errors import EngineError

START_S = 60.0
VARIABLES = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
# Each entrance takes the one who writes to it. Moving a process from outside can wait milliseconds
# for a lock of the whole kernel.
_ENTER = (
    'while [ "$1" != -- ]; do echo 0 > "/proc/self/fd/$1" || exit 125; shift; done;'
    ' shift; exec "$@"'
)
HINT = "belljar doctor says what gVisor needs here"
_ENDED_EARLY = "waiting for sandbox to start: EOF"


class EndedEarly(EngineError):
    """gVisor's kernel ended before it was there: nothing inside has begun."""


async def call(
    argv: Sequence[str],
    *,
    what: str,
    stream: socket.socket | None = None,
    group: cgroups.Group | None = None,
    cpus: list[int] | None = None,
) -> None:
    """Runs runsc to its end; the sandbox that it started lives on. `stream` is closed here."""
    complaints = os.memfd_create("belljar-runsc")
    with contextlib.ExitStack() as passed:
        passed.callback(os.close, complaints)
        if stream:
            passed.enter_context(stream)
        entrances = group.open_entrances() if group else []
        for entrance in entrances:
            passed.callback(os.close, entrance)
        ends = stream.fileno() if stream else asyncio.subprocess.DEVNULL
        words = ["/bin/sh", "-c", _ENTER, "sh", *map(str, entrances), "--", *argv]
        try:
            process = await asyncio.create_subprocess_exec(
                *(words if entrances else argv),
                stdin=ends,
                stdout=ends,
                stderr=complaints,
                env=VARIABLES,
                cwd="/",
                pass_fds=entrances,
                start_new_session=True,
            )
        except OSError as error:
            raise EngineError(f"{what}: runsc could not be started: {error}", hint=HINT) from error
        if cpus:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, cpus)
        try:
            async with asyncio.timeout(START_S):
                status = await process.wait()
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            if isinstance(error, TimeoutError):
                raise EngineError(
                    f"{what}: runsc took longer than {START_S:.0f} s", hint=HINT
                ) from None
            raise
        if status:
            said = os.pread(complaints, 4000, 0).decode("utf-8", "replace").strip()
            kind = EndedEarly if said.endswith(_ENDED_EARLY) else EngineError
            raise kind(f"{what}: runsc failed ({status}): {said[-1000:]}", hint=HINT)
