"""The agent's surface, without an agent: what the host hears from a wasm sandbox.

The guest agent's place is taken by this process, which is ours: the code is on the other side of
the module's wall and reaches it through WASI only. So what is said here about time, memory and
output is the host's own word.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from belljar.runtimes.guest import protocol
from belljar.runtimes.guest.forking import REPORT_BYTES
from belljar.runtimes.guest.spool import Spool

from .wasi import abi, files
from .wasi.abi import WasiError

TELL_MS = 250
NEAR_LIMIT_BYTES = 16 << 20
"""A module that breaks off this near its memory limit ran out of it."""
_READ = 256 * 1024
_REASONS = {abi.ENOSPC: "No space left on device", abi.ENOTDIR: "Not a directory"}


class Worker:
    """One sandbox. The thread that runs the module calls `wait_for_order`, then the streams, then
    `finish`; a second one listens to the host meanwhile and can finish at any moment."""

    def __init__(self, stream: int, file_system: files.FileSystem) -> None:
        self.order: dict[str, Any] = {}
        self.report = bytearray()
        self.lacks_memory = False
        """The interpreter said so when the code ended."""
        self._stream = stream
        self._files = file_system
        self._roots = {
            "workspace": file_system.folder("/workspace"),
            "input": file_system.folder("/data/input", frozen=True),
            "output": file_system.folder("/data/output"),
        }
        self._reader = protocol.Reader(protocol.FROM_HOST)
        self._file: tuple[files.File, int, str] | None = None
        self._placed: dict[str, tuple[int, int, int]] = {}
        self._sending = threading.Lock()
        self._finishing = threading.Lock()
        self._spools: dict[str, Spool] = {}
        self._memory_bytes: Callable[[], int] = lambda: 0
        self._memory_limit = 0
        self._cpu_s_before = 0.0
        self.stdin = Input(self)
        self.stdout = Output(self, "stdout", protocol.STDOUT)
        self.stderr = Output(self, "stderr", protocol.STDERR)

    # -- before the code -------------------------------------------------------------------------

    def wait_for_order(self) -> dict[str, Any]:
        """Says READY, takes files, and returns with the RUN order."""
        self._send(protocol.message(protocol.READY, {}))
        while not self.order:
            self._from_host()
        return self.order

    def begin(self, memory_bytes: Callable[[], int], memory_limit: int) -> None:
        """The code starts: from here the host is listened to beside it."""
        self._memory_bytes = memory_bytes
        self._memory_limit = memory_limit
        capacity = self.order["output_bytes"]
        self._spools = {"stdout": Spool(capacity), "stderr": Spool(capacity)}
        self._cpu_s_before = _cpu_s()
        threading.Thread(target=self._listen, daemon=True).start()

    def _from_host(self) -> None:
        data = os.read(self._stream, _READ)
        if not data:
            os._exit(0)
        for kind, payload in self._reader.feed(data):
            if kind == protocol.DATA:
                self._store(payload)
            elif kind == protocol.PUT:
                self._put(protocol.unpack(payload))
            elif kind == protocol.RUN:
                self.order = protocol.unpack(payload)
            elif kind == protocol.STDIN:
                self.stdin.feed(payload)
            elif kind == protocol.STOP:
                self.finish(None, signal.SIGKILL)

    def _put(self, order: dict[str, Any]) -> None:
        path = order["root"] + "/" + order["path"]
        try:
            file = self._files.place(self._roots[order["root"]], order["path"])
        except WasiError as error:
            self._fault(path, error)
            return
        self._file = (file, order["size"], path)
        if not order["size"]:
            self._store(b"")

    def _store(self, data: bytes) -> None:
        if self._file is None:  # what follows a PUT that failed
            return
        file, left, path = self._file
        try:
            while data:
                written = self._files.write(file, file.size, data)
                data = data[written:]
                left -= written
        except WasiError as error:
            self._file = None
            self._fault(path, error)
            return
        self._file = (file, left, path)
        if left <= 0:
            self._placed[path] = _stamp(file)
            self._file = None

    def _fault(self, path: str, error: WasiError) -> None:
        text = f"{path}: {_REASONS.get(error.errno, str(error))}"
        hint = "raise disk_bytes or disk_files" if error.errno == abi.ENOSPC else ""
        fault = {"step": "files", "message": text, "hint": hint}
        self._send(protocol.message(protocol.FAULT, fault))

    # -- beside the code -------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            self._listen_for_ever()
        except BaseException:
            os._exit(1)  # deaf, it could not be stopped in order

    def _listen_for_ever(self) -> None:
        poll = select.poll()
        poll.register(self._stream, select.POLLIN)
        tell = time.monotonic() + TELL_MS / 1000
        while True:
            if poll.poll(max(0, round((tell - time.monotonic()) * 1000))):
                self._from_host()
            if time.monotonic() >= tell:
                tell = time.monotonic() + TELL_MS / 1000
                self._send(protocol.message(protocol.USED, self._used()))

    def wish(self) -> None:
        """The code wants input and none is left."""
        if self.order.get("stdin_streamed"):
            self._send(protocol.frame(protocol.WANT))

    def write(self, name: str, kind: int, data: bytes) -> None:
        with self._sending:
            if head := self._spools[name].feed(data):
                for start in range(0, len(head), protocol.CHUNK):
                    self._write_all(protocol.frame(kind, head[start : start + protocol.CHUNK]))

    def take_report(self, data: bytes) -> None:
        self.report += data[: REPORT_BYTES - len(self.report)]

    # -- after the code --------------------------------------------------------------------------

    def finish(self, exit_code: int | None, signal: int | None = None) -> NoReturn:
        """Sends what is left and ends this process; the other thread is never heard again."""
        if not self._finishing.acquire(blocking=False):
            while True:
                time.sleep(3600)
        self._sending.acquire()  # for good: nothing may come between
        parts: list[bytes] = []
        dropped = {}
        for name, kind in (("stdout", protocol.STDOUT_TAIL), ("stderr", protocol.STDERR_TAIL)):
            tail, dropped[name] = self._spools[name].finish() if self._spools else (b"", 0)
            for start in range(0, len(tail), protocol.CHUNK):
                parts.append(protocol.frame(kind, tail[start : start + protocol.CHUNK]))
        unnamed = self._send_files(parts)
        end = {
            "exit_code": exit_code,
            "signal": signal,
            "dropped": dropped,
            "files_unnamed": unnamed,
            "report": self.report.decode("utf-8", "replace"),
            **self._used(broken=signal is not None),
        }
        parts.append(protocol.message(protocol.END, end))
        self._write_all(b"".join(parts))
        os._exit(0)

    def _send_files(self, parts: list[bytes]) -> int:
        """Returns how many were not even named."""
        files_left: int = self.order.get("result_files", 0)
        bytes_left: int = self.order.get("result_bytes", 0)
        for root, prefix in (("workspace", "/workspace/"), ("output", "/data/output/")):
            for relative, node in self._files.walk(self._roots[root]):
                if self._placed.get(root + "/" + relative) == _stamp(node):
                    continue
                files_left -= 1
                if files_left < -protocol.NAMES_BEYOND:
                    continue
                path, skipped = prefix + relative, ""
                if len(path) > protocol.MAX_PATH:
                    skipped = f"a name of {len(path)} characters"
                    path = path[: protocol.MAX_PATH]
                elif files_left < 0:
                    skipped = f"more than {self.order['result_files']} files"
                elif not isinstance(node, files.File):
                    skipped = "a symbolic link"
                elif node.size > bytes_left:
                    skipped = f"more than {self.order['result_bytes']} bytes in all"
                content = b""
                if not skipped:
                    assert isinstance(node, files.File)
                    content = bytes(node.data)  # at once: the code may still be running
                    bytes_left -= len(content)
                size = node.size if skipped else len(content)
                described = {"path": path, "size": size, "skipped": skipped}
                parts.append(protocol.message(protocol.FILE, described))
                for start in range(0, len(content), protocol.CHUNK):
                    piece = content[start : start + protocol.CHUNK]
                    parts.append(protocol.frame(protocol.DATA, piece))
        return max(0, -files_left - protocol.NAMES_BEYOND)

    def _used(self, *, broken: bool = False) -> dict[str, Any]:
        held = self._memory_bytes()
        full = bool(self._memory_limit) and held + NEAR_LIMIT_BYTES > self._memory_limit
        return {
            "watched": {
                "out_of_memory": self.lacks_memory or (broken and full),
                "peak_memory_bytes": held + self._files.quota.peak_bytes,
                "peak_processes": 1,
            },
            "cpu_ms": round((_cpu_s() - self._cpu_s_before) * 1000),
        }

    # -- to the host -----------------------------------------------------------------------------

    def _send(self, data: bytes) -> None:
        with self._sending:
            self._write_all(data)

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._stream, view) :]
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.ECONNRESET):
                    os._exit(0)
                raise


class Input:
    """Standard input: taken from the host as the code asks for it."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._changed = threading.Condition()
        self._data = bytearray()
        self._closed = False
        self._asked = False

    def feed(self, data: bytes) -> None:
        with self._changed:
            self._data += data
            self._closed = self._closed or not data
            self._asked = False
            self._changed.notify()

    def ready(self, timeout_s: float | None) -> bool:
        with self._changed:
            if self._data or self._closed:
                return True
            if not self._asked:
                self._asked = True
                self._worker.wish()
            return self._changed.wait_for(lambda: bool(self._data or self._closed), timeout_s)

    def read(self, count: int) -> bytes:
        self.ready(None)
        with self._changed:
            taken = bytes(self._data[:count])
            del self._data[:count]
            return taken

    def write(self, data: bytes) -> None:
        raise WasiError(abi.EBADF)


class Output:
    def __init__(self, worker: Worker, name: str, kind: int) -> None:
        self._worker = worker
        self._name = name
        self._kind = kind

    def write(self, data: bytes) -> None:
        self._worker.write(self._name, self._kind, data)

    def read(self, count: int) -> bytes:
        raise WasiError(abi.EBADF)

    def ready(self, timeout_s: float | None) -> bool:
        return True


def _stamp(node: files.Node) -> tuple[int, int, int]:
    return node.inode, node.size, node.modified_ns


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
