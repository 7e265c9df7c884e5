"""Messages between the host and the gateway: JSON and descriptors on a SOCK_SEQPACKET socket.

    host → gateway   {do: start, …} + the host's pidfd and memory for what is under way, then
                     {do: open | change | close | ping, id, lease} with what it needs, and
                     {do: wire, lease} + the wire
    gateway → host   {ready} or {error}; {id}, {id, refused, hint} or {id, error};
                     {lease, egress: […]}

What is too long for one message lies in a memory file that goes with it. Secrets travel here and
nowhere else.
"""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

_MESSAGE_BYTES = 60_000
_MOST_BYTES = 64 << 20
_MOST_DESCRIPTORS = 8


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
        _send(control, b"", [*descriptors, memory])
    finally:
        os.close(memory)


def receive(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message; None when the other side has gone."""
    data, descriptors, _, _ = socket.recv_fds(control, 1 + _MESSAGE_BYTES, _MOST_DESCRIPTORS)
    if not data:
        return None
    if data == _ELSEWHERE:
        memory = descriptors.pop()
        try:
            data = os.pread(memory, min(os.fstat(memory).st_size, _MOST_BYTES), 0)
        finally:
            os.close(memory)
    return json.loads(data), descriptors


_ELSEWHERE = b"@"


def _send(control: socket.socket, data: bytes, descriptors: Sequence[int]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    control.sendmsg([data or _ELSEWHERE], rights if descriptors else [])
