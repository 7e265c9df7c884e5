"""Everything this wall is made of, tried on this machine: the lines of `belljar doctor`."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from belljar.engines.base import Control, Ground
from belljar.engines.linux import cgroups
from belljar.errors import BelljarError
from belljar.settings import Settings

from . import available, runsc
from .engine import GvisorEngine

CHECK_S = 60.0


def controls(settings: Settings) -> list[Control]:
    """Every control, whether it works here, and what to do if not."""
    if missing := available.why_not(settings):
        return [Control(name="kernel", mechanism=missing.why, works=False, hint=missing.hint)]
    try:
        found = runsc.find(settings)
    except BelljarError as error:
        return [Control(name="kernel", mechanism=error.message, works=False, hint=error.hint)]
    with ThreadPoolExecutor(1) as thread:  # whoever asks may be in an event loop already
        fault, snapshot_fault = thread.submit(lambda: asyncio.run(_try(settings))).result()
    return [
        Control(
            name="kernel",
            mechanism=fault or f"gVisor {found.version} ({found.platform})",
            works=not fault,
            hint="" if not fault else "is ptrace forbidden here (sysctl kernel.yama.ptrace_scope)?",
        ),
        Control(
            name="platform",
            mechanism="systrap" if found.platform == "systrap" else f"{found.platform}, slower",
            works=found.platform == "systrap",
            hint="runsc of 2023 or newer has systrap: a twentieth of the cost per system call",
            essential=False,
        ),
        Control(
            name="user",
            mechanism="our own uid in a user namespace" if found.rootless else "nobody",
            works=True,
        ),
        Control(
            name="snapshot",
            mechanism=snapshot_fault or "warm sandboxes are copied",
            works=not snapshot_fault,
            hint=""
            if not snapshot_fault
            else "each starts anew; root with runsc of 2024 has copies",
            essential=False,
        ),
        *_limits(),
    ]


async def _try(settings: Settings) -> tuple[str, str]:
    """What went wrong with a new sandbox, and with a snapshot of one."""
    engine = GvisorEngine(settings)
    ground = Ground(name="check", mount="/opt/belljar/none")
    try:
        try:
            async with asyncio.timeout(CHECK_S):
                wall = await engine.create(ground, settings.defaults, waiting=False)
                await wall.destroy()
        except (BelljarError, TimeoutError) as error:
            return str(error) or "no sandbox within a minute", "not tried"
        try:
            async with asyncio.timeout(CHECK_S):
                await engine.snapshot(ground)
        except (BelljarError, TimeoutError) as error:
            return "", str(error) or "none within a minute"
        return "", ""
    finally:
        await engine.close()


def _limits() -> list[Control]:
    found = cgroups.detect()
    if isinstance(found, cgroups.Absent):
        instead = {"memory": "watched inside", "processes": "rlimit in gVisor", "cpu": "affinity"}
        return [
            Control(
                name=name,
                mechanism=f"{weaker} ({found.reason})",
                works=False,
                hint=found.hint,
                essential=False,
            )
            for name, weaker in instead.items()
        ]
    return [
        Control(name=name, mechanism=mechanism, works=True)
        for name, mechanism in found.describe().items()
    ]
