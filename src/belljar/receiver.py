"""What one run sends, gathered within its limits: output, files, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from belljar.hearing import printable
from belljar.model import Dropped, ErrorInfo, Limits, OutputFile, Usage
from belljar.runtimes.guest import protocol

OnOutput = Callable[[str, bytes], None]
OnUsage = Callable[[Usage], None]
ROOTS = ("/workspace/", "/data/output/")


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


class Receiver:
    """Collects one run's frames within the run's limits."""

    def __init__(self, limits: Limits, done: asyncio.Future[None]) -> None:
        self.outcome = Outcome()
        self.done = done
        self.failure: Exception | None = None
        """What the caller's `on_output` or `on_usage` raised."""
        self.on_output: OnOutput | None = None
        self.on_usage: OnUsage | None = None
        self.wall_tells = False
        """What the run uses: the agent's word is then no second one. Behind a kernel of its own the
        agent sees other figures, and one run has one."""
        self.heard = Usage()
        """The most that the agent said."""
        self.told_ms = 0.0
        """The most that `on_usage` was told: the result is never less."""
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
            usage = _usage(protocol.unpack(payload))
            self.heard = _more(self.heard, usage)
            if not self.wall_tells:
                self.used(usage)
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
            self.told_ms = max(self.told_ms, usage.cpu_ms)
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
        path = printable(path)
        if skipped:
            skipped = printable(skipped[:200])
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


def _more(one: Usage, other: Usage) -> Usage:
    return Usage(
        cpu_ms=max(one.cpu_ms, other.cpu_ms),
        peak_memory_bytes=max(one.peak_memory_bytes, other.peak_memory_bytes),
        peak_processes=max(one.peak_processes, other.peak_processes),
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
    name, message, traceback = (printable(text) for text in texts)
    return ErrorInfo(name=name, message=message, traceback=traceback)
