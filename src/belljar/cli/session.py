"""One run on behalf of a person at a terminal: live output, interrupts, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from belljar import aio
from belljar.cli.live import Live
from belljar.cli.progress import Bar
from belljar.model import Caller, Result
from belljar.settings import Settings

if TYPE_CHECKING:
    from belljar import client

# Windows lacks the last, and its event loops have no handlers: an interrupt is an exception there.
SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
SIGPIPE = 13
INTERRUPTED_S = 0.5
"""How long output is still waited for after an interrupt: its reader may have stopped reading."""


class Interrupted(Exception):
    """The run was ended from outside, by `signal`; its sandbox is gone."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by signal {number}")
        self.signal = number


def execute(
    code: str,
    options: dict[str, Any],
    settings: Settings,
    *,
    live: bool,
    where: Mapping[str, str] | None = None,
) -> Result:
    """Runs and cleans up. Raises Interrupted when a signal came, or nobody reads our output.
    `where`: url and key of a server."""
    gc.freeze()
    gc.enable()
    output = Live() if live else None
    wait_s: float | None = INTERRUPTED_S
    try:
        result = asyncio.run(_execute(code, options, settings, output, where or {}))
        wait_s = None
    finally:
        if output:
            output.close(wait_s=wait_s)
    if output and output.broken:
        raise Interrupted(SIGPIPE)
    return result


async def _execute(
    code: str,
    options: dict[str, Any],
    settings: Settings,
    output: Live | None,
    where: Mapping[str, str],
) -> Result:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    options = dict(options)
    cause: list[int] = []
    running = True

    def stop(number: int) -> None:
        if cause:  # asked twice: go at once, the kernel ends the sandbox with us
            os._exit(128 + number)
        cause.append(number)
        if running:  # afterwards we are cleaning up anyway, and must not be stopped in it
            task.cancel()

    for number in SIGNALS:
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stop, number)
    if output:
        output.on_broken = lambda: _from_thread(loop, stop, SIGPIPE)
        options["on_output"] = output.put
    progress = Bar(title="building the environment")
    jar: aio.Belljar | client.Belljar
    if where:
        from belljar import client

        jar = client.Belljar(**where)
    else:
        jar = aio.Belljar(settings, on_progress=progress.update)
        options["caller"] = Caller(door="cli")
    try:
        return await jar.run(code, **options)
    except asyncio.CancelledError:
        raise Interrupted(cause[0] if cause else signal.SIGINT) from None
    finally:
        running = False
        progress.close()
        await jar.close()


def _from_thread(loop: asyncio.AbstractEventLoop, stop: Callable[[int], None], number: int) -> None:
    try:
        loop.call_soon_threadsafe(stop, number)
    except RuntimeError:
        pass  # the run is over and its loop is closed
