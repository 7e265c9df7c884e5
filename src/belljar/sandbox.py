"""One sandbox as the host sees it: orders go in, frames of a hostile guest come out.

Whatever the guest sends, the host holds a bounded amount of it. Time and kills are judged on this
side of the wall, memory too where the wall can (a cgroup); how the code ended, the agent tells.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from belljar.engines.base import Inside, Wall
from belljar.errors import EngineError
from belljar.model import Dropped, ErrorInfo, Limits, OutputFile, Usage
from belljar.runtimes.guest import protocol

OnOutput = Callable[[str, bytes], None]
OnUsage = Callable[[Usage], None]
TICK_S = 0.25

STOP_GRACE_S = 2.0
"""After a time-out the agent may kill, collect and report for this long; then the wall falls."""
READY_S = 30.0
ROOTS = ("/workspace/", "/data/output/")
_RECEIVE = 256 * 1024


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


@dataclass(kw_only=True)
class Outcome:
    """What became of an order."""

    exit_code: int | None = None
    signal: int | None = None
    ended: bool = False
    """The agent reported an end; False when the sandbox was lost before it could."""
    timed_out: bool = False
    out_of_memory: bool = False
    stdout: bytes = b""
    stderr: bytes = b""
    dropped: Dropped = field(default_factory=Dropped)
    files: tuple[OutputFile, ...] = ()
    error: ErrorInfo | None = None
    usage: Usage = field(default_factory=Usage)
    files_unnamed: int = 0
    """Files beyond those that were named."""
    problem: str = ""
    """Why the agent could not do its part, if so."""


class Sandbox:
    def __init__(self, wall: Wall) -> None:
        self.wall = wall
        self.isolation = wall.isolation
        self._loop = asyncio.get_running_loop()
        self._frames = protocol.Reader(protocol.FROM_AGENT)
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._receiver: _Receiver | None = None
        self._feeder: _Feeder | None = None
        self.lost = ""
        """Why nothing can run here any more, if so."""
        self._loop.add_reader(wall.stream, self._readable)

    async def ready(self) -> None:
        """Returns when the agent is behind the wall and waits; raises if a step failed."""
        try:
            async with asyncio.timeout(READY_S):
                await asyncio.shield(self._ready)
        except TimeoutError:
            raise EngineError(
                f"the agent was not ready within {READY_S:.0f} s", hint="is the machine overloaded?"
            ) from None

    async def run(
        self,
        order: Order,
        *,
        on_output: OnOutput | None = None,
        on_usage: OnUsage | None = None,
    ) -> Outcome:
        inside = self.wall.apply(order.limits)
        receiver = self._receiver = _Receiver(order.limits, self._loop.create_future())
        receiver.on_output, receiver.on_usage = on_output, on_usage
        feeder = self._feeder = _Feeder(self._loop, self.wall.stream, order.stdin_descriptor)
        if self.lost:
            receiver.lost(self.lost)
        outcome = receiver.outcome
        ticking = self._loop.create_task(self._tick(receiver)) if on_usage else None
        try:
            async with asyncio.timeout(order.limits.timeout_s):
                inputs = order.inputs
                if self.wall.inputs is not None and inputs:
                    await asyncio.to_thread(_write, self.wall.inputs, inputs)
                    inputs = {}
                await self._send(_frames(order, inputs, inside))
                await asyncio.shield(receiver.done)
        except TimeoutError:
            outcome.timed_out = True
            await feeder.finish()  # one sender at a time on a socket
            await self._stop(receiver)
        except (BrokenPipeError, ConnectionResetError):
            receiver.lost("the agent went away")
        except asyncio.CancelledError:
            self.wall.kill()
            raise
        finally:
            feeder.close()
            if ticking:
                ticking.cancel()
        if receiver.failure:
            self.wall.kill()
            raise receiver.failure
        if self._ready.done() and (broken := self._ready.exception()):
            raise broken
        receiver.close()
        if seen := self.wall.look():
            told = outcome.usage.peak_processes
            outcome.usage = seen.usage
            if not seen.usage.peak_processes:  # the wall sees what they cost, but not how many
                outcome.usage = replace(seen.usage, peak_processes=told)
            outcome.out_of_memory = outcome.out_of_memory or seen.out_of_memory
        return outcome

    async def _tick(self, receiver: _Receiver) -> None:
        """Reports what the run uses while it runs (L7); without a wall that can tell, the agent
        does."""
        while seen := self.wall.look():
            receiver.used(seen.usage)
            await asyncio.sleep(TICK_S)

    async def destroy(self) -> None:
        self._stop_listening()
        if not self._ready.done():
            self._ready.cancel()
        await self.wall.destroy()

    async def _stop(self, receiver: _Receiver) -> None:
        """Out of time: the agent kills the code and still says what it knows, if it can."""
        try:
            async with asyncio.timeout(STOP_GRACE_S):
                await self._send(protocol.frame(protocol.STOP))
                await asyncio.shield(receiver.done)
        except (TimeoutError, BrokenPipeError, ConnectionResetError):
            self.wall.kill()

    async def _send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.wall.stream, data)

    def _readable(self) -> None:
        try:
            data = self.wall.stream.recv(_RECEIVE)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(f"the stream broke: {error}")
            return
        if not data:
            self._lose("the sandbox ended before its code did")
            return
        try:
            for kind, payload in self._frames.feed(data):
                if kind == protocol.READY:
                    if not self._ready.done():
                        self.wall.settle()
                        self._ready.set_result(None)
                elif kind == protocol.FAULT:
                    self._fault(protocol.unpack(payload))
                elif kind == protocol.WANT:
                    if self._feeder:
                        self._feeder.wanted()
                elif self._receiver:
                    self._receiver.take(kind, payload)
        except protocol.BadFrame as problem:
            self.wall.kill()
            self._lose(f"the sandbox sent {problem}")
        except Exception as slip:  # ours: the run must still end
            self.wall.kill()
            self._lose(f"the host could not take what the sandbox sent: {slip!r}")

    def _fault(self, fault: Mapping[str, Any]) -> None:
        text = _printable(str(fault.get("message", ""))[:500])
        if not self._ready.done():
            self._ready.set_exception(
                EngineError(
                    f"the wall could not be built: {text}",
                    hint=_printable(str(fault.get("hint", ""))[:500]),
                )
            )
        if self._receiver:
            hint = _printable(str(fault.get("hint", ""))[:500])
            self._receiver.lost(f"{text} ({hint})" if hint else text)

    def _stop_listening(self) -> None:
        if self.wall.stream.fileno() >= 0:
            self._loop.remove_reader(self.wall.stream)

    def _lose(self, why: str) -> None:
        self.lost = why
        self._stop_listening()
        if not self._ready.done():
            self._ready.set_exception(EngineError(why))
        if self._receiver:
            self._receiver.lost(why)


class _Feeder:
    """Passes standard input on, one piece at a time and only when the agent asks for it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, stream: socket.socket, descriptor: int | None
    ) -> None:
        self._loop = loop
        self._stream = stream
        self._descriptor = descriptor
        self._sending: asyncio.Task[None] | None = None

    def wanted(self) -> None:
        if self._descriptor is None:
            return
        if self._sending and not self._sending.done():
            raise protocol.BadFrame("a wish for more input before it took what it was given")
        try:
            self._loop.add_reader(self._descriptor, self._readable)
        except PermissionError:  # a plain file is always readable and cannot be waited for
            self._readable()

    def close(self) -> None:
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            self._descriptor = None
        if self._sending:
            self._sending.cancel()

    async def finish(self) -> None:
        """Ends it without cutting a frame in half, unless nobody takes the other half."""
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            self._descriptor = None
        if self._sending:
            await asyncio.wait((self._sending,), timeout=STOP_GRACE_S)

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
        self._sending = self._loop.create_task(self._send(data))

    async def _send(self, data: bytes) -> None:
        try:
            await self._loop.sock_sendall(self._stream, protocol.frame(protocol.STDIN, data))
        except OSError:
            pass  # the sandbox is gone; its run ends by itself


