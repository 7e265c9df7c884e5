"""The runs of a kept sandbox: one cell after the other, in the process that holds the state."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import news, protocol
from .files import Refused
from .forking import Runner
from .hostlink import HostGone
from .lines import Broken, Crowded, Lines
from .processes import Feed, send_signal
from .spool import Spool
from .states import State

if TYPE_CHECKING:
    from .keeper import Keeper

_READ = 256 * 1024
_MOST_READS = 16
"""Of a stream when its run has ended: more than a pipe holds, but not for ever, where a process in
the background goes on printing."""
_NO_TEXTS: Mapping[int, bytes] = {}
_EVENTS, _EVENTS_PER_S = 1000, 100
"""What a run may tell beside its output; the host hears each one, and has others to listen to."""


class _Cell:
    """A run under way."""

    def __init__(self, ask: int, run: int, output_bytes: int, stdin: Feed) -> None:
        self.ask = ask
        self.run = run
        self.spools = {1: Spool(output_bytes), 2: Spool(output_bytes)}
        self.stdin = stdin
        self.content_left = news.MOST_CONTENT_BYTES
        self.unheard = 0
        self._told = 0
        self._began = time.monotonic()

    def may_tell(self) -> bool:
        if self._told < _EVENTS + _EVENTS_PER_S * (time.monotonic() - self._began):
            self._told += 1
            return True
        self.unheard += 1
        return False


class Runs:
    def __init__(self, keeper: Keeper, first: Runner | None) -> None:
        self._keeper = keeper
        self._first = first
        self._cell: _Cell | None = None
        self._early = {1: bytearray(), 2: bytearray()}
        """What was written while no run was under way: the next one's."""
        self.state: State | None = None
        self._how = ""
        """How the last one ended, if anyone knows."""

    # -- the process -----------------------------------------------------------------------------

    def expect_first(self) -> None:
        """The host hears that we are ready when the interpreter that was forked ahead is."""
        if self._first:
            self._keeper.listen(self._first.job, self._first_prepared)
        else:
            self._keeper.host.ready()

    def _first_prepared(self) -> None:
        assert self._first is not None
        first, self._first = self._first, None
        self._keeper.ignore(first.job)
        self._take(first)
        self._keeper.host.ready()

    def _take(self, runner: Runner) -> None:
        if not os.read(runner.job, 1):
            self._keeper.host.fault("runner", "the interpreter could not start")
            raise HostGone
        os.close(runner.stdin)
        self.attend(State(runner.pid, Lines(runner.job), runner.stdout, runner.stderr))

    def attend(self, state: State) -> None:
        """From now on runs are done by this one."""
        self.state = state
        self._keeper.listen(state.lines.descriptor, self._from_interpreter)
        self._listen_stream(state.stdout, 1)
        self._listen_stream(state.stderr, 2)

    def _listen_stream(self, descriptor: int, stream: int) -> None:
        def readable() -> None:
            self._printed(descriptor, stream)

        self._keeper.listen(descriptor, readable)

    def abandon(self) -> None:
        """The current process, if there is one, ends unheard."""
        if self.state:
            old, self.state = self.state, None
            for descriptor in (old.lines.descriptor, old.stdout, old.stderr):
                self._keeper.ignore(descriptor)
            send_signal(old.pid, signal.SIGKILL, group=True)
            old.lines.close()

    def tell(self, content: dict, descriptors: tuple[int, ...] = ()) -> None:  # type: ignore[type-arg]
        if self._first:
            self._first_prepared()
        if self.state is None:
            raise Refused("lost", "the interpreter has ended%s and its state with it" % self._how)
        try:
            try:
                self.state.lines.send(content, descriptors)
            except Crowded:  # a run without input is better than none
                self.state.lines.send(content)
        except Broken as broken:
            raise Refused("lost", "the interpreter does not answer: %s" % broken) from None

    # -- a run -----------------------------------------------------------------------------------

    @property
    def under_way(self) -> bool:
        return self._cell is not None

    def used(self, told: dict[str, Any] | None) -> None:
        """What the run under way has used so far."""
        if self._cell and told:
            self._keeper.event(self._cell.ask, used=told)

    def none_under_way(self) -> None:
        if self._cell:
            raise Refused("busy", "a run is under way")

    def ask_run(self, ask: dict) -> None:  # type: ignore[type-arg]
        self.none_under_way()
        if self.state is None:
            raise Refused("lost", "the interpreter has ended%s and its state with it" % self._how)
        self._keeper.checkpoints.before(ask["run"])
        self._keeper.meter.begin()
        stdin, ours = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(ours, False)
        order = {"code": ask["code"], "name": ask["name"], "run": ask["run"]}
        cell = _Cell(
            ask["id"], ask["run"], ask["output_bytes"], Feed(self._keeper, ours, ask["id"])
        )
        try:
            self.tell({"cell": order}, (stdin,))
        except Refused:
            cell.stdin.close()
            raise
        finally:
            os.close(stdin)
        self._cell = cell
        if not ask["stdin"]:
            cell.stdin.take(b"")
        for stream, early in self._early.items():
            if early:
                self._keeper.put_out(cell.ask, stream, cell.spools[stream].feed(bytes(early)))
                early.clear()

    def input(self, channel: int, data: bytes) -> bool:
        """False when the channel is not that of the run under way."""
        if self._cell is None or self._cell.ask != channel:
            return False
        self._cell.stdin.take(data)
        return True

    def _from_interpreter(self) -> None:
        assert self.state is not None
        try:
            for line in self.state.lines.fill(wait=False):
                self._heard(line)
        except (Broken, KeyError, OSError, TypeError, ValueError, OverflowError):
            # It has died, or the code speaks in its place: either way its word is worth nothing.
            self._kill()

    def _heard(self, line: dict) -> None:  # type: ignore[type-arg]
        assert self.state is not None
        if "checkpoint" in line:
            (control,) = self.state.lines.take(1)
            self._keeper.checkpoints.keep(int(line["checkpoint"]), control, self.state)
        elif "done" in line:
            # A second end of one run was forged, or the first was: it must not end another run.
            if self._cell is None or line.get("run", self._cell.run) != self._cell.run:
                raise Broken("the end of a run that is not under way")
            if not isinstance(line["done"], dict):
                raise Broken("an end that tells nothing")
            self._finish(*news.ending(line["done"]))
        elif self._cell and self._cell.may_tell():
            self._tell(self._cell, line)

    def _tell(self, cell: _Cell, line: dict) -> None:  # type: ignore[type-arg]
        ask = cell.ask
        if "output" in line:
            found = news.shown(line["output"], cell.content_left)
            if found is None:  # that there was one is still told
                self._keeper.event(ask, output=None)
                return
            head, content = found
            cell.content_left -= len(content)
            self._keeper.event(ask, output=head)
            self._keeper.put_out(ask, protocol.Stream.SHOWN, content)
        elif "progress" in line:
            self._keeper.event(ask, progress=news.progress(line["progress"]))
        elif "extend" in line:
            self._keeper.event(ask, extend=news.extension(line["extend"]))

    def _printed(self, descriptor: int, stream: int) -> bool:
        """One read of what the interpreter wrote; False when there was nothing."""
        try:
            data = os.read(descriptor, _READ)
        except BlockingIOError:
            return False
        if not data:
            self._keeper.ignore(descriptor)
            return False
        if self._cell:
            head = self._cell.spools[stream].feed(data)
            if head:
                self._keeper.put_out(self._cell.ask, stream, head)
        else:
            early = self._early[stream]
            early += data[: max(0, protocol.CHUNK - len(early))]
        return True

    def _finish(self, ended: dict[str, Any], texts: Mapping[int, bytes] = _NO_TEXTS) -> None:
        """The cell is done: what it wrote is in the pipes already. `texts`: by their streams."""
        cell = self._cell
        assert cell is not None
        if self.state:
            for stream, descriptor in ((1, self.state.stdout), (2, self.state.stderr)):
                for _ in range(_MOST_READS):
                    if not self._printed(descriptor, stream):
                        break
        self._cell = None
        cell.stdin.close()
        dropped = {}
        for stream, spool in cell.spools.items():
            tail, dropped[str(stream)] = spool.finish()
            if tail:
                self._keeper.event(cell.ask, tail=stream)
                self._keeper.put_out(cell.ask, stream, tail)
        for stream, text in texts.items():
            self._keeper.put_out(cell.ask, stream, text)
        ended["dropped"] = dropped
        ended["unheard"] = cell.unheard
        ended["checkpoints"] = self._keeper.checkpoints.known()
        ended["used"] = self._keeper.meter.summary()
        self._keeper.host.answer(cell.ask, ok=ended)
        if self.state and not ended.get("lost"):
            try:
                self._keeper.checkpoints.leave(cell.run + 1)
            except Refused:
                pass  # it is gone; its end is reported as such

    # -- early ends ------------------------------------------------------------------------------

    def ask_interrupt(self, ask: dict) -> dict:  # type: ignore[type-arg]
        if self._cell and self.state:
            send_signal(self.state.pid, signal.SIGINT, group=True)
        return {}

    def ask_kill(self, ask: dict) -> dict:  # type: ignore[type-arg]
        self._kill()
        return {}

    def ask_restart(self, ask: dict) -> dict:  # type: ignore[type-arg]
        old = self.state
        self.abandon()
        self._keeper.checkpoints.drop_all()
        for descriptor in (old.stdout, old.stderr) if old else ():
            os.close(descriptor)
        for early in self._early.values():
            early.clear()
        self._take(self._keeper.fork(interpreter=True))
        self.tell({"set_up": self._keeper.set_up})
        self._keeper.checkpoints.leave(ask["next_run"])
        return {}

    def _kill(self) -> None:
        """Its end is reported when the kernel tells it."""
        if self.state:
            self._keeper.ignore(self.state.lines.descriptor)
            send_signal(self.state.pid, signal.SIGKILL, group=True)

    def ended(self, status: int | None) -> None:
        """The process that holds the state is no more. `status`: how it ended, if anyone knows."""
        state = self.state
        if state is None:
            return
        try:
            while lines := state.lines.fill(wait=False):
                for line in lines:  # a checkpoint that it left last
                    self._heard(line)
        except (Broken, KeyError, OSError, TypeError, ValueError, OverflowError):
            pass
        ended: dict[str, Any] = {"lost": True, "status": "gone", "signal": int(signal.SIGKILL)}
        if status is not None:
            ended["exit_code"] = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
            ended["signal"] = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
            self._how = " (exit code %s, signal %s)" % (ended["exit_code"], ended["signal"])
        if self._cell:
            self._finish(ended)
        else:
            self._keeper.event(0, **ended)
        for descriptor in (state.stdout, state.stderr):
            self._keeper.ignore(descriptor)
        self._keeper.ignore(state.lines.descriptor)
        state.lines.close()
        self.state = None
