"""The kept sandboxes of one connection, by names that a model can write."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from belljar.errors import SandboxEnded
from belljar.mcp.host import Asked, Host, Kept, Refused

_LETTERS = "bcdfghjkmnpqrstvwxz23456789"
REMEMBERED = 100
"""Sandboxes that have ended, and why."""


class Shelf:
    def __init__(self, host: Host, *, most: int) -> None:
        self._host = host
        self._most = most
        self._kept: dict[str, Kept] = {}
        self._ended: dict[str, str] = {}
        self._making = 0
        self._closed = False

    @property
    def busy(self) -> bool:
        self._sweep()
        return bool(self._kept or self._making)

    async def open(self, asked: Asked, options: Mapping[str, Any]) -> tuple[str, Kept]:
        with self._room(1):
            return (await self._put([await self._host.open(asked, options)]))[0]

    async def fork(
        self, asked: Asked, kept: Kept, count: int, before_run: int | None
    ) -> list[tuple[str, Kept]]:
        with self._room(count):
            return await self._put(await self._host.fork(asked, kept, count, before_run))

    def find(self, name: str) -> Kept:
        self._sweep()
        if kept := self._kept.get(name):
            return kept
        if why := self._ended.get(name):
            raise SandboxEnded(f"the sandbox {name!r} has ended: {why}")
        open_now = ", ".join(self._kept) or "none; open_sandbox makes one"
        raise Refused(f"there is no sandbox {name[:64]!r}", hint=f"open now: {open_now}")

    async def close(self, name: str) -> None:
        kept = self.find(name)
        del self._kept[name]
        self._remember(name, "it was closed")
        await self._host.end(kept)

    async def close_all(self) -> None:
        self._closed = True
        while self._kept:
            going = [self._kept.pop(name) for name in list(self._kept)]
            await asyncio.gather(*(self._host.end(kept) for kept in going), return_exceptions=True)

    @contextmanager
    def _room(self, count: int) -> Iterator[None]:
        """Those that are being made count, too."""
        self._sweep()
        if len(self._kept) + self._making + count > self._most:
            raise Refused(
                f"{self._most} sandboxes at once are the most of one connection",
                hint=f"close_sandbox ends one of them: {', '.join(self._kept) or 'wait'}",
            )
        self._making += count
        try:
            yield
        finally:
            self._making -= count

    async def _put(self, made: list[Kept]) -> list[tuple[str, Kept]]:
        if self._closed:
            for kept in made:
                await self._host.end(kept)
            raise Refused("this connection has ended")
        found = []
        for kept in made:
            name = "box-" + "".join(secrets.choice(_LETTERS) for _ in range(6))
            self._kept[name] = kept
            found.append((name, kept))
        return found

    def _sweep(self) -> None:
        """Forgets those that have ended by themselves."""
        for name, kept in list(self._kept.items()):
            if kept.box.ended:
                del self._kept[name]
                self._remember(name, kept.box.ended)

    def _remember(self, name: str, why: str) -> None:
        self._ended[name] = why
        while len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]