class _Receiver:
    """Collects one run's frames within the run's limits."""

    def __init__(self, limits: Limits, done: asyncio.Future[None]) -> None:
        self.outcome = Outcome()
        self.done = done
        self.failure: Exception | None = None
        """What the caller's `on_output` or `on_usage` raised."""
        self.on_output: OnOutput | None = None
        self.on_usage: OnUsage | None = None
        self._limits = limits
        self._streams = {"stdout": bytearray(), "stderr": bytearray()}
        self._tails = {"stdout": bytearray(), "stderr": bytearray()}
        self._files: list[OutputFile] = []
        self._file: tuple[str, int, bytearray] | None = None
        self._file_bytes = 0

    def take(self, kind: int, payload: bytes) -> None:
        if self.done.done():
            return
        if kind == protocol.STDOUT:
            self._output("stdout", self._streams, payload)
        elif kind == protocol.STDERR:
            self._output("stderr", self._streams, payload)
        elif kind == protocol.STDOUT_TAIL:
            self._output("stdout", self._tails, payload)
        elif kind == protocol.STDERR_TAIL:
            self._output("stderr", self._tails, payload)
        elif kind == protocol.FILE:
            self._announced(protocol.unpack(payload))
        elif kind == protocol.DATA:
            self._content(payload)
        elif kind == protocol.USED:
            self.used(_usage(protocol.unpack(payload)))
        elif kind == protocol.END:
            self._ended(protocol.unpack(payload))

    def lost(self, why: str) -> None:
        if not self.done.done():
            self.outcome.problem = self.outcome.problem or why
            self.done.set_result(None)

    def close(self) -> None:
        """Puts what was collected into the outcome."""
        outcome = self.outcome
        for name in ("stdout", "stderr"):
            head, tail = self._streams[name], self._tails[name]
            missing = getattr(outcome.dropped, name)
            if missing:
                head += b"\n[belljar: %d bytes dropped here]\n" % missing
            setattr(outcome, name, bytes(head + tail))
        outcome.files = tuple(self._files)

    def _output(self, name: str, into: Mapping[str, bytearray], payload: bytes) -> None:
        into[name].extend(payload)
        if len(into[name]) > self._limits.output_bytes:
            raise protocol.BadFrame("more output than was agreed")
        if self.on_output:
            self._tell(self.on_output, name, payload)

    def used(self, usage: Usage) -> None:
        if self.on_usage:
            self._tell(self.on_usage, usage)

    def _tell(self, callback: Callable[..., None], *what: object) -> None:
        try:
            callback(*what)
        except Exception as failure:
            self.failure = failure
            self.lost("the caller's callback failed")

    def _announced(self, file: Mapping[str, Any]) -> None:
        path, size, skipped = file.get("path"), file.get("size"), file.get("skipped")
        if not isinstance(path, str) or not isinstance(skipped, str) or type(size) is not int:
            raise protocol.BadFrame("a file without a name or a size")
        below = next((path[len(root) :] for root in ROOTS if path.startswith(root)), "")
        if self._file or size < 0 or len(path) > protocol.MAX_PATH:
            raise protocol.BadFrame("a file out of place")
        foreign = {"", ".", ".."}.intersection(below.split("/")) if below else path not in ROOTS
        if foreign:
            raise protocol.BadFrame("a file from elsewhere")
        if len(self._files) >= self._limits.result_files + protocol.NAMES_BEYOND:
            raise protocol.BadFrame("more files than were agreed")
        path = _printable(path)
        if skipped:
            skipped = _printable(skipped[:200])
            self._files.append(OutputFile(path=path, size=size, content=None, skipped=skipped))
            return
        self._file_bytes += size
        if self._file_bytes > self._limits.result_bytes:
            raise protocol.BadFrame("more bytes of files than were agreed")
        self._file = (path, size, bytearray())
        if not size:
            self._content(b"")

    def _content(self, payload: bytes) -> None:
        if self._file is None:
            raise protocol.BadFrame("content without a file")
        path, size, content = self._file
        content += payload
        if len(content) > size:
            raise protocol.BadFrame("more content than the file has")
        if len(content) == size:
            self._files.append(OutputFile(path=path, size=size, content=bytes(content)))
            self._file = None

    def _ended(self, end: Mapping[str, Any]) -> None:
        outcome = self.outcome
        outcome.ended = True
        outcome.exit_code = _small(end.get("exit_code"), 255)
        outcome.signal = _small(end.get("signal"), 64)
        dropped = end.get("dropped")
        if isinstance(dropped, dict):
            outcome.dropped = Dropped(
                stdout=_small(dropped.get("stdout"), 1 << 62) or 0,
                stderr=_small(dropped.get("stderr"), 1 << 62) or 0,
            )
        outcome.files_unnamed = _small(end.get("files_unnamed"), 1 << 40) or 0
        outcome.error = _error(end.get("report"))
        watched = end.get("watched")
        outcome.out_of_memory = isinstance(watched, dict) and watched.get("out_of_memory") is True
        outcome.usage = _usage(end)
        self.done.set_result(None)


