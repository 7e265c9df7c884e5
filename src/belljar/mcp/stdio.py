"""Over standard input and output: one client, until it closes its end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from typing import Any

from mcp.server.stdio import stdio_server

from belljar.core import Belljar
from belljar.environments.folders import Progress
from belljar.mcp.host import LocalHost, Terms
from belljar.mcp.server import Desk, build
from belljar.settings import Settings

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve(
    settings: Settings,
    *,
    terms: Terms,
    options: Mapping[str, Any],
    on_progress: Progress | None = None,
) -> None:
    asyncio.run(_serve(settings, terms, options, on_progress))


async def _serve(
    settings: Settings, terms: Terms, options: Mapping[str, Any], on_progress: Progress | None
) -> None:
    host = LocalHost(Belljar(settings, on_progress=on_progress), terms=terms, options=options)
    loop = asyncio.get_running_loop()
    ending: list[asyncio.Task[None]] = []

    async def end(number: int) -> None:
        await host.close()
        # Not by an exception: a thread sits in a read of standard input, and would be waited for.
        os._exit(128 + number)

    def stop(number: int) -> None:
        ending.append(loop.create_task(end(number)))

    for number in SIGNALS:
        loop.add_signal_handler(number, stop, number)
    server = build(Desk(host))
    try:
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())
    finally:
        await host.close()
