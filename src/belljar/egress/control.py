"""Messages between the host and the gateway: JSON and descriptors on a SOCK_SEQPACKET socket.

    host → gateway   {do: start, …} + the host's pidfd and memory for what is under way, then
                     {do: open | change | tell | close | ping, id, lease} with what it needs, and
                     {do: wire, lease} + the wire
    gateway → host   {ready} or {error}; {id}, {id, refused, hint} or {id, error};
                     {id, under_way: [[slot, number, …]]};
                     {lease, egress: […], slot: [slot, number]}

What is too long for one message lies in a memory file that goes with it; which question it is, the
message says. Secrets travel here and nowhere else.
"""

from __future__ import annotations

import array
import errno
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

_MESSAGE_BYTES = 60_000
_MOST_BYTES = 64 << 20
_MOST_DESCRIPTORS = 8
_ELSEWHERE = b"@"
_NAMED = ("id", "lease")


class Incomplete(OSError):
    """A message came without its descriptor, for this process had none free."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        super().__init__(errno.EMFILE, "no descriptor is free")
        self.named = named


def send(
    control: socket.socket, content: Mapping[str, object], descriptors: Sequence[int] = ()
) -> None:
    """BlockingIOError if the other side does not read, and then nothing was sent."""
    data = json.dumps(content).encode()
    if len(data) <= _MESSAGE_BYTES:
        _send(control, data, descriptors)
        return
    memory = os.memfd_create("belljar-message")
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(data)
        named = {name: content[name] for name in _NAMED if name in content}
        _send(control, _ELSEWHERE + json.dumps(named).encode(), [*descriptors, memory])
    finally:
        os.close(memory)


def receive(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message; None when the other side has gone. Incomplete: its content is lost."""
    data, descriptors, _, _ = socket.recv_fds(control, 1 + _MESSAGE_BYTES, _MOST_DESCRIPTORS)
    if not data:
        return None
    if data.startswith(_ELSEWHERE):
        if not descriptors:
            raise Incomplete(json.loads(data.removeprefix(_ELSEWHERE)))
        memory = descriptors.pop()
        try:
            data = os.pread(memory, min(os.fstat(memory).st_size, _MOST_BYTES), 0)
        finally:
            os.close(memory)
    return json.loads(data), descriptors


def _send(control: socket.socket, data: bytes, descriptors: Sequence[int]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    control.sendmsg([data], rights if descriptors else [])
