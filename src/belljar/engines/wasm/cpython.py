"""CPython for WASI, behind the wall."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NoReturn

import wasmtime

from .wasi import calls
from .wasi.table import Stream

if TYPE_CHECKING:
    from .zygote import Zygote


class CPython:
    """An interpreter whose first program asks for an order and then becomes the code."""

    def __init__(self, zygote: Zygote, boot: str) -> None:
        self._zygote = zygote
        streams: dict[int, Stream] = {
            0: _Control(self, zygote),
            1: _Standard(zygote, "stdout"),
            2: _Standard(zygote, "stderr"),
        }
        self.wasi = calls.Wasi(
            file_system=zygote.files,
            streams=streams,
            argv=("python3", "-c", boot),
            # None: the file system packed into the module looks a setting of its own up before
            # each call. The code's variables are set by guest/boot.py.
            env={},
            open_files=64,
            leave=self._leave,
        )

    def start(self) -> None:
        self._zygote.link(self.wasi)
        exports = self._zygote.instantiate(self.wasi)
        begin = exports["_start"]
        assert isinstance(begin, wasmtime.Func)
        begin(self._zygote.store)
        self._leave(0)

    def born(self) -> bytes:
        """Waits and forks (see the module `zygote`): what to do first in the new sandbox."""
        order = self._zygote.fork(self.wasi)
        return json.dumps({"rehearse": order["rehearse"]}).encode()

    def order(self) -> bytes:
        run = self._zygote.take_order(self.wasi)
        return json.dumps({"path": run["path"], "env": run["env"]}).encode()

    def report(self, data: bytes) -> None:
        if self._zygote.worker:
            self._zygote.worker.take_report(data)

    def _leave(self, code: int) -> NoReturn:
        if self._zygote.worker is None:
            said = self._zygote.complaints.decode("utf-8", "replace")
            raise RuntimeError(f"the interpreter ended with status {code}: {said}")
        self._zygote.worker.finish(code & 0xFF)


class _Standard:
    """A standard stream: put by while the interpreter warms up, the sandbox's own afterwards."""

    def __init__(self, zygote: Zygote, name: str) -> None:
        self._zygote = zygote
        self._name = name

    def read(self, count: int) -> bytes:
        stream = self._stream()
        return stream.read(count) if stream else b""

    def write(self, data: bytes) -> None:
        stream = self._stream()
        if stream:
            stream.write(data)
        else:
            self._zygote.complaints += data[:2000]

    def ready(self, timeout_s: float | None) -> bool:
        stream = self._stream()
        return stream.ready(timeout_s) if stream else True

    def _stream(self) -> Stream | None:
        stream: Stream | None = getattr(self._zygote.worker, self._name, None)
        return stream


class _Control(_Standard):
    """Standard input, which before the code is the order, and where writing is the report.

    No descriptor of its own: the file system that is packed into the module hands on the first
    three only."""

    def __init__(self, interpreter: CPython, zygote: Zygote) -> None:
        super().__init__(zygote, "stdin")
        self._interpreter = interpreter
        self._coming = [interpreter.order, interpreter.born]
        self._message: bytes | None = None

    def read(self, count: int) -> bytes:
        """Each message ends like a file; after the last the next to read is the code."""
        if self._message is None:
            if not self._coming:
                return super().read(count)
            self._message = self._coming.pop()()
        piece, rest = self._message[:count], self._message[count:]
        self._message = rest if piece else None
        return piece

    def write(self, data: bytes) -> None:
        self._interpreter.report(data)
