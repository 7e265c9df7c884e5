"""How Python code ends: its exit status, its last words, and what an interpreter does at shutdown.

A fork of a warm interpreter does not tear down what that interpreter brought along: it would take
longer than most programs run. What a program can see of a shutdown happens here, in the same order.
The functions that decide the exit status are taken when this module is loaded, so that code which
patches `os` or `sys` later cannot turn its own failure into a success.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import signal
import sys
import threading
import traceback
import weakref
from itertools import islice

from .forking import REPORT_BYTES
from .reporting import OwnModulesFirst

leave = os._exit
_getpid = os.getpid
_kill = os.kill
_run_exit_functions = atexit._run_exitfuncs
_collect = gc.collect
_objects = gc.get_objects
_display = sys.__excepthook__
_format_exception = traceback.format_exception
_dumps = json.dumps


def exit_status(code: object) -> int:
    """What `sys.exit(code)` means."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 255
    try:
        sys.stdout.flush()
        print(code, file=sys.stderr)
    except BaseException:
        pass
    return 1


def uncaught(error: BaseException, report: object) -> int:
    """Shows and reports the exception that ended the code; a negative status is a signal."""
    trace = error.__traceback__
    error.__traceback__ = trace.tb_next if trace else None  # the frame above is ours
    try:
        sys.stdout.flush()
    except BaseException:
        pass
    try:
        show(error)
        with OwnModulesFirst():
            _write_report(error, report)
    except BaseException:
        pass
    if isinstance(error, KeyboardInterrupt):
        return -signal.SIGINT
    return 1


def show(error: BaseException) -> None:
    """As the interpreter does, with the words it has for a hook that fails."""
    if sys.excepthook is _display:
        _show_by_default(error)
        return
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as worse:
        trace = worse.__traceback__
        worse.__traceback__ = trace.tb_next if trace else None
        worse.__context__ = None
        print("Error in sys.excepthook:", file=sys.stderr)
        _show_by_default(worse)
        print("\nOriginal exception was:", file=sys.stderr)
        _show_by_default(error)


def _show_by_default(error: BaseException) -> None:
    with OwnModulesFirst():
        _display(type(error), error, error.__traceback__)


def name_of(error: BaseException) -> str:
    """MemoryError is the interpreter's own, which is a verdict; never the code's of that name."""
    name = type(error).__name__[:200]
    forged = name == "MemoryError" and not isinstance(error, MemoryError)
    return "__main__." + name if forged else name


def _write_report(error: BaseException, report: object) -> None:
    text = "".join(_format_exception(type(error), error, error.__traceback__))
    try:
        message = str(error)
    except BaseException:
        message = "<the message could not be made>"
    limit = REPORT_BYTES // 8  # JSON may need six bytes for a character
    content = {
        "name": name_of(error),
        "message": message[: limit // 4],
        "traceback": text[-limit:],
    }
    data = _dumps(content).encode()[: REPORT_BYTES - 4]
    report[4 : 4 + len(data)] = data  # type: ignore[index]
    report[:4] = len(data).to_bytes(4, "big")  # type: ignore[index]


def finish(status: int, known: int) -> int:
    """Shuts down; returns the status to leave with. `known`: how many modules there were before."""
    for step in (threading._shutdown, _run_exit_functions):  # type: ignore[attr-defined]
        try:
            step()
        except BaseException:
            with OwnModulesFirst():
                traceback.print_exc()
    flush_files()  # before the collector, which may close a file before its buffer is written
    if _drop_modules(known):
        flush_files()
    failed = False
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except BaseException as error:
            failed = stream is sys.stdout or failed
            _tell("%s\n%s: %s\n" % (_ignored(stream), type(error).__name__, error))
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        _kill(_getpid(), -status)
    return 120 if failed and status == 0 else status


def _ignored(stream: object) -> str:
    """What this version of the interpreter says of a stream that it could not flush."""
    if sys.version_info < (3, 13):
        return "Exception ignored in: %r" % stream
    return "Exception ignored %s flushing sys.%s:" % (
        "on" if sys.version_info < (3, 14) else "while",
        "stdout" if stream is sys.stdout else "stderr",
    )


def _tell(text: str) -> None:
    try:
        os.write(2, text.encode("utf-8", "backslashreplace"))
    except BaseException:
        pass


def _drop_modules(known: int) -> bool:
    """The code's own modules go as in a real shutdown: first let go of and collected, so that
    `__del__` still finds its globals; only what survives (then True) is cleared by force."""
    dropped = []
    try:
        for name in ["__main__", *_own_modules(known)]:
            dropped.append(weakref.ref(sys.modules.pop(name)))
        collect()
        survivors = [module for module in (reference() for reference in dropped) if module]
        for module in survivors:
            clear(module)
        if survivors:
            collect()
        return bool(survivors)
    except BaseException:
        return True


def _own_modules(known: int) -> list[str]:
    """Modules that the code brought along, as against those of the installed packages."""
    own = os.path.dirname(str(sys.argv[0])) + "/" if sys.argv else "/"
    # From the end: touching every module would copy a page of memory for most of them.
    late = list(islice(reversed(sys.modules), max(0, len(sys.modules) - known)))
    return [n for n in late if str(getattr(sys.modules[n], "__file__", "")).startswith(own)]


def collect() -> None:
    try:
        _collect()
    except BaseException:
        pass


def clear(module: object) -> None:
    """Private names first, as the interpreter does."""
    names = module.__dict__
    for private in (True, False):
        for name in list(names):
            if name != "__builtins__" and name.startswith("_") is private:
                names[name] = None


def flush_files() -> None:
    """Files that were left open would be flushed by the destructors that are skipped here."""
    writers = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    for item in _objects():
        try:
            if isinstance(item, writers) and not item.closed:
                item.flush()
        except BaseException:
            pass
