"""One sandbox as the host sees it: orders go in, frames of a hostile guest come out.

Whatever the guest sends, the host holds a bounded amount of it. Time and kills are judged on this
side of the wall, memory too where the wall can (a cgroup); how the code ended, the agent tells.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from belljar import threads
from belljar.engines.base import Doors, Inside, Wall
from belljar.errors import EngineError
from belljar.hearing import Hearing
from belljar.model import Limits, Usage
from belljar.receiver import OnOutput, OnUsage, Outcome, Receiver
from belljar.runtimes.guest import protocol
from belljar.sending import Sending
from belljar.trail.entry import CallbackFailed

TICK_S = 0.25

STOP_GRACE_S = 2.0
"""After a time-out the agent may kill, collect and report for this long; then the wall falls."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """A run in the agent's terms."""

    path: str
    argv: Sequence[str] | None
    compile: Sequence[str] | None
    env: Mapping[str, str]
    stdin: bytes
    stdin_descriptor: int | None = None
    """Read while the code runs, as fast as it takes it; `stdin` is then not used."""
    workspace: Mapping[str, bytes]
    """The code and the caller's files, by name below /workspace."""
    inputs: Mapping[str, bytes]
    limits: Limits
    doors: Doors | None = None
    """To the gateway, through the agent; where the wall has doors of its own it was given them."""
    seal: str = ""
    """What a refusal of the restricted level begins with."""


class Sandbox(Hearing):
    def __init__(self, wall: Wall) -> None:
        super().__init__(wall, protocol.Reader(protocol.FROM_AGENT))
        self._receiver: Receiver | None = None
        self._feeder: _Feeder | None = None

    async def run(
        self,
        order: Order,
        *,
        whose: str = threads.OURS,
        on_output: OnOutput | None = None,
        on_usage: OnUsage | None = None,
    ) -> Outcome:
        """`whose`: the tenant for whom the inputs are written."""
        inside = self.wall.apply(order.limits)
        receiver = self._receiver = Receiver(order.limits, self._loop.create_future())
        receiver.on_output, receiver.on_usage = on_output, on_usage
        feeder = self._feeder = _Feeder(self._loop, self._sending, order.stdin_descriptor)
        if self.lost:
            receiver.lost(self.lost)
        outcome = receiver.outcome
        ticking = self._loop.create_task(self._tick(receiver)) if on_usage else None
        try:
            async with asyncio.timeout(order.limits.timeout_s):
                inputs = order.inputs
                if self.wall.inputs is not None and inputs:
                    await threads.FILES.finish_for(whose, _write, self.wall.inputs, inputs)
                    inputs = {}
                await self._sending.send(_frames(order, inputs, inside, self._given(order.doors)))
                await asyncio.shield(receiver.done)
        except TimeoutError:
            outcome.timed_out = True
            feeder.close()
            await self._stop(receiver)
        except (BrokenPipeError, ConnectionResetError):
            receiver.lost("the agent went away")
        except asyncio.CancelledError:
            self.wall.kill()
            raise
        finally:
            feeder.close()
            if self._line:
                self._line.close()
            if ticking:
                ticking.cancel()
        if receiver.failure:
            self.wall.kill()
            raise CallbackFailed(receiver.failure)
        if self._ready.done() and (broken := self._ready.exception()):
            raise broken
        receiver.close()
        # What the agent said last is no less than what it said before.
        told_ms = max(outcome.usage.cpu_ms, receiver.heard.cpu_ms)
        if seen := self.wall.look():
            told = outcome.usage
            outcome.usage = seen.usage
            if not seen.usage.peak_processes:  # the wall sees what they cost, but not how many
                outcome.usage = replace(seen.usage, peak_processes=told.peak_processes)
            if seen.usage.cpu_ms:
                told_ms = seen.usage.cpu_ms  # else it is a wall that can tell of the memory alone
            outcome.out_of_memory = outcome.out_of_memory or seen.out_of_memory
        outcome.usage = replace(outcome.usage, cpu_ms=max(told_ms, receiver.told_ms))
        return outcome

    async def _tick(self, receiver: Receiver) -> None:
        """Reports what the run uses while it runs (L7); without a wall that can tell, the agent
        does. The first report says that the code has begun."""
        seen = self.wall.look()
        if seen is None:
            receiver.used(Usage())
        receiver.wall_tells = seen is not None
        while seen:
            inside = seen.usage.peak_processes or receiver.heard.peak_processes
            receiver.used(replace(seen.usage, peak_processes=inside))
            await asyncio.sleep(TICK_S)
            seen = self.wall.look()

    async def _stop(self, receiver: Receiver) -> None:
        """Out of time: the agent kills the code and still says what it knows, if it can."""
        try:
            async with asyncio.timeout(STOP_GRACE_S):
                await self._sending.send(protocol.frame(protocol.STOP))
                await asyncio.shield(receiver.done)
        except (TimeoutError, BrokenPipeError, ConnectionResetError):
            self.wall.kill()

    def _given(self, doors: Doors | None) -> dict[str, str] | None:
        if doors is None:
            return None
        hosts = self._name_hosts(doors.hosts)
        self._connect(doors)
        return {"hosts": hosts}

    def _settle(self) -> None:
        # An order given before READY may have run to its end by the time we read that word: then
        # rather count our own milliseconds too than none of the code's.
        if self._receiver is None:
            super()._settle()

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == protocol.WANT:
            if self._feeder:
                self._feeder.wanted()
        elif self._receiver:
            self._receiver.take(kind, payload)

    def _verdict(self) -> str:
        return "the sandbox ended before its code did"

    def _forget(self) -> None:
        if self._receiver:
            self._receiver.lost(self.lost)


