"""Pid 1 of a sandbox that is kept: it holds an interpreter, runs commands, reads and writes files.

The host asks (ASK) and is answered once (ANSWER), at the end of what takes long:
    set_up      {env, rlimits, folder, package_path, woken, checkpoints, watch_memory_bytes, cpus,
                driver: {argv, script, cells} of a language other than Python}
    run         {code, name, run, output_bytes, stdin}; its channel has the standard streams
    interrupt   KeyboardInterrupt in the run, or SIGINT for a program
    kill        ends the interpreter; its state is lost
    restart     a new interpreter without state
    rollback    {run}: back to the checkpoint before that run, variables and files
    fork        {run}: descriptors of a new sandbox come along; a copy of the state moves there
    adopt       the other side of a fork: files, then the copy of the interpreter; settle
    start       {argv, env, folder, terminal, output_bytes}: a process; answered when it has
                started, its end is an EVENT
    signal      {channel, number}, resize {channel, rows, columns}
    empty       ends everything here: only the walls stay, for branches that live inside
    place       a file of /data/input, then placed
    install     {package_path}: folders with packages that are there from now on
    open_doors  {hosts}: a network from now on, and what /etc/hosts is to say; name_hosts {hosts}
    and the questions about files, which are in files.py
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from typing import Any

from . import protocol
from .branches import Branches
from .checkpoints import Checkpoints
from .doors import Doors
from .files import Files, Refused
from .forking import Runner, Waiting, drain, fork_runner
from .found import Found, make_known
from .hostlink import HostLink
from .inputs import Inputs
from .meter import Meter
from .processes import Processes
from .runs import Runs
from .snapshots import Snapshots
from .wake import wake
from .watch import Watched

LINGER_MS = 1


class Become(BaseException):
    """Raised in a new process to unwind the keeper's stack."""

    def __init__(self, waiting: Waiting, *, interpreter: bool) -> None:
        self.waiting = waiting
        self.interpreter = interpreter


class Keeper:
    """The loop, and where each question goes: to the part that has a method `ask_…` for it."""

    def __init__(
        self,
        stream: int,
        out: int,
        roots: dict[str, int],
        first: Runner | None,
        harden: Callable[[], None],
        *,
        watched: Callable[[int, int], Watched] | None = None,
        name_hosts: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`watched`: how memory is watched from in here, where it has to be. `name_hosts`: changes
        /etc/hosts, where that is done from inside."""
        self.host = HostLink(stream, out)
        self.event = self.host.event
        self.put_out = self.host.put_out
        self._harden = harden
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self.set_up: dict[str, Any] = {}
        self._snapshots = Snapshots(roots)
        self.runs = Runs(self, first)
        self.checkpoints = Checkpoints(self, self._snapshots)
        self.branches = Branches(self, self._snapshots, roots.get("store", -1))
        self._processes = Processes(self)
        self.meter = Meter(self, watched, roots["workspace"])
        self._inputs = Inputs(roots["input"])
        self.found = Found(self)
        self._doors = Doors(
            lambda data: self.host.send(protocol.frame(protocol.NET, data)),
            name_hosts,
            lambda descriptor: self.listen(descriptor, self._doors.turn),
            self.ignore,
        )
        self._files = Files({**roots, "input": roots.get("input_seen", roots["input"])})
        self._parts = (
            self,
            self.runs,
            self.checkpoints,
            self.branches,
            self._processes,
            self._inputs,
            self.found,
            self._doors,
        )
        self._woken, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

    def loop(self) -> None:
        self.listen(self.host.descriptor, self._from_host)
        self.listen(self._woken, self.reap)
        self.runs.expect_first()
        while True:
            events = self._poll.poll(LINGER_MS if self.host.pending else self.meter.due_ms())
            if not events and self.host.pending:
                self.host.send()
            for descriptor, _ in events:
                handler = self._handlers.get(descriptor)
                if handler:
                    handler()
            self.meter.look()

    @property
    def busy(self) -> bool:
        """Something runs that the host asked for."""
        return self.runs.under_way or self._processes.any

    def listen(self, descriptor: int, handler: Callable[[], None], events: int = 0) -> None:
        self._handlers[descriptor] = handler
        self._poll.register(descriptor, events or select.POLLIN)

    def ignore(self, descriptor: int) -> None:
        if self._handlers.pop(descriptor, None):
            self._poll.unregister(descriptor)

    # -- the host --------------------------------------------------------------------------------

    def _from_host(self) -> None:
        for kind, payload in self.host.frames():
            if kind == protocol.ASK:
                self._asked(protocol.unpack(payload))
            elif kind == protocol.TO:
                (channel,) = protocol.CHANNEL.unpack_from(payload)
                self._input(channel, payload[protocol.CHANNEL.size :])
            elif kind == protocol.NET:
                self._doors.take(payload)

    def _asked(self, ask: dict) -> None:  # type: ignore[type-arg]
        ask_id = ask["id"]
        try:
            answer = self._handle(ask)
        except Refused as refusal:
            self.host.answer(ask_id, error={"kind": refusal.kind, "message": str(refusal)})
        except OSError as error:
            message = error.strerror or str(error)
            self.host.answer(ask_id, error={"kind": "os", "message": message, "errno": error.errno})
        else:
            if answer is not None:
                self.host.answer(ask_id, ok=answer)

    def _handle(self, ask: dict) -> dict | None:  # type: ignore[type-arg]
        for part in self._parts:
            handler = getattr(part, "ask_" + ask["op"], None)
            if handler:
                return handler(ask)  # type: ignore[no-any-return]
        return self._files.ask(ask, self.put_out)

    def _input(self, channel: int, data: bytes) -> None:
        for part in (self.runs.input, self._inputs.content, self._processes.input):
            if part(channel, data):
                return
        self._files.content(channel, data)

    def ask_set_up(self, ask: dict) -> dict:  # type: ignore[type-arg]
        if ask["woken"]:
            wake(ask["woken"])
        self.set_up = {
            "env": ask["env"],
            "rlimits": ask["rlimits"],
            "folder": ask["folder"],
            "package_path": ask["package_path"],
            "reseed": bool(ask["woken"]),
            "driver": ask["driver"],
        }
        make_known(self.set_up["env"], self.set_up["package_path"])
        self.checkpoints.most = ask["checkpoints"]
        self.meter.set_up(ask)
        self.runs.tell({"set_up": self.set_up})
        self.checkpoints.leave(1)
        return {"files": self._snapshots.possible}

    # -- processes -------------------------------------------------------------------------------

    def fork(self, *, interpreter: bool = False, terminal: bool = False) -> Runner:
        runner = fork_runner(lambda _: self._harden(), terminal=terminal)
        if isinstance(runner, Waiting):
            raise Become(runner, interpreter=interpreter)
        return runner

    def reap(self) -> None:
        """Collects every dead child, also orphans that pid 1 inherited."""
        drain(self._woken)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self.runs.state and pid == self.runs.state.pid:
                self.runs.ended(status)
            self._processes.ended(pid, status)
