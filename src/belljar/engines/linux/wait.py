"""Waiting for a descriptor without holding up the others."""

from __future__ import annotations

import asyncio
import socket


async def readable(source: socket.socket | int) -> None:
    """Returns when it can be read from; a pidfd can once its process has ended."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def seen() -> None:
        if not done.done():
            done.set_result(None)

    loop.add_reader(source, seen)
    try:
        await done
    finally:
        loop.remove_reader(source)
