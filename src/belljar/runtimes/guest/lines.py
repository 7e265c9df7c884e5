"""JSON lines with descriptors, over a Unix socket: how the keeper talks to interpreters."""

from __future__ import annotations

import array
import errno
import json
import os
import socket
import threading

MAX_LINE = 32 << 20
_READ = 256 * 1024
_MOST_DESCRIPTORS = 16
_RIGHTS_BYTES = socket.CMSG_LEN(_MOST_DESCRIPTORS * 4)


class Broken(Exception):
    """The other side is gone, or does not speak JSON lines."""


class Crowded(Exception):
    """Nothing was sent: too many descriptors of this user are under way, maybe of others."""


class Lines:
    """One end. Descriptors arrive with the line they were sent with, or an earlier one."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._sending = threading.Lock()
        self._buffer = bytearray()
        self._descriptors: list[int] = []

    def send(self, content: dict, descriptors: tuple[int, ...] = ()) -> None:  # type: ignore[type-arg]
        self.write(self.encode(content), descriptors)

    @staticmethod
    def encode(content: dict) -> bytes:  # type: ignore[type-arg]
        return json.dumps(content).encode() + b"\n"

    def write(self, content: bytes, descriptors: tuple[int, ...] = ()) -> None:
        data = memoryview(content)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        try:
            with self._sending:
                sent = self._socket.sendmsg([data], rights if descriptors else [])
                if sent < len(data):  # sendall says EPIPE for no bytes, too, if the other has gone
                    self._socket.sendall(data[sent:])
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:
                raise Crowded from None
            raise Broken(str(error)) from None

    def fill(self, *, wait: bool = True) -> list[dict]:  # type: ignore[type-arg]
        """Reads once; the lines that are complete now."""
        flags = 0 if wait else socket.MSG_DONTWAIT
        try:
            # Not socket.recv_fds, which leaves the flags out.
            data, rights, _, _ = self._socket.recvmsg(_READ, _RIGHTS_BYTES, flags)
        except (InterruptedError, BlockingIOError):
            return []
        except OSError as error:
            raise Broken(str(error)) from None
        for level, kind, content in rights:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors = array.array("i")
                descriptors.frombytes(content[: len(content) - len(content) % 4])
                self._descriptors += descriptors
        if len(self._descriptors) > _MOST_DESCRIPTORS:
            raise Broken("descriptors that nobody asked for")
        if not data:
            raise Broken("closed")
        self._buffer += data
        if len(self._buffer) > MAX_LINE:
            raise Broken("a line without an end")
        if b"\n" not in data:
            return []
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = rest
        try:
            found = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            raise Broken("a line that is not JSON") from None
        if not all(isinstance(line, dict) for line in found):
            raise Broken("a line that is not an object")
        return found

    def take(self, count: int) -> list[int]:
        """The next descriptors that arrived."""
        taken, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        for descriptor in taken:
            os.set_inheritable(descriptor, False)
        return taken

    def close(self) -> None:
        self._socket.close()
        for descriptor in (*self._descriptors, self.descriptor):
            try:
                os.close(descriptor)
            except OSError:
                pass
        self._descriptors = []
