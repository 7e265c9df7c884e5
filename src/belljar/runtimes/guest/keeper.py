"""Pid 1 of a sandbox that is kept: it holds an interpreter, runs commands, reads and writes files.

The host asks (ASK) and is answered once (ANSWER), at the end of what takes long:
    set_up      {env, rlimits, folder, package_path, woken, checkpoints}
    run         {code, name, run, output_bytes}; its channel has the standard streams
    interrupt   KeyboardInterrupt in the run, or SIGINT for a program
    kill        ends the interpreter; its state is lost
    restart     a new interpreter without state
    rollback    {run}: back to the checkpoint before that run, variables and files
    fork        {run}: descriptors of a new sandbox come along; a copy of the state moves there
    adopt       the other side of a fork: files, then the copy of the interpreter
    start       {argv, env, folder, terminal, output_bytes}: a process; answered when it has
                started, its end is an EVENT
    signal      {channel, number}, resize {channel, rows, columns}, processes
    and the questions about files, which are in files.py
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
from collections.abc import Callable
from typing import Any

from . import places, protocol
from .files import Files, Refused
from .forking import Runner, Waiting, drain, fork_runner, write_all
from .lines import Broken, Lines
from .processes import Feed, Processes, send_signal
from .snapshots import Snapshots
from .spool import Spool
from .wake import wake

LINGER_MS = 1
FAMILY_S = 10.0
"""How long the two keepers of a fork wait for each other."""
_READ = 256 * 1024
_NAMESPACES = ("user", "mnt", "ipc", "uts", "cgroup", "pid")


class Become(BaseException):
    """Raised in a new process to unwind the keeper's stack."""

    def __init__(self, waiting: Waiting, *, interpreter: bool) -> None:
        self.waiting = waiting
        self.interpreter = interpreter


class HostGone(Exception):
    pass


class _Interpreter:
    """The process that holds the state, or a checkpoint of it."""

    def __init__(self, pid: int, lines: Lines, stdout: int, stderr: int) -> None:
        self.pid = pid
        self.lines = lines
        self.stdout = stdout
        self.stderr = stderr


class _Cell:
    """A run under way."""

    def __init__(self, ask: int, run: int, output_bytes: int, stdin: Feed) -> None:
        self.ask = ask
        self.run = run
        self.spools = {1: Spool(output_bytes), 2: Spool(output_bytes)}
        self.stdin = stdin


