"""The agent: pid 1 of a sandbox. Takes one run from the host, supervises it, reports how it ended.

The first runner is forked off at once, before the agent has done anything: a fork shares memory
until one side writes, so whatever the agent touches earlier it would have to copy again.
`fork_runner` and `serve` return in the agent, and a Waiting in each runner, on a stack from which
everything of the agent has been unwound.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import signal
import socket
from collections.abc import Callable

from . import protocol, watch
from .doors import Doors
from .forking import REPORT_BYTES, Runner, Waiting, drain, fork_runner, write_all
from .outgoing import HostGone, Outgoing
from .pipes import Pipes
from .population import kill_all, newest_pid, reap_all
from .transfer import Transfer
from .wake import wake

LINGER_MS = 1
"""How long output waits for more of it before it is sent."""
_READ = 256 * 1024


class _Run:
    def __init__(self, order: dict, runner: Runner, pipes: Pipes) -> None:  # type: ignore[type-arg]
        self.order = order
        self.stages = ([order["compile"]] if order.get("compile") else []) + [order["argv"]]
        self.stage = 0
        self.runner = runner
        self.pipes = pipes
        self.watched: watch.Watched | None = None
        self.cpu_ms_before = watch.reaped_cpu_ms()

    @property
    def last_stage(self) -> bool:
        return self.stage + 1 == len(self.stages)


class _Become(BaseException):
    """Raised in the runner to unwind the agent's stack."""

    def __init__(self, runner: Waiting) -> None:
        self.runner = runner


def serve(
    stream: int,
    roots: dict[str, int],
    first: Runner,
    *,
    harden: Callable[[], None],
    rehearse: bool,
    out: int | None = None,
    watched: Callable[[int, int], watch.Watched] = watch.Watched,
    owner: tuple[int, int] | None = None,
    name_hosts: Callable[[str], None] = lambda _: None,
) -> Waiting | None:
    """Runs the agent on `stream`. `roots`: folder descriptors by name (workspace, input, output).
    `out`: where its own words go, if the stream is two pipes. `owner`: who the code is, if not we.
    `name_hosts`: changes /etc/hosts, where that is done from inside.

    `harden` is called in each further runner before it waits: what the wall adds to the code's own
    process. `rehearse`: there is time, since nobody waits for this sandbox yet.
    """
    try:
        out = stream if out is None else out
        agent = _Agent(stream, out, roots, harden, watched, owner, name_hosts)
        if rehearse:
            agent.rehearse()
        agent.loop(first)
    except HostGone:
        pass
    except _Become as become:
        return become.runner
    return None


