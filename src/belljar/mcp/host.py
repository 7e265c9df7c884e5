"""Who runs what the tools ask for: this process alone, or a server on behalf of a tenant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from belljar import threads
from belljar.core import Belljar
from belljar.errors import BelljarError
from belljar.kept.sandbox import Sandbox
from belljar.mcp.once import once
from belljar.model import Caller, Result
from belljar.network import Secret, rules
from belljar.policy.network import useful
from belljar.settings import Settings


class Refused(BelljarError):
    """A quota or a bound of these tools, and not Belljar itself, says no."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What the operator grants one connection."""

    sandboxes: int = 8
    """Kept at once."""
    idle_s: float = 600.0
    lifetime_s: float = 3600.0


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One call of a tool."""

    request_id: str
    request: Any = None
    """The HTTP request that brought it, if there is one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Kept:
    """A sandbox of this connection."""

    box: Sandbox
    own: Any = None
    """What the host knows it by."""


class Host(Protocol):
    settings: Settings
    terms: Terms
    tenant: str
    """For whom it works; empty where there are none."""
    secrets: Mapping[str, Secret]
    """The operator's, which pages are asked for with; runs have them in their options."""

    async def once(self, asked: Asked, code: str, options: Mapping[str, Any]) -> Result:
        """One run in a sandbox of its own."""

    async def open(self, asked: Asked, options: Mapping[str, Any]) -> Kept: ...

    async def run(self, asked: Asked, kept: Kept, code: str, timeout_s: float | None) -> Result: ...

    async def install(
        self, asked: Asked, kept: Kept, packages: Sequence[str]
    ) -> Mapping[str, str]: ...

    async def fork(
        self, asked: Asked, kept: Kept, count: int, before_run: int | None
    ) -> list[Kept]: ...

    async def rollback(self, asked: Asked, kept: Kept, run_id: int) -> None: ...

    async def end(self, kept: Kept) -> None: ...


class LocalHost:
    """For the one client at the other end of our standard streams."""

    def __init__(
        self, jar: Belljar, *, terms: Terms | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        self.settings = jar.settings
        self.terms = terms or Terms()
        self.tenant = threads.OURS
        self._jar = jar
        self._options = dict(options or {})
        self.secrets = self._options.get("secrets") or {}
        """What the operator wants of every sandbox."""
        self._kept: set[Kept] = set()

    async def once(self, asked: Asked, code: str, options: Mapping[str, Any]) -> Result:
        chosen = {**self._chosen(options), "caller": _caller(asked)}
        return await once(self._jar, code, chosen)

    async def open(self, asked: Asked, options: Mapping[str, Any]) -> Kept:
        times = {"idle_s": self.terms.idle_s, "lifetime_s": self.terms.lifetime_s}
        chosen = {**times, **self._chosen(options), "caller": _caller(asked)}
        box = Sandbox(self._jar, **chosen)
        await box.open()
        return self._keep(box)

    async def run(self, asked: Asked, kept: Kept, code: str, timeout_s: float | None) -> Result:
        return await kept.box.run(code, timeout_s=timeout_s)

    async def install(self, asked: Asked, kept: Kept, packages: Sequence[str]) -> Mapping[str, str]:
        return await kept.box.install(*packages)

    async def fork(
        self, asked: Asked, kept: Kept, count: int, before_run: int | None
    ) -> list[Kept]:
        return [self._keep(box) for box in await kept.box.fork(count, at=before_run)]

    async def rollback(self, asked: Asked, kept: Kept, run_id: int) -> None:
        await kept.box.rollback(run_id)

    async def end(self, kept: Kept) -> None:
        self._kept.discard(kept)
        await kept.box.close()

    async def close(self) -> None:
        """Ends everything, whoever still waits for it."""
        for kept in list(self._kept):
            await self.end(kept)
        await self._jar.close()

    def _chosen(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Of the operator's secrets those that the network asked for has a use for."""
        chosen = {**self._options, **options}
        if secrets := chosen.pop("secrets", None):
            chosen["secrets"] = useful(secrets, rules(chosen.get("network")))
        return chosen

    def _keep(self, box: Sandbox) -> Kept:
        kept = Kept(box=box)
        self._kept = {one for one in self._kept if not one.box.ended} | {kept}
        return kept


def _caller(asked: Asked) -> Caller:
    return Caller(door="mcp", request_id=asked.request_id)
