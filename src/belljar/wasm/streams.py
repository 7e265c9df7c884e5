"""The standard streams of a WASI command that runs in this process."""

from __future__ import annotations

from belljar.engines.wasm.wasi import abi
from belljar.engines.wasm.wasi.abi import WasiError
from belljar.runtimes.guest.spool import Spool


class Given:
    """Standard input that is all there."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._taken = 0

    def read(self, count: int) -> bytes:
        # By position: to copy the rest would make each byte that is read cost all that follow.
        data = self._data[self._taken : self._taken + count]
        self._taken += len(data)
        return data

    def write(self, data: bytes) -> None:
        raise WasiError(abi.EBADF)

    def ready(self, timeout_s: float | None) -> bool:
        return True


class Kept:
    """Output of which the beginning and the end are kept."""

    def __init__(self, spool: Spool, head: bytearray) -> None:
        self._spool = spool
        self._head = head

    def write(self, data: bytes) -> None:
        self._head += self._spool.feed(data)

    def read(self, count: int) -> bytes:
        raise WasiError(abi.EBADF)

    def ready(self, timeout_s: float | None) -> bool:
        return True