class _Feeder:
    """Passes standard input on, one piece at a time and only when the agent asks for it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sending: Sending, descriptor: int | None
    ) -> None:
        self._loop = loop
        self._sending = sending
        self._descriptor = descriptor
        self._sent: asyncio.Future[None] | None = None

    def wanted(self) -> None:
        if self._descriptor is None:
            return
        if self._sent and not self._sent.done():
            raise protocol.BadFrame("a wish for more input before it took what it was given")
        try:
            self._loop.add_reader(self._descriptor, self._readable)
        except PermissionError:  # a plain file is always readable and cannot be waited for
            self._readable()

    def close(self) -> None:
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            self._descriptor = None

    def _readable(self) -> None:
        if self._descriptor is None:
            return
        self._loop.remove_reader(self._descriptor)
        try:
            data = os.read(self._descriptor, protocol.CHUNK)
        except BlockingIOError:
            self.wanted()
            return
        except OSError:
            data = b""
        try:
            self._sent = self._sending.put(protocol.frame(protocol.STDIN, data))
        except OSError:
            pass  # the sandbox is gone; its run ends by itself


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    try:
        _write_new(folder, files)
    except OSError as error:
        raise EngineError(
            f"the inputs could not be written: {error.strerror}", hint="is the host's disk full?"
        ) from error


def _write_new(folder: Path, files: Mapping[str, bytes]) -> None:
    """Into a folder that is the sandbox's own and only the host can write to; names are policy's,
    relative and without dots. An entry that is already there is an error, never followed."""
    folders = {parent for name in files for parent in PurePosixPath(name).parents}
    for parent in sorted(folders - {PurePosixPath(".")}):
        os.mkdir(folder / parent, 0o755)
        os.chmod(folder / parent, 0o755)  # whatever our umask is
    for name, content in files.items():
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(folder / name, flags, 0o644), "wb") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(content)


def _frames(
    order: Order,
    inputs: Mapping[str, bytes],
    inside: Inside,
    doors: Mapping[str, str] | None,
) -> bytes:
    parts: list[bytes] = []
    for root, files in (("workspace", order.workspace), ("input", inputs)):
        for path, content in files.items():
            head = {"root": root, "path": path, "size": len(content), "mode": 0o644}
            parts.append(protocol.message(protocol.PUT, head))
            for start in range(0, len(content), protocol.CHUNK):
                parts.append(protocol.frame(protocol.DATA, content[start : start + protocol.CHUNK]))
    run = {
        "path": order.path,
        "argv": order.argv,
        "compile": order.compile,
        "env": dict(order.env),
        "rlimits": dict(inside.rlimits),
        "watch_memory_bytes": inside.watch_memory_bytes,
        "cpus": inside.cpus,
        "woken": inside.wake_up() if inside.woken else None,
        "stdin_streamed": order.stdin_descriptor is not None,
        "output_bytes": order.limits.output_bytes,
        "result_files": order.limits.result_files,
        "result_bytes": order.limits.result_bytes,
        "doors": doors,
    }
    parts.append(protocol.message(protocol.RUN, run))
    if order.stdin_descriptor is None:
        for start in range(0, len(order.stdin), protocol.CHUNK):
            piece = order.stdin[start : start + protocol.CHUNK]
            parts.append(protocol.frame(protocol.STDIN, piece))
        parts.append(protocol.frame(protocol.STDIN))
    return b"".join(parts)