class Keeper:
    def __init__(
        self,
        stream: int,
        out: int,
        roots: dict[str, int],
        first: Runner | None,
        harden: Callable[[], None],
    ) -> None:
        self._stream = _Stream(stream)
        self._out = out
        self._roots = roots
        self._harden = harden
        self._reader = protocol.Reader(protocol.KEPT_FROM_HOST)
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._pending = b""
        self._first = first
        self._interpreter: _Interpreter | None = None
        self._cell: _Cell | None = None
        self._early = {1: bytearray(), 2: bytearray()}
        """What was written while no run was under way: the next one's."""
        self.set_up: dict[str, Any] = {}
        self._checkpoints: dict[int, _Interpreter] = {}
        self._processes = Processes(self)
        self._most_checkpoints = 0
        self._unwanted = -1
        """The run whose files found no room, and which there is no way back to."""
        self._family = -1
        self._placing: dict[int, int] = {}
        self._misplaced: dict[int, OSError] = {}
        self._snapshots = Snapshots(roots)
        self._files = Files(roots)
        self._woken, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

    def loop(self) -> None:
        self.listen(self._stream.descriptor, self._from_host)
        self.listen(self._woken, self._reap)
        if self._first:
            self.listen(self._first.job, self._first_prepared)
        else:
            self._send(protocol.message(protocol.READY, {}))
        while True:
            events = self._poll.poll(LINGER_MS if self._pending else None)
            if not events:
                self._send(b"")
            for descriptor, _ in events:
                handler = self._handlers.get(descriptor)
                if handler:
                    handler()

    def listen(self, descriptor: int, handler: Callable[[], None], events: int = 0) -> None:
        self._handlers[descriptor] = handler
        self._poll.register(descriptor, events or select.POLLIN)

    def ignore(self, descriptor: int) -> None:
        if self._handlers.pop(descriptor, None):
            self._poll.unregister(descriptor)

    # -- the host --------------------------------------------------------------------------------

    def _from_host(self) -> None:
        data = self._stream.read()
        if not data:
            raise HostGone
        for kind, payload in self._reader.feed(data):
            if kind == protocol.ASK:
                self._asked(protocol.unpack(payload))
            elif kind == protocol.TO:
                (channel,) = protocol.CHANNEL.unpack_from(payload)
                self._input(channel, payload[protocol.CHANNEL.size :])

    def _asked(self, ask: dict) -> None:  # type: ignore[type-arg]
        ask_id = ask["id"]
        try:
            answer = self._handle(ask)
        except Refused as refusal:
            self._answer(ask_id, error={"kind": refusal.kind, "message": str(refusal)})
        except OSError as error:
            message = error.strerror or str(error)
            self._answer(ask_id, error={"kind": "os", "message": message, "errno": error.errno})
        else:
            if answer is not None:
                self._answer(ask_id, ok=answer)

    def _handle(self, ask: dict) -> dict | None:  # type: ignore[type-arg]
        for part in (self, self._processes):
            handler = getattr(part, "ask_" + ask["op"], None)
            if handler:
                return handler(ask)  # type: ignore[no-any-return]
        return self._files.ask(ask, self.put_out)

    def _answer(self, ask_id: int, **content: Any) -> None:
        self._send(protocol.message(protocol.ANSWER, {"id": ask_id, **content}))

    def event(self, channel: int, **content: Any) -> None:
        message = protocol.message(protocol.EVENT, {"channel": channel, **content})
        if len(message) > protocol.KEPT_PAYLOAD:  # an output; that there was one is still told
            message = protocol.message(protocol.EVENT, {"channel": channel, "output": None})
        self._send(message)

    def put_out(self, channel: int, stream: int, data: bytes) -> None:
        """Sends soon: a short program's output and its end then reach the host as one."""
        for start in range(0, len(data), protocol.CHUNK):
            head = protocol.OUTPUT.pack(channel, stream)
            self._pending += protocol.frame(
                protocol.FROM, head + data[start : start + protocol.CHUNK]
            )
            if len(self._pending) > protocol.CHUNK:
                self._send(b"")

    def _send(self, data: bytes) -> None:
        data, self._pending = self._pending + data, b""
        try:
            write_all(self._out, data)
        except (BrokenPipeError, ConnectionResetError):
            raise HostGone from None

    def _input(self, channel: int, data: bytes) -> None:
        cell = self._cell
        if cell and cell.ask == channel:
            cell.stdin.take(data)
        elif channel in self._placing:
            self._place(channel, data)
        elif not self._processes.input(channel, data):
            self._files.content(channel, data)

    # -- inputs ----------------------------------------------------------------------------------

    def ask_place(self, ask: dict) -> dict:  # type: ignore[type-arg]
        """A file for /data/input, where only we can write; its content comes on the channel."""
        self._placing[ask["id"]] = places.create(self._roots["input"], ask["path"], 0o644)
        return {}

    def _place(self, channel: int, data: bytes) -> None:
        file = self._placing[channel]
        try:
            write_all(file, data)
        except OSError as error:
            self._misplaced[channel] = error
            data = b""
        if not data:
            os.close(file)
            del self._placing[channel]

    def ask_placed(self, ask: dict) -> dict:  # type: ignore[type-arg]
        error = self._misplaced.pop(ask["channel"], None)
        if error:
            raise error
        return {}

    # -- the interpreter -------------------------------------------------------------------------

    def _first_prepared(self) -> None:
        assert self._first is not None
        first, self._first = self._first, None
        self.ignore(first.job)
        self._take_interpreter(first)
        self._send(protocol.message(protocol.READY, {}))

    def _take_interpreter(self, runner: Runner) -> None:
        if not os.read(runner.job, 1):
            fault = {"step": "runner", "message": "the interpreter could not start", "hint": ""}
            self._send(protocol.message(protocol.FAULT, fault))
            raise HostGone
        os.close(runner.stdin)
        self._interpreter = _Interpreter(
            runner.pid, Lines(runner.job), runner.stdout, runner.stderr
        )
        self._attend()

    def _attend(self) -> None:
        interpreter = self._interpreter
        assert interpreter is not None
        self.listen(interpreter.lines.descriptor, self._from_interpreter)
        self._listen_streams(interpreter.stdout, 1)
        self._listen_streams(interpreter.stderr, 2)

    def _listen_streams(self, descriptor: int, stream: int) -> None:
        def readable() -> None:
            self._printed(descriptor, stream)

        self.listen(descriptor, readable)

    def ask_set_up(self, ask: dict) -> dict:  # type: ignore[type-arg]
        if ask["woken"]:
            wake(ask["woken"])
        self.set_up = {
            "env": ask["env"],
            "rlimits": ask["rlimits"],
            "folder": ask["folder"],
            "package_path": ask["package_path"],
            "reseed": bool(ask["woken"]),
        }
        self._most_checkpoints = ask["checkpoints"]
        self._tell_interpreter({"set_up": self.set_up})
        self._leave_checkpoint(1)
        return {"files": self._snapshots.possible}

    def _leave_checkpoint(self, run: int) -> None:
        """Now, while nobody waits, for the run that will come."""
        if self._most_checkpoints:
            self._tell_interpreter({"leave": run})

    def _tell_interpreter(self, content: dict, descriptors: tuple[int, ...] = ()) -> None:  # type: ignore[type-arg]
        if self._first:
            self._first_prepared()
        if self._interpreter is None:
            raise Refused("lost", "the interpreter has ended and its state with it")
        try:
            self._interpreter.lines.send(content, descriptors)
        except Broken as broken:
            raise Refused("lost", "the interpreter does not answer: %s" % broken) from None

    def ask_run(self, ask: dict) -> None:  # type: ignore[type-arg]
        if self._cell:
            raise Refused("busy", "a run is under way")
        if self._interpreter is None:
            raise Refused("lost", "the interpreter has ended and its state with it")
        if self._most_checkpoints:
            if not self._snapshots.take(ask["run"]):
                self._unwanted = ask["run"]
            for old in sorted(r for r in self._checkpoints if r < ask["run"])[
                : 1 - self._most_checkpoints or None
            ]:
                self._drop_checkpoint(old)
        stdin, ours = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(ours, False)
        order = {"code": ask["code"], "name": ask["name"]}
        cell = _Cell(ask["id"], ask["run"], ask["output_bytes"], Feed(self, ours))
        try:
            self._tell_interpreter({"cell": order}, (stdin,))
        except Refused:
            cell.stdin.close()
            raise
        finally:
            os.close(stdin)
        self._cell = cell
        for stream, early in self._early.items():
            if early:
                self.put_out(cell.ask, stream, cell.spools[stream].feed(bytes(early)))
                early.clear()

    def _from_interpreter(self) -> None:
        interpreter = self._interpreter
        assert interpreter is not None
        try:
            for line in interpreter.lines.fill(wait=False):
                self._heard(line)
        except (Broken, KeyError, TypeError, ValueError):
            # It has died, or the code speaks in its place: either way its word is worth nothing.
            self._kill_interpreter()

    def _heard(self, line: dict) -> None:  # type: ignore[type-arg]
        assert self._interpreter is not None
        if "checkpoint" in line:
            (control,) = self._interpreter.lines.take(1)
            self._keep_checkpoint(int(line["checkpoint"]), control)
        elif "done" in line and self._cell:
            self._finish(dict(line["done"]))
        elif self._cell and line.keys() <= {"output", "progress", "extend"}:
            self.event(self._cell.ask, **line)

    def _printed(self, descriptor: int, stream: int) -> bool:
        """One read of what the interpreter wrote; False when there was nothing."""
        try:
            data = os.read(descriptor, _READ)
        except BlockingIOError:
            return False
        if not data:
            self.ignore(descriptor)
            return False
        if self._cell:
            head = self._cell.spools[stream].feed(data)
            if head:
                self.put_out(self._cell.ask, stream, head)
        else:
            early = self._early[stream]
            early += data[: max(0, protocol.CHUNK - len(early))]
        return True

    def _finish(self, ended: dict) -> None:  # type: ignore[type-arg]
        """The cell is done: what it wrote is in the pipes already."""
        cell = self._cell
        assert cell is not None
        if self._interpreter:
            for stream, descriptor in (
                (1, self._interpreter.stdout),
                (2, self._interpreter.stderr),
            ):
                while self._printed(descriptor, stream):
                    pass
        self._cell = None
        cell.stdin.close()
        dropped = {}
        for stream, spool in cell.spools.items():
            tail, dropped[str(stream)] = spool.finish()
            if tail:
                self.event(cell.ask, tail=stream)
                self.put_out(cell.ask, stream, tail)
        ended["dropped"] = dropped
        ended["checkpoints"] = sorted(self._checkpoints)
        self._answer(cell.ask, ok=ended)
        if self._interpreter and not ended.get("lost"):
            try:
                self._leave_checkpoint(cell.run + 1)
            except Refused:
                pass  # it is gone; its end is reported as such

    def ask_interrupt(self, ask: dict) -> dict:  # type: ignore[type-arg]
        if self._cell and self._interpreter:
            send_signal(self._interpreter.pid, signal.SIGINT, group=True)
        return {}

    def ask_kill(self, ask: dict) -> dict:  # type: ignore[type-arg]
        self._kill_interpreter()
        return {}

    def ask_restart(self, ask: dict) -> dict:  # type: ignore[type-arg]
        self._kill_interpreter()
        for run in list(self._checkpoints):
            self._drop_checkpoint(run)
        self._take_interpreter(self.fork(interpreter=True))
        self._tell_interpreter({"set_up": self.set_up})
        self._leave_checkpoint(ask["next_run"])
        return {}

    def _kill_interpreter(self) -> None:
        """Its end is reported when the kernel tells it."""
        if self._interpreter:
            self.ignore(self._interpreter.lines.descriptor)
            send_signal(self._interpreter.pid, signal.SIGKILL, group=True)

    def _interpreter_ended(self, status: int | None) -> None:
        interpreter = self._interpreter
        if interpreter is None:
            return
        try:
            while lines := interpreter.lines.fill(wait=False):
                for line in lines:  # a checkpoint that it left last
                    self._heard(line)
        except (Broken, KeyError, TypeError, ValueError):
            pass
        ended: dict[str, Any] = {"lost": True, "status": "gone", "signal": int(signal.SIGKILL)}
        if status is not None:
            ended["exit_code"] = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
            ended["signal"] = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        if self._cell:
            self._finish(ended)
        else:
            self.event(0, **ended)
        for descriptor in (interpreter.stdout, interpreter.stderr):
            self.ignore(descriptor)
        self.ignore(interpreter.lines.descriptor)
        interpreter.lines.close()
        self._interpreter = None

    # -- checkpoints and branches ----------------------------------------------------------------

    def _keep_checkpoint(self, run: int, control: int) -> None:
        assert self._interpreter is not None
        current = self._interpreter
        lines = Lines(control)
        copy = _Interpreter(-1, lines, current.stdout, current.stderr)
        if run in self._checkpoints:
            self._drop_checkpoint(run)
        self._checkpoints[run] = copy
        self.listen(control, lambda: self._from_checkpoint(run))
        # The newest is for a run that has not begun: it comes on top of those that were promised.
        while len(self._checkpoints) > self._most_checkpoints + 1:
            self._drop_checkpoint(min(self._checkpoints))
        if run == self._unwanted:
            self._drop_checkpoint(run)

    def _from_checkpoint(self, run: int) -> None:
        """Only its greeting is expected; one that the kernel killed for its memory has closed."""
        copy = self._checkpoints[run]
        try:
            for line in copy.lines.fill(wait=False):
                pid = line.get("hello")
                if type(pid) is int and pid > 1:
                    copy.pid = pid
        except Broken:
            self._drop_checkpoint(run)

    def _drop_checkpoint(self, run: int) -> None:
        copy = self._checkpoints.pop(run)
        self.ignore(copy.lines.descriptor)
        copy.lines.close()  # it exits when nobody is there any more
        self._snapshots.drop(run)

    def ask_rollback(self, ask: dict) -> dict:  # type: ignore[type-arg]
        if self._cell:
            raise Refused("busy", "a run is under way")
        run = ask["run"]
        copy = self._checkpoints.get(run)
        if copy is None:
            raise Refused("unknown", "there is no checkpoint before run %s" % run)
        if copy.pid < 0:
            try:
                copy.pid = _greeting(copy.lines)
            except Broken:
                self._drop_checkpoint(run)
                raise Refused("unknown", "the checkpoint before run %s is gone" % run) from None
        if self._interpreter:
            old, self._interpreter = self._interpreter, None
            for descriptor in (old.lines.descriptor, old.stdout, old.stderr):
                self.ignore(descriptor)
            send_signal(old.pid, signal.SIGKILL, group=True)
            old.lines.close()
        del self._checkpoints[run]
        for later in [other for other in self._checkpoints if other > run]:
            self._drop_checkpoint(later)
        self.ignore(copy.lines.descriptor)
        self._interpreter = copy
        self._attend()
        restored = self._snapshots.restore(run)
        self._leave_checkpoint(ask["next_run"])
        return {"checkpoints": sorted(self._checkpoints), "files": restored}

    def ask_fork(self, ask: dict) -> dict:  # type: ignore[type-arg]
        """Comes with a socket to the keeper of the new sandbox and the entrances to its cgroup."""
        family, *entrances = self._stream.take(1 + ask["entrances"])
        passed = [family, *entrances]
        try:
            if self._cell:
                raise Refused("busy", "a run is under way")
            run = ask["run"]
            source = self._interpreter if run is None else self._checkpoints.get(run)
            if source is None:
                raise Refused("lost" if run is None else "unknown", "there is no such state")
            with socket.socket(fileno=os.dup(family)) as other:
                other.settimeout(FAMILY_S)
                _, namespaces, _, _ = socket.recv_fds(other, 1, len(_NAMESPACES))
                passed += namespaces
                other.settimeout(None)
                store = self._roots.get("store", -1)
                content = protocol.json_bytes({"manifest": self._snapshots.manifest(run)})
                head = struct.pack(">I", len(content))
                socket.send_fds(other, [head], [store] if store >= 0 else [])
                other.sendall(content)
            source.lines.send(
                {"fork": {"entrances": len(entrances), "namespaces": len(namespaces)}},
                (*entrances, *namespaces, family),
            )
        except Broken:
            raise Refused("lost", "the interpreter does not answer") from None
        finally:
            for descriptor in passed:
                os.close(descriptor)
        return {}

    def offer(self, family: int) -> None:
        """In a new sandbox that a branch will move into: tells the parent's keeper where to."""
        self._family = family
        here = [os.open("/proc/self/ns/" + name, os.O_RDONLY) for name in _NAMESPACES]
        with socket.socket(fileno=os.dup(family)) as other:
            socket.send_fds(other, [b"n"], here)
        for descriptor in here:
            os.close(descriptor)

    def ask_adopt(self, ask: dict) -> dict:  # type: ignore[type-arg]
        """Takes the files and then the copied interpreter, which is not our child."""
        with socket.socket(fileno=os.dup(self._family)) as other:
            other.settimeout(FAMILY_S)
            head, store, _, _ = socket.recv_fds(other, 4, 1)
            (size,) = struct.unpack(">I", head)
            content = b""
            while len(content) < size:
                piece = other.recv(size - len(content))
                if not piece:
                    raise Refused("lost", "the parent went away")
                content += piece
        if store:
            self._snapshots.lay_out(protocol.unpack(content)["manifest"], store[0])
            os.close(store[0])
        lines = Lines(self._family)
        try:
            pid = _greeting(lines)
        except Broken:
            raise Refused("lost", "the interpreter could not be copied") from None
        if not _without_capabilities(pid):
            send_signal(pid, signal.SIGKILL, group=False)
            raise Refused("lost", "the copy kept privileges that it must not have")
        stdout_in, stdout_out = os.pipe2(os.O_CLOEXEC)
        stderr_in, stderr_out = os.pipe2(os.O_CLOEXEC)
        lines.send({"streams": 2}, (stdout_out, stderr_out))
        for descriptor in (stdout_out, stderr_out):
            os.close(descriptor)
        for descriptor in (stdout_in, stderr_in):
            os.set_blocking(descriptor, False)
        self.set_up = ask["set_up"]
        self._most_checkpoints = ask["checkpoints"]
        self._interpreter = _Interpreter(pid, lines, stdout_in, stderr_in)
        self._attend()
        self._watch(os.pidfd_open(pid))
        self._leave_checkpoint(1)
        return {"files": bool(store)}

    def _watch(self, pidfd: int) -> None:
        """The end of a process that is not our child, of which we learn no more than that."""

        def gone() -> None:
            self.ignore(pidfd)
            os.close(pidfd)
            self._interpreter_ended(None)

        self.listen(pidfd, gone)

    # -- processes -------------------------------------------------------------------------------

    def fork(self, *, interpreter: bool = False, terminal: bool = False) -> Runner:
        runner = fork_runner(lambda _: self._harden(), terminal=terminal)
        if isinstance(runner, Waiting):
            raise Become(runner, interpreter=interpreter)
        return runner

    def _reap(self) -> None:
        """Collects every dead child, also orphans that pid 1 inherited."""
        drain(self._woken)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._interpreter and pid == self._interpreter.pid:
                self._interpreter_ended(status)
            self._processes.ended(pid, status)


class _Stream:
    """The host's words, and the descriptors that come with some of them."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._descriptors: list[int] = []
        self._socket: socket.socket | None = None
        try:
            self._socket = socket.socket(fileno=os.dup(descriptor))
        except OSError:  # a pipe or a serial line
            pass

    def read(self) -> bytes:
        if self._socket is None:
            return os.read(self.descriptor, _READ)
        data, descriptors, _, _ = socket.recv_fds(self._socket, _READ, 16)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        self._descriptors += descriptors
        return data

    def take(self, count: int) -> list[int]:
        taken, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        if len(taken) < count:
            for descriptor in taken:
                os.close(descriptor)
            raise Refused("unsupported", "this wall cannot pass descriptors")
        return taken


def _greeting(lines: Lines) -> int:
    """The pid of a copy. It runs what the code made of our own functions, so it may keep silent."""
    while True:
        if not select.select([lines.descriptor], [], [], FAMILY_S)[0]:
            raise Broken("no greeting")
        for line in lines.fill(wait=False):
            pid = line.get("hello")
            if type(pid) is not int or pid <= 1:
                raise Broken("no greeting")
            return pid


def _without_capabilities(pid: int) -> bool:
    with open("/proc/%d/status" % pid) as file:
        sets = [line.split()[1] for line in file if line.startswith(("CapPrm", "CapEff", "CapBnd"))]
    return len(sets) == 3 and all(int(found, 16) == 0 for found in sets)
