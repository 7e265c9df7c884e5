"""QEMU's monitor (QMP), as far as a snapshot needs it."""

from __future__ import annotations

import array
import asyncio
import json
import socket
from collections.abc import Mapping
from typing import Any

from belljar.errors import EngineError

_SECONDS = 60.0
# Memory that an original shares with us is not part of the stream: it is there already.
_WITHOUT_MEMORY = {"capabilities": [{"capability": "x-ignore-shared", "state": True}]}


def restore(state: int) -> bytes:
    """All that a copy is told, in one piece: go on from `state`, a descriptor of its own."""
    orders: tuple[tuple[str, Mapping[str, object]], ...] = (
        ("qmp_capabilities", {}),
        ("migrate-set-capabilities", _WITHOUT_MEMORY),
        ("migrate-incoming", {"uri": f"fd:{state}"}),
    )
    return b"".join(_order(name, arguments) for name, arguments in orders)


def _order(name: str, arguments: Mapping[str, object]) -> bytes:
    return json.dumps({"execute": name, "arguments": arguments}).encode() + b"\n"


class Monitor:
    """One command at a time; events are passed over."""

    def __init__(self, endpoint: socket.socket) -> None:
        self._endpoint = endpoint
        self._buffer = b""

    async def greet(self) -> None:
        await self._answer()
        await self.command("qmp_capabilities")

    async def command(
        self,
        name: str,
        arguments: Mapping[str, object] | None = None,
        *,
        descriptor: int | None = None,
    ) -> dict[str, Any]:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor or 0]))]
        self._endpoint.sendmsg(
            [_order(name, arguments or {})], rights if descriptor is not None else []
        )
        while True:
            answer = await self._answer()
            if "error" in answer:
                raise EngineError(f"QEMU refused {name}: {answer['error'].get('desc')}")
            if "return" in answer:
                found = answer["return"]
                return found if isinstance(found, dict) else {}

    async def save(self, descriptor: int) -> None:
        """Stops the machine and writes the state of its devices."""
        await self.command("migrate-set-capabilities", _WITHOUT_MEMORY)
        await self.command("getfd", {"fdname": "state"}, descriptor=descriptor)
        await self.command("migrate", {"uri": "fd:state"})
        while True:
            status = (await self.command("query-migrate")).get("status")
            if status == "completed":
                return
            if status in ("failed", "cancelled"):
                raise EngineError(f"the snapshot could not be written: QEMU says {status}")
            await asyncio.sleep(0.01)

    async def _answer(self) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_SECONDS):
            while b"\n" not in self._buffer:
                data = await loop.sock_recv(self._endpoint, 65536)
                if not data:
                    raise EngineError("QEMU ended while it was asked for a snapshot")
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer
