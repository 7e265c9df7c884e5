"""A kept sandbox as the service hands it out: the conversation with it, and what it may do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from belljar.conversation import Conversation
from belljar.engines.base import Branch, Engine, Ground
from belljar.errors import Unsupported
from belljar.model import Request

Check = Callable[[Request], Request]


@dataclass(frozen=True, kw_only=True)
class Held:
    conversation: Conversation
    engine: Engine
    ground: Ground
    request: Request
    """What was asked for, without code."""
    env: Mapping[str, str]
    reason: str
    warnings: tuple[str, ...]
    maximum_s: float
    decide: Check
    """Policy's word about one run."""

    def check(self, code: str, timeout_s: float | None, stdin: str | bytes) -> Request:
        """One run as policy allows it."""
        limits = self.request.limits
        if timeout_s is not None:
            limits = dataclasses.replace(limits, timeout_s=timeout_s)
        given = stdin.encode() if isinstance(stdin, str) else stdin
        return self.decide(
            dataclasses.replace(
                self.request, code=code, limits=limits, stdin=given, files={}, inputs={}
            )
        )

    async def branch(self) -> tuple[Held, Branch]:
        """A wall for a copy of this sandbox, and how the copy gets there."""
        make = getattr(self.engine, "branch", None)
        if make is None or not self.engine.capabilities.branches:
            raise Unsupported(
                f"the engine {self.engine.name!r} cannot branch a sandbox",
                hint="the jail can",
            )
        branch: Branch = await make(self.conversation.wall, self.request.limits)
        other = dataclasses.replace(self, conversation=Conversation(branch.wall))
        return other, branch

    async def release(self) -> None:
        await self.conversation.destroy()
