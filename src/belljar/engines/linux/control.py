"""Control sockets (SOCK_SEQPACKET): one JSON object and some descriptors per message.

Zygotes load it, too, and keep what they load in every sandbox's memory: so it imports little.
"""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Mapping, Sequence

MOST_BYTES = 65536
MOST_DESCRIPTORS = 64


def send(
    control: socket.socket, content: Mapping[str, object], descriptors: Sequence[int] = ()
) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    control.sendmsg([json.dumps(content).encode()], rights if descriptors else [])


def receive(control: socket.socket) -> tuple[dict, list[int]]:  # type: ignore[type-arg]
    """For who serves: the next message; ends the process when the host has gone."""
    data, descriptors, _, _ = socket.recv_fds(control, MOST_BYTES, MOST_DESCRIPTORS)
    if not data:
        os._exit(0)
    return json.loads(data), descriptors
