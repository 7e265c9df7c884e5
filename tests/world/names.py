"""A name server that says what a test wants, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
from collections.abc import Callable, Sequence
from typing import cast

A, CNAME, AAAA = 1, 5, 28
NXDOMAIN = 3
Records = Sequence[tuple[str, int, str]]
"""(owner, type, value)"""


class NameServer(asyncio.DatagramProtocol):
    """Names not in `answers` do not exist; a value is addresses, or decides by question and
    count (from 1)."""

    def __init__(self) -> None:
        self.answers: dict[str, Sequence[str] | Callable[[int, int], Records]] = {}
        self.asked: list[tuple[str, int]] = []
        self.slow_s: dict[str, float] = {}
        self.silent: set[str] = set()
        self._transport: asyncio.DatagramTransport | None = None

    def count(self, name: str, kind: int = A) -> int:
        return self.asked.count((name, kind))

    async def serve(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(lambda: self, sock=listening)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        name, kind, question = _question(data)
        self.asked.append((name, kind))
        if name in self.silent:
            return
        reply = _reply(data, question, self._records(name, kind))
        loop = asyncio.get_running_loop()
        assert self._transport is not None
        loop.call_later(self.slow_s.get(name, 0.0), self._transport.sendto, reply, addr)

    def _records(self, name: str, kind: int) -> Records | None:
        found = self.answers.get(name)
        if found is None:
            return None
        if callable(found):
            return found(kind, self.count(name, kind))
        return [
            (name, AAAA if ":" in one else A, one)
            for one in found
            if (":" in one) == (kind == AAAA)
        ]


def rebinding(name: str, first: str, then: str) -> Callable[[int, int], Records]:
    """One address for the first who asks, another for everybody after."""

    def answer(kind: int, count: int) -> Records:
        return [(name, A, first if count == 1 else then)] if kind == A else []

    return answer


def _question(data: bytes) -> tuple[str, int, bytes]:
    labels, at = [], 12
    while data[at]:
        labels.append(data[at + 1 : at + 1 + data[at]].decode("ascii", "replace").lower())
        at += data[at] + 1
    (kind,) = struct.unpack_from(">H", data, at + 1)
    return ".".join(labels), kind, data[12 : at + 5]


def _reply(data: bytes, question: bytes, records: Records | None) -> bytes:
    flags = 0x8180 | (NXDOMAIN if records is None else 0)
    reply = data[:2] + struct.pack(">HHHHH", flags, 1, len(records or ()), 0, 0) + question
    for owner, kind, value in records or ():
        if kind == CNAME:
            content = _name(value)
        else:
            content = ipaddress.ip_address(value).packed
        # TTL 0: whoever asks twice is told anew.
        reply += _name(owner) + struct.pack(">HHIH", kind, 1, 0, len(content)) + content
    return reply


def _name(text: str) -> bytes:
    return b"".join(bytes([len(part)]) + part.encode() for part in text.split(".")) + b"\0"
