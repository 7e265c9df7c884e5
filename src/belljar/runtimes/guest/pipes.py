"""The code's standard streams, as the agent has them: input at its pace, output in bounds."""

from __future__ import annotations

import os
import select

from . import protocol
from .forking import Runner
from .outgoing import Outgoing
from .spool import Spool

_READ = 256 * 1024


class Pipes:
    """Of one run. A further stage of it has a new process, and the same streams go on."""

    def __init__(
        self, runner: Runner, output_bytes: int, poll: select.poll, outgoing: Outgoing
    ) -> None:
        """`poll` hears of both outputs already, and of the input while it is full."""
        self._poll = poll
        self._outgoing = outgoing
        self.stdin = runner.stdin
        self._stdout, self._stderr = runner.stdout, runner.stderr
        self.outputs = {runner.stdout: Spool(output_bytes), runner.stderr: Spool(output_bytes)}
        self._open_outputs = 2
        self._waiting = bytearray()
        self._ends = False

    def move(self, runner: Runner) -> None:
        """To the process of the next stage."""
        outputs = {
            runner.stdout: self.outputs[self._stdout],
            runner.stderr: self.outputs[self._stderr],
        }
        for descriptor in self.outputs:
            os.close(descriptor)
        self.close_stdin()
        self.stdin = runner.stdin
        self._stdout, self._stderr = runner.stdout, runner.stderr
        self.outputs = outputs
        self._open_outputs = 2

    # -- input -----------------------------------------------------------------------------------

    def take(self, data: bytes) -> None:
        """What the host sent; no bytes mean that no more will come."""
        if data:
            self._waiting += data
        else:
            self._ends = True

    def feed(self) -> bool:
        """Gives the code what it takes. True when it has taken all, and there may be more."""
        if self.stdin < 0:
            return False
        try:
            while self._waiting:
                del self._waiting[: os.write(self.stdin, self._waiting[:65536])]
        except BlockingIOError:
            self._poll.register(self.stdin, select.POLLOUT)
            return False
        except OSError:  # nobody reads any more
            self._waiting.clear()
            self._ends = True
        if self._ends:
            self.close_stdin()
            return False
        self._ignore(self.stdin)
        return True

    def close_stdin(self) -> None:
        if self.stdin >= 0:
            self._ignore(self.stdin)
            os.close(self.stdin)
            self.stdin = -1

    # -- output ----------------------------------------------------------------------------------

    def forward(self, descriptor: int) -> bool:
        """Passes on what was written. True when nobody holds either output open any more."""
        try:
            data = os.read(descriptor, _READ)
        except BlockingIOError:
            return False
        if not data:
            self._poll.unregister(descriptor)
            self._open_outputs -= 1
            return self._open_outputs == 0
        self._pass_on(descriptor, data)
        return False

    def exhaust(self) -> None:
        """Takes what is left in the outputs, whose writers are dead."""
        for descriptor in self.outputs:
            while True:
                try:
                    data = os.read(descriptor, _READ)
                except BlockingIOError:
                    break
                if not data:
                    break
                self._pass_on(descriptor, data)
            self._ignore(descriptor)

    def finish(self) -> dict[str, int]:
        """Sends the ends of long outputs; returns how much was dropped before them."""
        dropped = {}
        for name, kind, descriptor in (
            ("stdout", protocol.STDOUT_TAIL, self._stdout),
            ("stderr", protocol.STDERR_TAIL, self._stderr),
        ):
            tail, dropped[name] = self.outputs[descriptor].finish()
            for start in range(0, len(tail), protocol.CHUNK):
                self._outgoing.send(protocol.frame(kind, tail[start : start + protocol.CHUNK]))
        return dropped

    def _pass_on(self, descriptor: int, data: bytes) -> None:
        head = self.outputs[descriptor].feed(data)
        if head:
            kind = protocol.STDOUT if descriptor == self._stdout else protocol.STDERR
            self._outgoing.post(protocol.frame(kind, head))

    def _ignore(self, descriptor: int) -> None:
        try:
            self._poll.unregister(descriptor)
        except KeyError:
            pass
