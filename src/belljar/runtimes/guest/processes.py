"""Programs that run in a kept sandbox beside the interpreter."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import termios
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import protocol
from .files import Refused
from .forking import Runner, write_all
from .spool import Spool

if TYPE_CHECKING:
    from .keeper import Keeper

MOST_PROCESSES = 64
EMPTY_S = 1.0
_READ = 256 * 1024
_MOST_READS = 16
_TELL_BYTES = 1 << 20
"""Of standard input: what was taken is told in amounts of this, and the host sends no more than it
may have waiting here (`conversation.AHEAD_BYTES`)."""


class Feed:
    """Standard input of a program: given as fast as it takes it."""

    def __init__(self, keeper: Keeper, descriptor: int, ask: int) -> None:
        self._keeper = keeper
        self._ask = ask
        self._fed = 0
        self._descriptor = descriptor
        self._pending = bytearray()
        self._ends = False
        self._listening = False
        self.stays_open = False
        """A terminal, which is read from by the same descriptor."""

    def take(self, data: bytes) -> None:
        """What the host sent; no bytes mean that no more will come."""
        if self._descriptor < 0:
            self._tell(len(data))  # nobody will read it
            return
        if data:
            self._pending += data
        elif self.stays_open:
            self._pending += b"\4"  # as a person would say it
        else:
            self._ends = True
        self._push()

    def _push(self) -> None:
        try:
            while self._pending:
                count = os.write(self._descriptor, self._pending[:65536])
                del self._pending[:count]
                self._tell(count)
        except BlockingIOError:
            if not self._listening and not self.stays_open:
                self._listening = True
                self._keeper.listen(self._descriptor, self._push, select.POLLOUT)
            return
        except OSError:  # nobody reads any more
            self._drop()
            self._ends = True
        if self._listening:
            self._listening = False
            self._keeper.ignore(self._descriptor)
        if self._ends:
            self.close()

    def _tell(self, count: int) -> None:
        self._fed += count
        if self._fed >= _TELL_BYTES:
            self._keeper.event(self._ask, fed=self._fed)
            self._fed = 0

    def _drop(self) -> None:
        self._tell(len(self._pending))
        self._pending.clear()

    def close(self) -> None:
        self._drop()
        if self._descriptor >= 0 and not self.stays_open:
            if self._listening:
                self._keeper.ignore(self._descriptor)
            os.close(self._descriptor)
        self._descriptor = -1


class _Process:
    def __init__(self, ask: dict, runner: Runner, feed: Feed) -> None:  # type: ignore[type-arg]
        self.ask: int = ask["id"]
        self.argv: list[str] = ask["argv"]
        self.pid = runner.pid
        self.stdin = feed
        self.terminal: int = runner.stdout if ask["terminal"] else -1
        self.streams = {runner.stdout: 1}
        if not ask["terminal"]:
            self.streams[runner.stderr] = 2
        self.spools = {1: Spool(ask["output_bytes"]), 2: Spool(ask["output_bytes"])}


class Processes:
    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._running: dict[int, _Process] = {}

    @property
    def any(self) -> bool:
        return bool(self._running)

    def ask_start(self, ask: dict) -> dict:  # type: ignore[type-arg]
        if len(self._running) >= MOST_PROCESSES:
            raise Refused("too_many", "at most %d processes at once" % MOST_PROCESSES)
        keeper = self._keeper
        runner = keeper.fork(terminal=ask["terminal"])
        if not os.read(runner.job, 1):
            raise Refused("os", "the process could not be prepared")
        feed = Feed(keeper, runner.stdin, ask["id"])
        feed.stays_open = ask["terminal"]
        process = _Process(ask, runner, feed)
        job = {
            "argv": ask["argv"],
            "path": ask["folder"] + "/.",
            "env": {**keeper.set_up.get("env", {}), **ask["env"]},
            "rlimits": keeper.set_up.get("rlimits", {}),
            "reseed": False,
        }
        write_all(runner.job, protocol.json_bytes(job))
        os.close(runner.job)
        self._running[process.ask] = process
        for descriptor, stream in process.streams.items():
            keeper.listen(descriptor, self._reader(process, descriptor, stream))
        return {"pid": process.pid}

    def ask_empty(self, ask: dict) -> dict:  # type: ignore[type-arg]
        """Ends everything in here but branches, whose walls stand within ours. Tells how many do
        not end: code that forks fast enough is found too late."""
        self._keeper.checkpoints.drop_all()
        until = time.monotonic() + EMPTY_S
        while True:  # they may fork on
            pids = [pid for pid in _here() if pid != os.getpid()]
            if not pids or time.monotonic() > until:
                return {"left": len(pids)}
            for pid in pids:
                send_signal(pid, signal.SIGKILL, group=False)

    def ask_signal(self, ask: dict) -> dict:  # type: ignore[type-arg]
        send_signal(self._find(ask).pid, ask["number"], group=True)
        return {}

    def ask_resize(self, ask: dict) -> dict:  # type: ignore[type-arg]
        process = self._find(ask)
        if process.terminal < 0:
            raise Refused("unsupported", "this process has no terminal")
        size = struct.pack("HHHH", ask["rows"], ask["columns"], 0, 0)
        fcntl.ioctl(process.terminal, termios.TIOCSWINSZ, size)
        return {}

    def input(self, channel: int, data: bytes) -> bool:
        """False when no process has that channel."""
        process = self._running.get(channel)
        if process:
            process.stdin.take(data)
        return process is not None

    def ended(self, pid: int, status: int) -> None:
        """Of any process inside."""
        for process in list(self._running.values()):
            if process.pid == pid:
                self._finish(process, status)

    def _finish(self, process: _Process, status: int) -> None:
        # What it left running in its group ends with it.
        send_signal(process.pid, signal.SIGKILL, group=True)
        keeper = self._keeper
        process.stdin.close()
        for descriptor, stream in process.streams.items():
            for _ in range(_MOST_READS):  # a daemon of it may print for ever
                if not self._read(process, descriptor, stream):
                    break
            keeper.ignore(descriptor)
            os.close(descriptor)
        del self._running[process.ask]
        dropped = {}
        for stream, spool in process.spools.items():
            tail, dropped[str(stream)] = spool.finish()
            if tail:
                keeper.event(process.ask, tail=stream)
                keeper.put_out(process.ask, stream, tail)
        keeper.event(
            process.ask,
            ended={
                "exit_code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
                "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
                "dropped": dropped,
            },
        )

    def _reader(self, process: _Process, descriptor: int, stream: int) -> Callable[[], None]:
        def readable() -> None:
            self._read(process, descriptor, stream)

        return readable

    def _read(self, process: _Process, descriptor: int, stream: int) -> bool:
        """One read; False when there was nothing."""
        try:
            data = os.read(descriptor, _READ)
        except BlockingIOError:
            return False
        except OSError:  # a terminal that nobody has open any more
            data = b""
        if not data:
            self._keeper.ignore(descriptor)
            return False
        head = process.spools[stream].feed(data)
        if head:
            self._keeper.put_out(process.ask, stream, head)
        return True

    def _find(self, ask: dict) -> _Process:  # type: ignore[type-arg]
        process = self._running.get(ask["channel"])
        if process is None:
            raise Refused("unknown", "there is no such process")
        return process


def _here() -> list[int]:
    """The living processes of this pid namespace, without those in the ones below."""
    found = []
    for name in os.listdir("/proc"):
        try:
            with open("/proc/%d/status" % int(name)) as file:
                status = dict(line.split(":", 1) for line in file)
        except (OSError, ValueError):
            continue
        if len(status["NSpid"].split()) == 1 and status["State"].split()[0] not in "ZX":
            found.append(int(name))
    return found


def send_signal(pid: int, number: int, *, group: bool) -> None:
    """To the process's group if it leads one."""
    if pid <= 1:
        return
    for target in (-pid, pid) if group else (pid,):
        try:
            os.kill(target, number)
            return
        except (ProcessLookupError, PermissionError):
            continue
