"""The asynchronous Belljar: what `belljar.aio` offers and the synchronous face is a portal to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack, cast

from belljar import linux_only
from belljar.environments.folders import Progress
from belljar.errors import Closed
from belljar.holding import Held
from belljar.model import NOBODY, Caller, Result
from belljar.networking import OnEgress
from belljar.options import RunOptions, make_request
from belljar.service import Service
from belljar.settings import Settings

if TYPE_CHECKING:
    from belljar.fetching import Page
    from belljar.policy.filter import Rules


class Belljar:
    """Owns engines and their pools. Use it as `async with Belljar() as jar: await jar.run(...)`."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        rules: Rules | None = None,
        on_progress: Progress | None = None,
    ) -> None:
        linux_only.check()
        self.settings = settings or Settings()
        self._rules = rules
        self._on_progress = on_progress
        self.on_egress: OnEgress | None = None
        """Called with every attempt to reach something, and its tenant; to be set before a run."""
        self._service: Service | None = None
        self._closed = False

    async def __aenter__(self) -> Belljar:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def run(self, code: str, **options: Unpack[RunOptions]) -> Result:
        """Runs `code` in a fresh sandbox that is destroyed afterwards."""
        request = make_request(code, options, self.settings)
        return await self._open().run(
            request,
            stdin_descriptor=options.get("stdin_descriptor"),
            on_output=options.get("on_output"),
            on_usage=options.get("on_usage"),
            caller=options.get("caller") or NOBODY,
        )

    async def fetch(self, address: str, **options: Any) -> Page:
        """One page as text, got and read in sandboxes (N3); see `belljar.fetching.fetch`."""
        from belljar.fetching import fetch  # few programs fetch

        return await fetch(self.run, address, **options)

    async def open_trail(self) -> None:
        """Now rather than at the first run: attempts of dead processes are then marked lost."""
        await self._open().open_trail()

    def trail_trouble(self) -> str:
        """Why the trail cannot be written now, so that nothing would run; empty if it can."""
        return self._service.trail_trouble() if self._service else ""

    async def refused(self, code: str, reason: str, **options: Unpack[RunOptions]) -> None:
        """Writes into the trail what a front door turned away before it was a run (P2)."""
        request = make_request(code, options, self.settings)
        caller = options.get("caller") or NOBODY
        await self._open().refused(request, reason, caller=caller)

    async def keep(
        self,
        options: Mapping[str, object],
        *,
        paths: Mapping[str, str | os.PathLike[str]] | None = None,
        sandbox_id: str = "",
        code: str = "",
        maximum_s: float | None = None,
    ) -> Held:
        """What `Sandbox` is made of; `options` are those of `run` that describe a sandbox. `code`:
        what it is for, if that is known; environment and warm interpreter are chosen by it.
        `maximum_s`: the most time of one run, below the operator's maximum."""
        request = make_request(code, options, self.settings)
        caller = cast(Caller | None, options.get("caller")) or NOBODY
        return await self._open().keep(
            request,
            paths=paths or {},
            caller=caller,
            sandbox_id=sandbox_id,
            maximum_s=maximum_s,
        )

    async def warm(self, name: str, count: int, *, engine: str = "auto") -> None:
        """Returns when `count` sandboxes wait for an environment (or a language's environment).

        Those that nobody comes for go again after `Settings.pool_idle_s`."""
        await self._open().warm(name, count, engine=engine)

    def waiting(self) -> dict[str, dict[str, int]]:
        """How many unused sandboxes wait, by engine and environment."""
        return self._service.waiting() if self._service else {}

    def stop_building(self) -> None:
        """Ends builds of environments and packages under way; no more are begun."""
        if self._service:
            self._service.stop_building()

    async def close(self) -> None:
        """Ends everything this object started. It can not be used afterwards."""
        self._closed = True
        service, self._service = self._service, None
        if service:
            await service.close()

    def _open(self) -> Service:
        if self._closed:
            raise Closed("this Belljar is closed", hint="make a new one")
        if self._service is None:
            self._service = Service(
                self.settings,
                rules=self._rules,
                on_progress=self._on_progress,
                on_egress=self.on_egress,
            )
        return self._service
