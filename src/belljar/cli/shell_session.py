"""The sandbox behind a prompt, its branches, and the runs in them."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from belljar.cli.say import say
from belljar.cli.shell_screen import Screen
from belljar.errors import BelljarError, InvalidRequest, LimitExceeded, SandboxLost
from belljar.jar import Belljar
from belljar.kept import events
from belljar.kept.sync import Sandbox
from belljar.model import Result

MAIN = "main"
PERSON = {"max_runs": 1_000_000, "idle_s": 86_400.0, "lifetime_s": 7 * 86_400.0}
"""A person thinks longer than an agent, and does not count runs."""
PERSON_THERE = {"max_runs": 1_000_000, "idle_s": 3600.0, "lifetime_s": 86_400.0}
"""The same at a server, where the operator has the last word."""


@dataclass
class Branch:
    box: Sandbox
    codes: dict[int, str] = field(default_factory=dict)
    """What each run was, for the list of those that can be undone."""
    runs: int = 0


class Session:
    def __init__(self, jar: Belljar, options: Mapping[str, Any], screen: Screen) -> None:
        self.screen = screen
        self.current = MAIN
        self._jar = jar
        self._options = options
        self._made = 0
        self.branches = {MAIN: self._new()}

    @property
    def branch(self) -> Branch:
        return self.branches[self.current]

    @property
    def box(self) -> Sandbox:
        return self.branch.box

    def _new(self) -> Branch:
        box = Sandbox(self._jar, **self._options)
        try:
            box.open()
        except LimitExceeded as error:
            if not error.message.startswith(("idle_s", "lifetime_s")):
                raise
            # A server whose operator grants less: what it has for those who ask for no time.
            times = ("idle_s", "lifetime_s")
            options = {name: one for name, one in self._options.items() if name not in times}
            box = Sandbox(self._jar, **options)
            box.open()
        return Branch(box)

    def close(self) -> None:
        for branch in self.branches.values():
            try:
                branch.box.close()
            except BelljarError:
                pass

    # -- runs ------------------------------------------------------------------------------------

    def run(self, code: str) -> Result:
        """Shows everything while it happens. Ctrl-C interrupts the run; twice, it is killed."""
        branch = self.branch
        happening: queue.SimpleQueue[events.Event | None] = queue.SimpleQueue()
        ended: list[Result | BaseException] = []

        def work() -> None:
            try:
                ended.append(branch.box.run(code, on_event=_wanted(happening.put)))
            except BaseException as error:
                ended.append(error)
            happening.put(None)

        before = signal.signal(signal.SIGINT, _Interrupts(branch.box))
        shown_value = False
        try:
            threading.Thread(target=work, name="belljar-run", daemon=True).start()
            while event := happening.get():
                self.screen.show(event, run_id=branch.runs + 1)
                shown_value |= isinstance(event, events.Shown) and event.output.kind == "result"
        finally:
            signal.signal(signal.SIGINT, before)
            self.screen.end()
        result = ended[0]
        if isinstance(result, BaseException):
            raise result
        if result.value is not None and not shown_value:
            self.screen.text("stdout", result.value.encode() + b"\n")
            self.screen.end()
        branch.runs = result.run_id or branch.runs + 1
        branch.codes[branch.runs] = code
        return result

    # -- branches --------------------------------------------------------------------------------

    def fork(self, count: int) -> list[str]:
        """Branches of the current sandbox; the person stays where she is."""
        names = []
        for box in self.box.fork(count):
            self._made += 1
            names.append(f"b{self._made}")
            self.branches[names[-1]] = Branch(box)
        return names

    def switch(self, name: str) -> None:
        self.current = self._known(name)

    def end_branch(self, name: str) -> None:
        if self._known(name) == self.current:
            raise InvalidRequest(f"{name} is where you are", hint="%switch to another one first")
        self.branches.pop(name).box.close()

    def restart(self) -> None:
        """A new sandbox in the place of the current one."""
        self.box.close()
        self.branches[self.current] = self._new()

    def rollback(self, run_id: int | None) -> int:
        known = self.box.checkpoints()
        if run_id is None:
            if not known:
                raise SandboxLost("there is nothing to go back to", hint="%restart begins anew")
            run_id = known[-1]
        self.box.rollback(run_id)
        return run_id

    def _known(self, name: str) -> str:
        if name not in self.branches:
            raise InvalidRequest(
                f"there is no branch {name!r}", hint=f"there are: {', '.join(self.branches)}"
            )
        return name


class _Interrupts:
    """What Ctrl-C does while code runs."""

    def __init__(self, box: Sandbox) -> None:
        self._box = box
        self._count = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count == 2:
            say("killed: variables may be lost (%rollback brings earlier ones back)")
        act = self._box.interrupt if self._count == 1 else self._box.kill
        # Not here: the thread that a signal interrupts may be anywhere.
        threading.Thread(target=act, name="belljar-interrupt", daemon=True).start()


def _wanted(put: Callable[[events.Event], None]) -> Callable[[events.Event], None]:
    """Events to be shown. Progress is told when it has moved: code may report it without end."""
    last = -1.0

    def hear(event: events.Event) -> None:
        nonlocal last
        if isinstance(event, events.Progress):
            if abs(event.fraction - last) < 0.01:
                return
            last = event.fraction
        elif not isinstance(event, events.Printed | events.Shown):
            return
        put(event)

    return hear
