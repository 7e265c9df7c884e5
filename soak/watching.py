"""How large the server is, sampled from outside while it lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from . import machine
from .machine import Traces
from .place import Place
from .record import Record, Sample

EVERY_S = 2.0


async def watch(place: Place, record: Record, traces: Traces, now: Callable[[], float]) -> None:
    """Until it is cancelled."""
    while True:
        if place.alive():
            sample = _sample(place.pid, len(traces.note()), now())
            if sample.memory_bytes:
                record.samples.append(sample)
        await asyncio.sleep(EVERY_S)


def _sample(pid: int, processes: int, at: float) -> Sample:
    return Sample(
        at=at,
        pid=pid,
        memory_bytes=machine.memory_bytes(pid),
        descriptors=machine.descriptors(pid),
        threads=machine.threads(pid),
        processes=processes,
        gateway_bytes=sum(map(machine.memory_bytes, machine.gateways(pid))),
    )
