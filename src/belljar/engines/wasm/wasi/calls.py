"""What a guest may call: WASI preview 1, one method per function, each returning its errno."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from . import abi
from .abi import WasiError
from .descriptors import Descriptors
from .paths import Paths
from .table import PIECE, Stream, u

MAX_SUBSCRIPTIONS = 1024


class Wasi(Descriptors, Paths):
    """All of it. Descriptors and paths have files of their own."""

    def functions(self) -> dict[str, Callable[..., int]]:
        return {name: self._checked(getattr(self, name)) for name in abi.SIGNATURES}

    def restart_clock(self) -> None:
        """A fork is a new machine: its clock starts again and tells nothing about the host's."""
        self._monotonic_ns = time.monotonic_ns()

    def _checked(self, function: Callable[..., int]) -> Callable[..., int]:
        def call(*arguments: int) -> int:
            # wasmtime looks at the time in loops and where functions begin: code that is one long
            # line of calls into the host has neither.
            self._check()
            try:
                # Numbers arrive signed; those of 32 bits and of 64 mean the same once masked.
                return function(*arguments) or 0
            except WasiError as error:
                return error.errno

        return call

    # -- arguments, clocks, chance ---------------------------------------------------------------

    def args_get(self, table: int, texts: int) -> int:
        return self._put_texts(self._argv, table, texts)

    def args_sizes_get(self, count: int, size: int) -> int:
        return self._put_sizes(self._argv, count, size)

    def environ_get(self, table: int, texts: int) -> int:
        return self._put_texts(self._env, table, texts)

    def environ_sizes_get(self, count: int, size: int) -> int:
        return self._put_sizes(self._env, count, size)

    def clock_res_get(self, clock: int, result: int) -> int:
        self._now(clock)
        self.memory.put_u64(u(result), 1000)
        return 0

    def clock_time_get(self, clock: int, precision: int, result: int) -> int:
        self.memory.put_u64(u(result), self._now(clock))
        return 0

    def random_get(self, address: int, count: int) -> int:
        address, count = u(address), u(count)
        if address + count > self.memory.size:  # before, not after, gigabytes were made for it
            return abi.EFAULT
        for start in range(0, count, PIECE):
            self._check()
            self.memory.write(address + start, os.urandom(min(PIECE, count - start)))
        return 0

    def sched_yield(self) -> int:
        return 0

    def proc_exit(self, code: int) -> int:
        self._leave(u(code))

    def proc_raise(self, signal: int) -> int:
        return abi.ENOSYS

    def poll_oneoff(self, subscriptions: int, events: int, count: int, result: int) -> int:
        count = u(count)
        if not 0 < count <= MAX_SUBSCRIPTIONS:
            return abi.EINVAL
        size = abi.SUBSCRIPTION.size
        raw = self.memory.read(u(subscriptions), size * count)
        asked = [abi.SUBSCRIPTION.unpack_from(raw, index * size) for index in range(count)]
        happened = self._happened(asked)
        self.memory.write(u(events), b"".join(happened))
        self.memory.put_u32(u(result), len(happened))
        return 0

    def _happened(self, asked: list[tuple[Any, ...]]) -> list[bytes]:
        begun = time.monotonic_ns()
        waits: list[tuple[int, int]] = []
        inputs: list[tuple[int, Stream]] = []
        now: list[bytes] = []
        for user, tag, what, timeout, _, flags in asked:
            if tag == abi.ON_CLOCK:
                left = timeout - self._now(what) if flags & abi.ABSOLUTE else timeout
                waits.append((max(0, left), user))
                continue
            descriptor = self._open.get(what)
            if descriptor is None:
                now.append(abi.EVENT.pack(user, abi.EBADF, tag, 0, 0))
            elif tag == abi.ON_READ and descriptor.stream is not None:
                inputs.append((user, descriptor.stream))
            else:
                now.append(abi.EVENT.pack(user, 0, tag, 1, 0))
        for user, stream in inputs:
            if stream.ready(0):
                now.append(abi.EVENT.pack(user, 0, abi.ON_READ, 1, 0))
        if now:
            return now
        soonest = min(waits)[0] if waits else 0
        timeout_s = soonest / 1e9 if waits else None
        if inputs:
            user, stream = inputs[0]
            if stream.ready(timeout_s):
                return [abi.EVENT.pack(user, 0, abi.ON_READ, 1, 0)]
        elif timeout_s is not None:
            self._pause(timeout_s)
        passed = time.monotonic_ns() - begun
        return [
            abi.EVENT.pack(user, 0, abi.ON_CLOCK, 0, 0)
            for left, user in waits
            if left <= passed or left == soonest
        ]

    # -- sockets: there are none -----------------------------------------------------------------

    def sock_accept(self, fd: int, flags: int, result: int) -> int:
        return abi.ENOTSUP

    def sock_recv(self, fd: int, v: int, n: int, flags: int, result: int, out: int) -> int:
        return abi.ENOTSUP

    def sock_send(self, fd: int, vectors: int, count: int, flags: int, result: int) -> int:
        return abi.ENOTSUP

    def sock_shutdown(self, fd: int, how: int) -> int:
        return abi.ENOTSUP
