"""Messages between the host and a wasm zygote: one JSON object and some descriptors each."""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Sequence
from typing import Any

MOST_BYTES = 256 * 1024


def send(control: socket.socket, content: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    control.sendmsg([json.dumps(content).encode()], rights if descriptors else [])


def receive(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """In the zygote: the next message; ends the process when the host has gone."""
    data, descriptors, _, _ = socket.recv_fds(control, MOST_BYTES, 4)
    if not data:
        os._exit(0)
    return json.loads(data), descriptors
