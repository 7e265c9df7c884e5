"""The asynchronous face."""

from __future__ import annotations

import asyncio
from typing import Unpack

from belljar.core import Belljar
from belljar.jar import shared
from belljar.kept.sandbox import Sandbox
from belljar.model import Result
from belljar.options import RunOptions

__all__ = ["Belljar", "Sandbox", "run"]


async def run(code: str, **options: Unpack[RunOptions]) -> Result:
    """As `belljar.run`, with the same shared pools, without blocking the caller's loop."""
    return await asyncio.wrap_future(shared().submit(code, **options))
