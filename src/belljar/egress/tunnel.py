"""Bytes carried both ways, unread."""

from __future__ import annotations

import asyncio
import time

from .limits import Turns
from .streams import Stream


async def carry(one: Stream, other: Stream, turns: Turns) -> None:
    """Until both sides have ended, or one breaks."""
    both = [
        asyncio.create_task(_carry(source, sink, turns))
        for source, sink in ((one, other), (other, one))
    ]
    try:
        done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)


async def _carry(source: Stream, sink: Stream, turns: Turns) -> None:
    since = time.monotonic()
    while data := await source.read():
        await sink.write(data)
        since = await turns.pass_on(since)
    await sink.end()
