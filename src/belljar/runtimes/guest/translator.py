"""Holds the state of a kept sandbox in a language other than Python: in a program, the driver.

Towards the keeper this process is what the Python interpreter is (interpreter.py). It gives the
driver one cell after the other and hands on what the driver says, in JSON lines:
    driver → here   {"done": {number, exit_code, …}}, {"progress": …}, {"extend": seconds}
The code can speak in the driver's place, and then lies about its own run and no more.

How the driver gets a cell is its language's choice (`cells`):
    "json"    {"cell": {code, name, number}} on descriptor 3, where it also answers
    "shell"   commands on its standard input; it answers on descriptor 101

Standard input is a file without a name that is filled anew for each cell: a descriptor that the
driver has from its start, and whose offset is shared with this process.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import socket
import tempfile

from .lines import Broken, Lines

INSIST_S = 0.3
"""Between interrupts: a shell goes on when the program it waits for has dealt with one."""
_READ = 256 * 1024
_PR_SET_PDEATHSIG = 1
_OUT_OF_THE_WAY = 200
_HEARD = {"progress", "extend"}

_prctl = ctypes.CDLL(None, use_errno=True).prctl


def live(keeper: Lines, driver: dict, orders: list[dict]) -> None:  # type: ignore[type-arg]
    """Never returns: this process ends with the driver, and in the same way. `orders`: those that
    have come already."""
    translator = _Translator(keeper, driver)
    try:
        translator.serve(orders)
    except Broken:
        os._exit(0)  # nobody is there any more; the kernel ends the driver


class _Translator:
    def __init__(self, keeper: Lines, driver: dict) -> None:  # type: ignore[type-arg]
        self._keeper = keeper
        self._shell = driver["cells"] == "shell"
        self._stdin = tempfile.TemporaryFile(buffering=0, dir="/tmp")
        self._run = -1
        self._poll = select.poll()
        self._under_way = False
        self._interrupted = False
        self._woken, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        ours, theirs = socket.socketpair()
        self._driver = Lines(ours.detach())
        self._pid = self._start(driver["argv"], theirs.fileno())
        theirs.close()
        if self._shell:
            self._tell(driver["script"].encode())

    def _start(self, argv: list[str], talk: int) -> int:
        env = dict(os.environ)
        given = {0: self._stdin.fileno(), 1: 1, 2: 2, 3: talk}
        if self._shell:
            env.update(PS1="", PS2="")
            null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
            given = {0: talk, 1: null, 2: null, 101: talk, 102: 1, 103: 2}
            given[100] = self._stdin.fileno()
        pid = os.fork()
        if pid:
            return pid
        try:
            _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            aside = {
                target: fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY)
                for target, source in given.items()
            }
            for target, source in aside.items():
                os.dup2(source, target)
            os.execve(argv[0], argv, env)
        except BaseException as error:
            os.write(aside[2], ("belljar: cannot execute %s: %s\n" % (argv[0], error)).encode())
        os._exit(126)

    def serve(self, orders: list[dict]) -> None:  # type: ignore[type-arg]
        self._obey(orders)
        handlers = {
            self._keeper.descriptor: self._ordered,
            self._driver.descriptor: self._told,
            self._woken: self._signalled,
        }
        for descriptor in handlers:
            self._poll.register(descriptor, select.POLLIN)
        while True:
            waits_again = self._interrupted and self._under_way
            events = self._poll.poll(INSIST_S * 1000 if waits_again else None)
            if not events:
                os.killpg(0, signal.SIGINT)
            for descriptor, _ in events:
                handlers[descriptor]()

    # -- the keeper ------------------------------------------------------------------------------

    def _ordered(self) -> None:
        self._obey(self._keeper.fill())

    def _obey(self, orders: list[dict]) -> None:  # type: ignore[type-arg]
        for order in orders:
            if "cell" in order:
                self._cell(order["cell"])

    def _cell(self, cell: dict) -> None:  # type: ignore[type-arg]
        (stdin,) = self._keeper.take(1)
        self._run = cell["run"]
        self._interrupted = False
        try:
            self._fill(stdin)
        except OSError as error:
            message = "no room for standard input: %s" % error.strerror
            failed = {"name": "OSError", "message": message, "traceback": message + "\n"}
            self._done({"status": "error", "exit_code": 1, "error": failed})
            return
        finally:
            os.close(stdin)
        for stream in (1, 2):  # programs that wait for events leave it off
            os.set_blocking(stream, True)
        self._under_way = True
        self._tell(self._order(cell["code"], cell["name"]))

    def _done(self, ended: dict) -> None:  # type: ignore[type-arg]
        self._under_way = False
        self._keeper.send({"done": ended, "run": self._run})

    def _fill(self, stdin: int) -> None:
        file = self._stdin.fileno()
        os.ftruncate(file, 0)
        os.lseek(file, 0, os.SEEK_SET)
        while data := os.read(stdin, _READ):
            while data:
                data = data[os.write(file, data) :]
        os.lseek(file, 0, os.SEEK_SET)

    def _order(self, code: str, name: str) -> bytes:
        if self._shell:
            return shell_order(code, self._run)
        return Lines.encode({"cell": {"code": code, "name": name, "number": self._run}})

    def _tell(self, data: bytes) -> None:
        try:
            self._driver.write(data)
        except Broken:
            pass  # it has ended, or will be ended, and that is told

    # -- the driver ------------------------------------------------------------------------------

    def _told(self) -> None:
        try:
            self._hear()
        except (Broken, TypeError):
            # It has ended, or the code speaks in its place and makes no sense.
            self._poll.unregister(self._driver.descriptor)
            os.kill(self._pid, signal.SIGKILL)

    def _hear(self) -> bool:
        """Reads once; False when there was nothing."""
        lines = self._driver.fill(wait=False)
        for line in lines:
            done = line.get("done")
            if not self._under_way:
                continue
            if isinstance(done, dict) and done.pop("number", None) == self._run:
                self._done(done)
            elif line.keys() <= _HEARD:
                self._keeper.send(line)
        return bool(lines)

    def _signalled(self) -> None:
        numbers = os.read(self._woken, 4096)
        if signal.SIGINT in numbers:
            self._interrupted = True
        if signal.SIGCHLD not in numbers:
            return
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid:
            try:
                while self._hear():
                    pass
            except (Broken, TypeError):
                pass
            _end_like(status)


def shell_order(code: str, number: int) -> bytes:
    """One cell as commands for runtimes/drivers/bash.sh."""
    quoted = code.replace("\0", "").replace("'", "'\\''")
    # One compound command: what a failing expansion (`set -u`) ends is then all of it. On one line
    # with the code, so that lines are counted right.
    source = "__belljar_code='{ __belljar_begin; %s\n}'\n" % quoted
    run = '. /dev/fd/104 104<<<"$__belljar_code" 0<&100 1>/dev/null 2>&1\n'
    return (source + run + "__belljar_done %d\n" % number).encode("utf-8", "replace")


def _end_like(status: int) -> None:
    """So that whoever looks at this process sees how the driver ended."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        os._exit(128 + number)
    os._exit(os.WEXITSTATUS(status))
