"""The host's end of a control socket: waiting for a zygote's answer."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from belljar.errors import EngineError

from .control import MOST_BYTES
from .wait import readable


async def answer(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """What it says, and at most two descriptors with it."""
    await readable(control)
    data, handles, _, _ = socket.recv_fds(control, MOST_BYTES, 2)
    for handle in handles:
        os.set_inheritable(handle, False)
    if not data:
        raise EngineError("the zygote closed its end")
    return json.loads(data), handles
