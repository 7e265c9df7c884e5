"""The guest's memory as the host may touch it: no address is believed."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from . import abi
from .abi import WasiError

if TYPE_CHECKING:
    import wasmtime


class Memory:
    """One linear memory. It may grow between two calls and, with it, move."""

    def __init__(self, memory: wasmtime.Memory, store: wasmtime.Store) -> None:
        self._memory = memory
        self._store = store

    @property
    def size(self) -> int:
        return self._memory.data_len(self._store)

    def read(self, address: int, count: int) -> bytes:
        return ctypes.string_at(self._at(address, count), count) if count else b""

    def write(self, address: int, data: bytes) -> None:
        if data:
            ctypes.memmove(self._at(address, len(data)), data, len(data))

    def text(self, address: int, count: int) -> str:
        if count > 2 * 4096:
            raise WasiError(abi.ENAMETOOLONG)
        return self.read(address, count).decode("utf-8", "surrogateescape")

    def u32(self, address: int) -> int:
        value: int = abi.U32.unpack(self.read(address, 4))[0]
        return value

    def put_u32(self, address: int, value: int) -> None:
        self.write(address, abi.U32.pack(value))

    def put_u64(self, address: int, value: int) -> None:
        self.write(address, abi.U64.pack(value & 0xFFFF_FFFF_FFFF_FFFF))

    def _at(self, address: int, count: int) -> int:
        if address < 0 or count < 0 or address + count > self.size:
            raise WasiError(abi.EFAULT)
        base = ctypes.cast(self._memory.data_ptr(self._store), ctypes.c_void_p).value
        return (base or 0) + address


class NoMemory(Memory):
    """Before there is one, or where a module has none: every address is wrong."""

    def __init__(self) -> None:
        pass

    @property
    def size(self) -> int:
        return 0