class _Agent:
    def __init__(
        self,
        stream: int,
        out: int,
        roots: dict[str, int],
        harden: Callable[[], None],
        watched: Callable[[int, int], watch.Watched],
        owner: tuple[int, int] | None,
        name_hosts: Callable[[str], None],
    ) -> None:
        self._stream = stream
        self._outgoing = Outgoing(out)
        self._roots = roots
        self._harden = harden
        self._watched = watched
        self._reader = protocol.Reader(protocol.FROM_HOST)
        self._transfer = Transfer(roots, owner, self._outgoing)
        self._run: _Run | None = None
        self._runner: Runner | None = None
        self._poll = select.poll()
        self._doors = Doors(
            lambda data: self._outgoing.send(protocol.frame(protocol.NET, data)),
            name_hosts,
            lambda descriptor: self._poll.register(descriptor, select.POLLIN),
            self._unregister,
        )
        self._ready = False
        self._woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # pid 1 gets only the signals it handles: with these two settled, nothing the code can send
        # reaches the agent. SIGINT in particular would raise KeyboardInterrupt here.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def loop(self, first: Runner) -> None:
        self._runner = first
        self._listen(first)
        self._poll.register(first.job, select.POLLIN)
        self._poll.register(self._stream, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)
        while True:
            events = self._poll.poll(self._patience_ms())
            if not events:
                self._outgoing.flush()
            for descriptor, _ in events:
                if descriptor == self._stream:
                    self._from_host()
                elif descriptor == self._woken:
                    drain(self._woken)
                    self._reap()
                elif self._runner and descriptor == self._runner.job:
                    self._prepared(self._runner)
                elif self._run and descriptor in self._run.pipes.outputs:
                    self._forward(self._run, descriptor)
                elif descriptor == self._doors.descriptor:
                    self._doors.turn()
                elif self._run and descriptor == self._run.pipes.stdin:
                    self._feed_stdin(self._run)
            if self._run and self._run.watched:
                if self._run.watched.exceeded():
                    kill_all()
                if self._run.watched.tell():
                    used = self._used(self._run)
                    self._outgoing.send(protocol.message(protocol.USED, used))

    def _patience_ms(self) -> int | None:
        if self._outgoing.pending:
            return LINGER_MS
        return self._run.watched.due_ms() if self._run and self._run.watched else None

    def rehearse(self) -> None:
        """One whole run, but for the process that runs: what it writes to memory is no longer
        shared with the zygote afterwards, and copying those pages later would cost a third of
        the time somebody waits for a short program."""
        here, there = socket.socketpair()
        real = self._stream, self._outgoing.descriptor
        self._stream = self._outgoing.descriptor = here.fileno()
        ends = [os.pipe() for _ in range(4)]
        (_, job), (_, stdin), (stdout, said), (stderr, _) = ends
        os.write(said, b"rehearsal")
        os.set_blocking(stdout, False)
        os.set_blocking(stderr, False)
        report = mmap.mmap(-1, REPORT_BYTES + 2)
        self._runner = Runner(-1, os.dup(job), os.dup(stdin), stdout, stderr, report)
        self._runner.prepared = True
        self._listen(self._runner)
        order = {"path": "", "argv": None, "env": {"HOME": ""}, "rlimits": {}, "output_bytes": 64}
        order.update(result_files=1, result_bytes=0, compile=None, stdin_streamed=False)
        there.send(
            protocol.message(
                protocol.PUT, {"root": "workspace", "path": "rehearsal", "size": 1, "mode": 0o600}
            )
            + protocol.frame(protocol.DATA, b"x")
            + protocol.message(protocol.RUN, order)
            + protocol.frame(protocol.STDIN)
        )
        self._from_host()
        assert self._run is not None
        self._poll.poll(0)
        self._forward(self._run, stdout)
        self._run.pipes.exhaust()
        self._finished(self._run, 0)
        os.unlink("rehearsal", dir_fd=self._roots["workspace"])
        self._transfer.forget()
        self._stream, self._outgoing.descriptor = real
        for pair in ends:
            for descriptor in pair:
                os.close(descriptor)
        here.close()
        there.close()

    # -- from the host ---------------------------------------------------------------------------

    def _from_host(self) -> None:
        data = os.read(self._stream, _READ)
        if not data:
            raise HostGone
        for kind, payload in self._reader.feed(data):
            if kind == protocol.DATA:
                self._transfer.store(payload)
            elif kind == protocol.PUT:
                self._transfer.put(protocol.unpack(payload))
            elif kind == protocol.RUN:
                self._start(protocol.unpack(payload))
            elif kind == protocol.STDIN:
                self._take_stdin(payload)
            elif kind == protocol.STOP:
                kill_all()
            elif kind == protocol.NET:
                self._doors.take(payload)

    def _take_stdin(self, payload: bytes) -> None:
        if self._run is None:
            return
        self._run.pipes.take(payload)
        self._feed_stdin(self._run)

    # -- running ---------------------------------------------------------------------------------

    def _start(self, order: dict) -> None:  # type: ignore[type-arg]
        if order.get("woken"):
            wake(order["woken"])
        if order.get("doors"):
            self._open_doors(order["doors"]["hosts"])
        runner, self._runner = self._runner or self._fork(), None
        pipes = Pipes(runner, order["output_bytes"], self._poll, self._outgoing)
        run = self._run = _Run(order, runner, pipes)
        if order.get("watch_memory_bytes"):
            run.watched = self._watched(order["watch_memory_bytes"], self._roots["workspace"])
            if order.get("cpus"):
                run.watched.share(order["cpus"])
        self._launch(run)
        if order["stdin_streamed"]:
            self._feed_stdin(run)

    def _open_doors(self, hosts: str) -> None:
        try:
            self._doors.open(hosts)
        except OSError as error:
            self._outgoing.fault("network", "the network: %s" % error, "")
            raise HostGone from None

    def _launch(self, run: _Run) -> None:
        self._prepared(run.runner)
        job = {
            "argv": run.stages[run.stage],
            "path": run.order["path"],
            "env": run.order["env"],
            "rlimits": run.order["rlimits"],
            "reseed": bool(run.order.get("woken")),
        }
        write_all(run.runner.job, json.dumps(job).encode())
        os.close(run.runner.job)
        if not run.last_stage:
            run.pipes.close_stdin()

    def _prepared(self, runner: Runner) -> None:
        """Returns when the runner is walled in and waits; without that no code is started."""
        if runner.prepared:
            return
        if not os.read(runner.job, 1):
            self._outgoing.fault("runner", "the process for the code could not be prepared", "")
            raise HostGone
        runner.prepared = True
        self._unregister(runner.job)
        if not self._ready:
            self._ready = True
            self._outgoing.send(protocol.message(protocol.READY, {}))

    def _forward(self, run: _Run, descriptor: int) -> None:
        if run.pipes.forward(descriptor):
            self._leaving(run)

    def _leaving(self, run: _Run) -> None:
        """All output has ended. If the code's process announced its exit, and no other process ever
        was in here, then there is nothing to wait for: the kernel takes most of a millisecond to
        take an interpreter's memory down, and only then tells that it has gone.

        Code can announce falsely; it has then ended itself, as it could anyhow."""
        status = run.runner.leaving_status()
        if status is None or run.watched or newest_pid() != run.runner.pid:
            return
        kill_all()
        self._finished(run, status << 8)

    def _feed_stdin(self, run: _Run) -> None:
        """Before the last stage there is only the compiler, which is given nothing."""
        if run.last_stage and run.pipes.feed() and run.order["stdin_streamed"]:
            self._outgoing.send(protocol.frame(protocol.WANT))

    def _unregister(self, descriptor: int) -> None:
        try:
            self._poll.unregister(descriptor)
        except KeyError:
            pass

    def _reap(self) -> None:
        """Collects every dead child, also orphans that pid 1 inherited."""
        while True:
            try:
                pid, status, _ = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._run and pid == self._run.runner.pid:
                self._ended(self._run, status)

    def _ended(self, run: _Run, status: int) -> None:
        if run.watched:
            run.watched.last_look()
        kill_all()
        reap_all()
        run.pipes.exhaust()
        self._finished(run, status)

    def _finished(self, run: _Run, status: int) -> None:
        """Nothing of the code runs any more: reports, or goes on with the next stage."""
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        if not run.last_stage and code == 0:
            self._next_stage(run)
            return
        self._doors.close()
        dropped = run.pipes.finish()
        files_unnamed = self._transfer.send_all(
            most_files=run.order["result_files"], most_bytes=run.order["result_bytes"]
        )
        end = {
            "exit_code": code,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            "dropped": dropped,
            "files_unnamed": files_unnamed,
            "report": run.runner.last_words(),
            **self._used(run),
        }
        self._run = None
        self._outgoing.send(protocol.message(protocol.END, end))

    def _used(self, run: _Run) -> dict:  # type: ignore[type-arg]
        reaped_ms = watch.reaped_cpu_ms() - run.cpu_ms_before
        return {
            "watched": run.watched.summary() if run.watched else None,
            "cpu_ms": run.watched.cpu_ms(reaped_ms) if run.watched else reaped_ms,
        }

    def _next_stage(self, run: _Run) -> None:
        """The compiler is done: the program runs in a new process with the same streams kept."""
        runner = self._fork()
        self._listen(runner)
        run.pipes.move(runner)
        run.runner = runner
        run.stage += 1
        self._launch(run)
        self._feed_stdin(run)

    # -- processes -------------------------------------------------------------------------------

    def _fork(self) -> Runner:
        """A runner from behind the walls."""
        runner = fork_runner(lambda _: self._harden())
        if isinstance(runner, Waiting):
            raise _Become(runner)
        return runner

    def _listen(self, runner: Runner) -> None:
        self._poll.register(runner.stdout, select.POLLIN)
        self._poll.register(runner.stderr, select.POLLIN)
