"""Bytes carried both ways, unread."""

from __future__ import annotations

import asyncio

from .streams import Stream


async def carry(one: Stream, other: Stream) -> None:
    """Until both sides have ended, or one breaks."""
    both = [asyncio.create_task(_carry(one, other)), asyncio.create_task(_carry(other, one))]
    try:
        done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)


async def _carry(source: Stream, sink: Stream) -> None:
    while data := await source.read():
        await sink.write(data)
    await sink.end()
