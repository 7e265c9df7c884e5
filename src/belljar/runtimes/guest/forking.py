"""The process that will run the code: forked off ahead of need, it waits to hear what to become.

Between the agent and it there are three pipes, a socket for the job, and a piece of shared memory
through which it can say how it ended without holding a descriptor that the code could find.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import signal
import socket
import termios
from collections.abc import Callable

REPORT_BYTES = 64 * 1024
_LEAVING = REPORT_BYTES
_READ = 256 * 1024


class Job:
    """What the runner is to become."""

    def __init__(
        self,
        argv: list[str] | None,
        path: str,
        env: dict[str, str],
        rlimits: dict[str, int],
        report: mmap.mmap,
        *,
        reseed: bool,
    ) -> None:
        self.argv = argv
        """None: run the Python file `path` in this interpreter; else execute this program."""
        self.path = path
        self.env = env
        self.rlimits = rlimits
        self.report = report
        self.reseed = reseed
        """This process was restored from a snapshot: others have the same random state."""


class Waiting:
    """A runner that has its pipes as standard streams and waits for its Job on descriptor 3."""

    def __init__(self, report: mmap.mmap) -> None:
        self._report = report

    def job(self) -> Job:
        order = b""
        while data := os.read(3, _READ):
            order += data
        os.close(3)
        if not order:
            os._exit(0)
        fields = json.loads(order)
        return Job(
            fields["argv"],
            fields["path"],
            fields["env"],
            fields["rlimits"],
            self._report,
            reseed=fields["reseed"],
        )


class Runner:
    """A forked process that waits for its Job, and the agent's ends of its pipes."""

    def __init__(
        self, pid: int, job: int, stdin: int, stdout: int, stderr: int, report: mmap.mmap
    ) -> None:
        self.pid = pid
        self.job = job
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self.report = report
        self.prepared = False

    def leaving_status(self) -> int | None:
        """The exit status that the code's process announced (see `announce`)."""
        flag, status = self.report[_LEAVING], self.report[_LEAVING + 1]
        return status if flag else None

    def last_words(self) -> str:
        """The exception that ended Python code, as its process reported it."""
        length = int.from_bytes(self.report[:4], "big")
        words = self.report[4 : 4 + min(length, REPORT_BYTES - 4)] if length else b""
        return words.decode("utf-8", "replace")

    def walls_stand(self) -> None:
        """Lets a runner that was forked before them go on."""
        os.write(self.job, b"w")


def fork_runner(
    harden: Callable[[Callable[[], None]], None], *, terminal: bool = False
) -> Runner | Waiting:
    """Forks the process that will run the code. Returns a Runner here and a Waiting there.

    `harden` is called there, with a function that returns when the agent said `walls_stand`.
    `terminal`: its three streams are one terminal; the Runner's are then the other end of it."""
    ours, theirs = socket.socketpair()
    job_out, job_in = ours.detach(), theirs.detach()
    if terminal:
        ours_end, their_end = os.openpty()
        stdin_in = stdout_out = stderr_out = their_end
        stdin_out = stdout_in = stderr_in = ours_end
    else:
        stdin_in, stdin_out = os.pipe2(os.O_CLOEXEC)
        stdout_in, stdout_out = os.pipe2(os.O_CLOEXEC)
        stderr_in, stderr_out = os.pipe2(os.O_CLOEXEC)
    # Anonymous shared memory: the runner can tell which exception ended it without holding
    # a descriptor that the code could find.
    report = mmap.mmap(-1, REPORT_BYTES + 2)
    pid = os.fork()
    if pid == 0:
        _turn_into_runner(job_in, stdin_in, stdout_out, stderr_out, harden)
        if terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        return Waiting(report)
    for descriptor in {job_in, stdin_in, stdout_out, stderr_out}:
        os.close(descriptor)
    for descriptor in {stdin_out, stdout_in, stderr_in}:
        os.set_blocking(descriptor, False)
    return Runner(pid, job_out, stdin_out, stdout_in, stderr_in, report)


def _turn_into_runner(
    job: int, stdin: int, stdout: int, stderr: int, harden: Callable[[Callable[[], None]], None]
) -> None:
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        for source, target in ((stdin, 0), (stdout, 1), (stderr, 2), (job, 3)):
            os.dup2(source, target, inheritable=target < 3)
        os.closerange(4, 1 << 20)
        harden(_wait_for_walls)
        os.write(3, b"p")
    except BaseException as error:
        os.write(2, b"belljar: the runner could not start: %r\n" % error)
        os._exit(125)


def _wait_for_walls() -> None:
    if os.read(3, 1) != b"w":
        os._exit(125)


def announce(report: object, status: int) -> None:
    """Called in the code's process when all that is left to do is to exit."""
    report[_LEAVING : _LEAVING + 2] = bytes((1, status))  # type: ignore[index]
    os.sched_yield()  # brings the kernel's account of our time up to date
    for stream in (1, 2):
        try:
            os.close(stream)
        except OSError:
            pass


def write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        pass
