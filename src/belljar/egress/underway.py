"""Which attempts have begun and are not told yet, in memory that the host sees, too.

The gateway writes a line before something goes out and clears it once the host was told how it
ended. When its process is lost, the host reads what is left: no attempt goes missing from the
record, and none is told twice, since each has a number. Nothing is sent for it, and nobody waits.

    a slot   length of the line (0: free) | number, lease, time, port, scheme, method, host, rule,
             path
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Mapping

from belljar.network import Egress

from .refusal import FAILED, refused

SLOTS = 8_192
"""Pages that nobody has written to take no memory."""
_SLOT_BYTES = 1_024
_LENGTH = struct.Struct("<H")
_MOST = _SLOT_BYTES - _LENGTH.size
_FIELDS = 8
"""Behind the number."""
_WHY = "the gateway was lost before this came to an end; how much of it went out is not known"


def make() -> int:
    """The memory, as a descriptor: the host's, and the gateway's."""
    descriptor = os.memfd_create("belljar-under-way")
    os.ftruncate(descriptor, SLOTS * _SLOT_BYTES)
    return descriptor


class UnderWay:
    """The gateway's side."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, SLOTS * _SLOT_BYTES)
        self._free = list(range(SLOTS - 1, -1, -1))
        self._numbers: dict[int, int] = {}
        self._begun = 0

    def begin(
        self,
        lease: int,
        at: float,
        port: int,
        scheme: str,
        method: str,
        host: str,
        rule: str,
        path: str,
    ) -> int:
        """A slot, to be cleared with `over`. Every request passes here: it takes microseconds."""
        if not self._free:
            raise refused("too many requests are under way at once", status=503)
        slot = self._free.pop()
        self._begun += 1
        self._numbers[slot] = self._begun
        head = f"{self._begun}\n{lease}\n{at:.3f}\n{port}\n{scheme}"
        fields = f"{head}\n{method[:40]}\n{host[:253]}\n{rule[:300]}"
        line = f"{fields}\n{path}".encode("utf-8", "replace")[:_MOST]
        start = slot * _SLOT_BYTES
        # The length last: a line that was begun when the process was killed does not count.
        self._memory[start + _LENGTH.size : start + _LENGTH.size + len(line)] = line
        _LENGTH.pack_into(self._memory, start, len(line))
        return slot

    def number(self, slot: int) -> int:
        """Of what is in it now."""
        return self._numbers[slot]

    def over(self, slot: int) -> None:
        _LENGTH.pack_into(self._memory, slot * _SLOT_BYTES, 0)
        self._free.append(slot)


def left(descriptor: int, heard: Mapping[int, int]) -> Iterator[tuple[int, Egress]]:
    """The host's side, once the process has ended: leases, and what they had under way. `heard`:
    the number of the last record of each slot that the host was told. Read and not mapped: a file
    that the gateway has cut short would end whoever maps it."""
    data = os.pread(descriptor, SLOTS * _SLOT_BYTES, 0)
    for start in range(0, len(data) - _SLOT_BYTES + 1, _SLOT_BYTES):
        (length,) = _LENGTH.unpack_from(data, start)
        begin = start + _LENGTH.size
        line = data[begin : begin + min(length, _MOST)]
        number, _, rest = line.partition(b"\n")
        if number == str(heard.get(start // _SLOT_BYTES, "")).encode():
            continue
        if line and (found := _read(rest.decode("utf-8", "replace").split("\n"))):
            yield found


def _read(parts: list[str]) -> tuple[int, Egress] | None:
    if len(parts) != _FIELDS:
        return None
    lease, at, port, scheme, method, host, rule, path = parts
    try:
        return int(lease), Egress(
            at=float(at),
            host=host,
            port=int(port),
            verdict=FAILED,
            rule=rule,
            why=_WHY,
            scheme=scheme,
            method=method,
            path=path[:500],
        )
    except ValueError:
        return None