def _small(value: object, most: int) -> int | None:
    return value if type(value) is int and 0 <= value <= most else None


def _usage(told: Mapping[str, Any]) -> Usage:
    """As the agent saw it from inside."""
    watched = told.get("watched")
    if not isinstance(watched, dict):
        watched = {}
    return Usage(
        cpu_ms=_small(told.get("cpu_ms"), 1 << 50) or 0,
        peak_memory_bytes=_small(watched.get("peak_memory_bytes"), 1 << 50) or 0,
        peak_processes=_small(watched.get("peak_processes"), 1 << 22) or 0,
    )


def _error(report: object) -> ErrorInfo | None:
    """The exception as the code's own process told it: believed to be text, nothing more."""
    if not isinstance(report, str) or not report:
        return None
    try:
        content = protocol.unpack(report.encode("utf-8", "replace"))
    except protocol.BadFrame:
        return None
    texts = [str(content.get(key, ""))[:65536] for key in ("name", "message", "traceback")]
    name, message, traceback = (_printable(text) for text in texts)
    return ErrorInfo(name=name, message=message, traceback=traceback)


def _printable(text: str) -> str:
    """Names that are not UTF-8, and worse: lone surrogates would make the result unencodable."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


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


def _frames(order: Order, inputs: Mapping[str, bytes], inside: Inside) -> bytes:
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
    }
    parts.append(protocol.message(protocol.RUN, run))
    if order.stdin_descriptor is None:
        for start in range(0, len(order.stdin), protocol.CHUNK):
            piece = order.stdin[start : start + protocol.CHUNK]
            parts.append(protocol.frame(protocol.STDIN, piece))
        parts.append(protocol.frame(protocol.STDIN))
    return b"".join(parts)
