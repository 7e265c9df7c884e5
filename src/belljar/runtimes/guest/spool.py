"""A bounded view of an endless stream: head at once, tail at the end, the middle counted."""

from __future__ import annotations

from collections import deque

_SMALL = 4096
"""Pieces shorter than this are put together: one of a single byte takes forty times its size."""


class Spool:
    def __init__(self, capacity: int) -> None:
        self._head_left = capacity - capacity // 2
        self._tail_capacity = capacity // 2
        self._tail: deque[bytearray] = deque()
        self._tail_bytes = 0
        self._overflow = 0

    def feed(self, data: bytes) -> bytes:
        """Takes what was read, gives back what belongs to the head."""
        head = data[: self._head_left]
        self._head_left -= len(head)
        rest = data[len(head) :]
        if rest:
            if self._tail and len(self._tail[-1]) < _SMALL:
                self._tail[-1] += rest
            else:
                self._tail.append(bytearray(rest))
            self._tail_bytes += len(rest)
            while self._tail and self._tail_bytes - len(self._tail[0]) >= self._tail_capacity:
                gone = len(self._tail.popleft())
                self._tail_bytes -= gone
                self._overflow += gone
        return head

    def finish(self) -> tuple[bytes, int]:
        """The tail, and how many bytes between head and tail were dropped."""
        tail = b"".join(self._tail)
        surplus = max(0, len(tail) - self._tail_capacity)
        return tail[surplus:], self._overflow + surplus
