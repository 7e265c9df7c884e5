"""A Python namespace that lives from run to run, with what people know from notebooks (S1, S3).

The code runs in the same process and can do to it what it likes; it can lie about its own run and
no more. What is done here against mischief is against accidents: a run that closes its output or
replaces a hook must not spoil the next one.
"""

from __future__ import annotations

import builtins
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from . import awaiting, cells, ending, failures, magics, packages
from .display import Display
from .figures import Figures
from .interrupts import Interrupts
from .outputs import Outputs
from .streams import Streams

_REHEARSAL = "1 + 1"
INTERRUPTED = 130
"""The exit code of a run that ended in KeyboardInterrupt, as shells have it."""


class Notebook:
    """One per process: it is the process's `__main__`."""

    def __init__(
        self,
        emit: Callable[[dict[str, Any]], None],
        *,
        output_bytes: int,
        outputs: int = 100,
    ) -> None:
        """`emit` sends one output: {"kind": "display" or "result", "data": {MIME type: text, or
        {"base64": text}}, "metadata": {…}}. It is not interrupted by SIGINT, and only called
        during a run, maybe from other threads, one at a time.

        `output_bytes`: of all outputs of a run together. `outputs`: how many."""
        self.interrupts = Interrupts()
        self.streams = Streams()
        self.outputs = Outputs(
            emit,
            output_bytes=output_bytes,
            outputs=outputs,
            interrupts=self.interrupts,
            streams=self.streams,
        )
        self.name = ""
        self._pictures = Figures()
        self._display = Display(self.outputs, self.streams, self._pictures)
        self._compiler = cells.Compiler()
        self._loop = awaiting.Loop()
        self._module = types.ModuleType("__main__")
        self.namespace: dict[str, Any] = self._module.__dict__
        self._last: object = None
        self._text: str | None = None
        self._pid = 0
        self.reset()
        setattr(builtins, cells.DOOR, magics.Magics(self))
        builtins.display = self._display.display  # type: ignore[attr-defined]
        self._packages = packages.Packages(self._display, self._pictures, self._loop)

    def reset(self) -> None:
        """Forgets every variable."""
        self.namespace.clear()
        self.namespace.update(__name__="__main__", __doc__=None, __builtins__=builtins)
        if sys.version_info < (3, 14):  # since then they are made when somebody asks for them
            self.namespace["__annotations__"] = {}
        self._last = None

    def run(self, code: str, name: str) -> dict[str, Any]:
        """Runs `code`, which tracebacks call `name`. Raises nothing.

        status     "ok", "error", or "exit" (sys.exit was called)
        exit_code  0, 1 after an error, what sys.exit said, INTERRUPTED
        error      None, or its name, message and traceback; printed to standard error as well
        value      the text of the last expression's value, or None
        dropped_outputs
        """
        self.interrupts.begin(Notebook.run.__code__)
        self._begin(name)
        failure: BaseException | None
        # Between these assignments SIGINT raises, but not in this very function.
        self.interrupts.allowed = True
        try:
            failure = self._attempt(code)
        except BaseException as late:
            failure = late
        self.interrupts.allowed = False
        self.interrupts.end()
        if os.getpid() != self._pid:
            self._end_copy(failure)
        status, exit_code, error = "ok", 0, None
        if isinstance(failure, SystemExit):
            status, exit_code = "exit", ending.exit_status(failure.code)
        elif failure is not None:
            error = failures.tell(failure, self.streams)
            status, exit_code = "error", 1
            if isinstance(failure, KeyboardInterrupt):
                exit_code = INTERRUPTED
        failure = None  # its frames hold what the code had in its hands
        self.streams.end()
        text, self._text = self._text, None
        return {
            "status": status,
            "exit_code": exit_code,
            "error": error,
            "value": text if status == "ok" else None,
            "dropped_outputs": self.outputs.end(),
        }

    def rehearse(self) -> None:
        """Walks through what every run does, without an effect that code could see."""
        self.interrupts.begin(Notebook.rehearse.__code__)
        self.streams.begin()
        self._loop.begin()
        self._look_for_new_files()
        self._compiler.remember(_REHEARSAL, "<rehearsal>")
        code, _ = self._compiler.compile(_REHEARSAL, "<rehearsal>", line=0)
        exec(code, {"__builtins__": builtins})
        self._display.represent(2)
        self.interrupts.end()
        self.streams.end()

    def _begin(self, name: str) -> None:
        self.name = name
        self._pid = os.getpid()
        self._text = None
        sys.modules["__main__"] = self._module
        self.streams.begin()
        self._loop.begin()
        self._pictures.begin(self._display.show)
        self._look_for_new_files()
        self.outputs.begin()

    def _look_for_new_files(self) -> None:
        """Importers trust a folder's time, and a file that came since the last run may be younger
        than that can tell."""
        try:
            folders = {os.getcwd(), *sys.path[:1]}
        except (OSError, TypeError, AttributeError):  # the folder is gone, or the path is
            return
        for folder in folders:
            finder: Any = sys.path_importer_cache.get(folder)
            if finder is not None:
                finder.invalidate_caches()

    def _attempt(self, code: str) -> BaseException | None:
        """What ended the code early, if anything did."""
        self.interrupts.check()
        try:
            self._compiler.remember(code, self.name)
            value = self.execute(code, self.name)
            if value is not None and os.getpid() == self._pid:
                self._keep(value)
                self._text = self._display.result(value)
        except BaseException as error:
            failure: BaseException | None = error
        else:
            failure = None
        if os.getpid() == self._pid:
            if isinstance(failure, KeyboardInterrupt):  # somebody waits for it to end
                self.outputs.dropped += self._pictures.close()
            else:
                self._pictures.show_open()
        return failure

    def execute(self, text: str, name: str, *, line: int = 0) -> Any:
        """Runs it in the namespace; the last expression's value. Also what magics call."""
        code, valued = self._compiler.compile(text, name, line=line)
        if code.co_flags & cells.COROUTINE:
            self._loop.run(eval(code, self.namespace))
        else:
            exec(code, self.namespace)
        return self.namespace.pop(cells.VALUE, None) if valued else None

    def _keep(self, value: object) -> None:
        """As `_`, unless the code uses that name for something else."""
        if self.namespace.get("_", self._last) is self._last:
            self.namespace["_"] = self._last = value

    def _end_copy(self, failure: BaseException | None) -> None:
        """The code forked, and its child has come to the end of the code: there it ends."""
        status = 0
        if isinstance(failure, SystemExit):
            status = ending.exit_status(failure.code)
        elif failure is not None:
            failures.tell(failure, self.streams)
            status = 1
        ending.leave(ending.finish(status, len(sys.modules)) & 0xFF)
