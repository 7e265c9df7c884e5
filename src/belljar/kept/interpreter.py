"""What holds the variables of a kept sandbox: its runs, and the states that it can go back to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from belljar.errors import InvalidRequest, SandboxEnded, SandboxLost
from belljar.holding import Held
from belljar.kept import events, telling
from belljar.kept.run import Run
from belljar.model import Request, Result
from belljar.trail.entry import Entry


class Interpreter:
    """One run at a time: whoever calls has its turn."""

    def __init__(self) -> None:
        self.runs = 0
        """How many there were."""
        self.used_before_ms = 0.0
        """CPU time up to the latest run's start, also that of programs beside the runs."""
        self.now: Run | None = None
        """The one that is under way."""
        self.checkpoints: tuple[int, ...] = ()
        """The runs that can be undone, oldest first."""
        self._lost = ""
        """Why the state is gone, if so."""

    def check(self) -> None:
        """SandboxLost if the state is gone."""
        if self._lost:
            raise SandboxLost(
                f"the state of this sandbox is lost: {self._lost}",
                hint="rollback() to a checkpoint, or restart()"
                if self.checkpoints
                else "restart() begins anew",
            )

    # -- runs ------------------------------------------------------------------------------------

    def checked(
        self,
        held: Held,
        code: str,
        timeout_s: float | None,
        stdin: str | bytes,
        *,
        max_runs: int,
    ) -> Request:
        """One run as it may be; whatever can be refused is, before it is written down."""
        if self.runs >= max_runs:
            raise SandboxEnded(
                f"this sandbox has done its {max_runs} runs",
                hint="make a new one, or allow more with max_runs",
            )
        return held.check(code, timeout_s, stdin)

    def begin(
        self,
        held: Held,
        request: Request,
        on_event: Callable[[events.Event], None] | None,
        entry: Entry,
    ) -> Run:
        """To be followed by `done`."""
        wall = held.conversation.wall
        if seen := wall.look():
            self.used_before_ms += seen.usage.cpu_ms
        wall.settle()  # before the question is on its way: the code may be faster than we are
        self.runs += 1
        started = Run(
            held.conversation,
            run_id=self.runs,
            limits=request.limits,
            maximum_s=held.maximum_s,
            result=lambda told: self._result(held, told),
        )
        held.begins(entry)
        started.on_event = on_event
        try:
            started.start(request.code, stdin=request.stdin)
        except BaseException:
            held.done(entry)
            raise
        self.now = started
        return started

    def done(self, held: Held, entry: Entry) -> None:
        self.now = None
        held.done(entry)

    def _result(self, held: Held, told: Mapping[str, Any]) -> Result:
        result = telling.make_result(held, told, run_id=self.runs)
        if not result.state_kept:
            self._lost = {
                "out_of_memory": "its memory ran out and the kernel ended it",
                "timeout": "it did not react to the time-out and was ended",
            }.get(result.status, "the code ended it")
        known = told.get("checkpoints")
        if isinstance(known, list):
            done = (telling.whole(item) for item in known)
            self.checkpoints = tuple(one for one in done if one <= self.runs)
        return result

    # -- going back ------------------------------------------------------------------------------

    def check_rollback(self, held: Held, run_id: int) -> None:
        held.check_copies()
        if run_id not in self.checkpoints:
            raise InvalidRequest(
                f"rollback: there is no checkpoint before run {str(run_id)[:40]}",
                hint="checkpoints() lists the runs that can be undone",
            )

    async def rollback(self, held: Held, run_id: int) -> None:
        told = await held.ask("rollback", run=run_id, next_run=self.runs + 1)
        self._lost = ""
        known = told.get("checkpoints")
        self.checkpoints = tuple(map(telling.whole, known)) if isinstance(known, list) else ()

    async def restart(self, held: Held) -> None:
        await held.ask("restart", next_run=self.runs + 1)
        self._lost = ""
        self.checkpoints = ()
