"""A kept sandbox as the service hands it out: the conversation with it, and what it may do."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from belljar.conversation import Conversation, Refusal
from belljar.engines.base import (
    Branch,
    BranchingEngine,
    CannotMount,
    Engine,
    Ground,
    MountingEngine,
)
from belljar.errors import (
    Busy,
    EngineUnavailable,
    InvalidRequest,
    LimitExceeded,
    NetworkUnavailable,
    SandboxLost,
    Unsupported,
)
from belljar.model import Request, Result
from belljar.trail.entry import Entry, Recorder

if TYPE_CHECKING:
    from belljar.inputs import Source
    from belljar.networking import Outlet
    from belljar.packages import Packages
    from belljar.policy.decide import Decision

Check = Callable[[Request], Request]


@dataclass(frozen=True, kw_only=True)
class Held:
    conversation: Conversation
    engine: Engine
    ground: Ground
    request: Request
    """What was asked for; each run brings its own code."""
    env: Mapping[str, str]
    driver: Mapping[str, Any] | None
    """What holds the state; None: the Python interpreter."""
    reason: str
    warnings: tuple[str, ...]
    maximum_s: float
    """The most time of one run, whatever it is given and extended by."""
    decide: Check
    """Policy's word about one run."""
    packages: Packages
    outlet: Outlet | None = None
    """Its way to the network."""
    copied: tuple[Source, ...] = ()
    """Inputs that could not be mounted."""
    recorder: Recorder | None = None
    life: Entry = field(default_factory=Entry)
    """What the trail says of the sandbox itself."""

    def check(self, code: str, timeout_s: float | None, stdin: str | bytes) -> Request:
        """One run as policy allows it."""
        request = self.decide(self._asked(code, timeout_s, stdin))
        if (asked_s := request.limits.timeout_s) > self.maximum_s:
            raise LimitExceeded(
                f"limits.timeout_s: {asked_s:g} is above this sandbox's maximum of "
                f"{self.maximum_s:g}"
            )
        return request

    async def entry(
        self,
        action: str,
        *,
        code: str = "",
        timeout_s: float | None = None,
        stdin: str | bytes = b"",
        network: Any = (),
        **more: Any,
    ) -> Entry:
        """One attempt, for the trail."""
        if self.recorder is None or not self.recorder.on:
            return Entry()
        asked = dataclasses.replace(self._asked(code, timeout_s, stdin), network=network)
        return await self.recorder.entry(action, asked, **more)

    def _asked(self, code: str, timeout_s: float | None, stdin: str | bytes) -> Request:
        limits = self.request.limits
        if timeout_s is not None:
            limits = dataclasses.replace(limits, timeout_s=timeout_s)
        given = stdin.encode() if isinstance(stdin, str) else stdin
        return dataclasses.replace(
            self.request,
            code=code,
            limits=limits,
            stdin=given,
            files={},
            inputs={},
            network=(),
            secrets={},
        )

    def check_copies(self) -> None:
        """A Python interpreter can be copied while it holds state; other programs cannot."""
        if self.driver:
            raise Unsupported(
                f"checkpoints, rollback and fork are for Python, not for {self.request.language}",
                hint="restart() begins anew",
            )

    async def branch(self, sandbox_id: str) -> tuple[Held, Branch]:
        """A wall for a copy of this sandbox, and how the copy gets there."""
        if self.recorder is None or not self.recorder.on:
            return await self._branch(Entry())
        recorder = self.recorder.of(sandbox_id)
        life = await recorder.entry("fork", self.request, parent=self.recorder.sandbox)
        try:
            other, branch = await self._branch(life)
        except BaseException as error:
            await life.fail(error)
            raise
        if self.outlet:
            self.outlet.belongs(life)
        return dataclasses.replace(other, recorder=recorder, life=life), branch

    async def _branch(self, life: Entry) -> tuple[Held, Branch]:
        if not self.engine.capabilities.branches:
            raise Unsupported(
                f"the engine {self.engine.name!r} cannot branch a sandbox",
                hint="the jail can",
            )
        await life.written()
        engine = cast(BranchingEngine, self.engine)
        branch = await engine.branch(self.conversation.wall, self.request.limits)
        if self.outlet:
            self.outlet.share()
        other = dataclasses.replace(
            self, conversation=Conversation(branch.wall), packages=self.packages.for_branch()
        )
        if self.outlet:
            self.outlet.lives(self.engine, other.conversation)
        return other, branch

    async def admit(self, pid: int) -> None:
        """A copy has moved in: its limits hold from here on."""
        if pid < 2:
            raise SandboxLost("the branch does not say which process moved in")
        await cast(BranchingEngine, self.engine).admit(self.conversation.wall, pid)

    async def empty(self, *, within_s: float) -> bool:
        """Ends everything in here but branches; False if something may be left. The host, where it
        counts processes, keeps code from forking on, and from hiding; the agent gives up its
        checkpoints."""
        ended = await cast(BranchingEngine, self.engine).empty(self.conversation.wall)
        told: dict[str, Any] = {}
        with contextlib.suppress(SandboxLost, Refusal):
            told = await self.conversation.ask("empty", within_s=within_s)
        return told.get("left") == 0 if ended is None else ended

    def check_packages(self, given: object) -> None:
        """Whether it may have these; building them may still fail."""
        mounting(self.engine, self.request)
        self.packages.wanted(given)

    async def install(self, given: object) -> bool:
        """Mounts packages; whether there was anything to mount."""
        engine = mounting(self.engine, self.request)
        mount = await self.packages.add(given)
        if mount is None:
            return False
        try:
            await engine.attach(self.conversation.wall, mount)
        except BaseException as error:
            self.packages.drop_latest()
            if isinstance(error, CannotMount):
                raise unmountable(error) from error
            raise
        return True

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """The agent's answer; what it refuses is raised in the caller's words."""
        try:
            return await self.conversation.ask(op, **fields)
        except Refusal as refusal:
            if refusal.kind == "lost":
                raise SandboxLost(f"the state of this sandbox is lost: {refusal}") from None
            if refusal.kind == "busy":
                raise Busy(str(refusal)) from None
            raise InvalidRequest(f"{op}: {refusal}") from None

    async def connected(self) -> None:
        """Its way to the network is there, if it has one."""
        if self.outlet:
            await self.outlet.revive(self.engine, self.conversation)

    def begins(self, entry: Entry) -> None:
        """A run or a program, to be followed by `done`: what is tried from now on may be its."""
        if self.outlet:
            self.outlet.watch(entry.id)

    async def told(self, entry: Entry, result: Result) -> Result:
        """The result as it may be told: with what was tried over the network, and in the trail."""
        if self.outlet:
            self.outlet.look(self.engine, self.conversation.wall)
            result = await self.outlet.told(entry.id, result)
        return await entry.end(result)

    def done(self, entry: Entry) -> None:
        if self.outlet:
            self.outlet.unwatch(entry.id)

    def check_network(self, asked: object) -> Outlet:
        """Whether it may have these rules; only one that was made with some may have others."""
        if self.outlet is None:
            raise Unsupported(
                "network: this sandbox was made without one", hint="make it with network=Allow(…)"
            )
        self.outlet.check(asked)
        return self.outlet

    async def set_network(self, asked: object) -> None:
        outlet = self.check_network(asked)
        # Rules can be taken back whether or not the sandbox can reach its gateway.
        with contextlib.suppress(NetworkUnavailable):
            await self.connected()
        await outlet.change(asked, self.engine, self.conversation)

    async def release(self) -> None:
        """All of it, whatever a part of it does: a network that stayed would keep its secrets."""
        try:
            if self.outlet:
                self.outlet.look(self.engine, self.conversation.wall)
        finally:
            try:
                await self.conversation.destroy()
            finally:
                self.packages.close()
                if self.outlet:
                    await self.outlet.leave()


def check_keepable(decision: Decision) -> None:
    """What a kept sandbox would leave out is refused: a control is never dropped silently."""
    for asked, what in (
        (decision.filter != "off", "the static filter does not read the runs of a kept sandbox"),
        (decision.request.language_level != "full", "restricted Python cannot be kept"),
        (decision.request.fresh_exec, "a kept sandbox is a fork of the warm interpreter"),
    ):
        if asked:
            raise Unsupported(what, hint="belljar.run() has it, a new sandbox for each run")


def mounting(engine: Engine, request: Request) -> MountingEngine:
    """The engine as one that packages can be mounted by; else Unsupported."""
    if request.language != "python":
        raise Unsupported(
            f"packages: there are none for {request.language}", hint="they are for Python"
        )
    if not engine.capabilities.mounts:
        raise Unsupported(
            f"packages: the engine {engine.name!r} cannot mount them", hint="the jail can"
        )
    return cast(MountingEngine, engine)


def unmountable(error: CannotMount) -> EngineUnavailable:
    return EngineUnavailable(
        f"packages cannot be mounted on this machine: {error.why}",
        hint="mounts of their own for sandboxes need Linux 5.12 or newer",
    )
