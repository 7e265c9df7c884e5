"""The first program of CPython in WebAssembly: warms up, waits for its order, becomes the code.

Run once per zygote as `python -c`. Its standard input is its order, and writing there its report
(cpython.py). The first read does not return there: the zygote
forks inside that call, and each sandbox returns from it with an order of its own.
"""

# ruff: noqa: E402, F401
import sys

AT_START = frozenset(sys.modules)
sys.dont_write_bytecode = True

import asyncio.selector_events
import atexit
import base64
import bisect
import calendar
import collections
import copy
import csv
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import gc
import hashlib
import heapq
import io
import itertools
import json
import math
import operator
import os
import pathlib
import random
import re
import statistics
import string
import struct
import textwrap
import time
import traceback
import types
import typing
import uuid
import warnings
import weakref

CONTROL = 0
REPORT_CHARACTERS = 8192


_exit, _write, _dumps = os._exit, os.write, json.dumps
_form, _collect, _objects = traceback.format_exception, gc.collect, gc.get_objects
_run_exit_functions = atexit._run_exitfuncs


def _loops_without_sockets() -> None:
    """An event loop wakes itself through a pair of sockets when another thread calls. Here are
    neither sockets nor threads, and timers and tasks work as well without."""

    def make(loop: object) -> None:
        loop._ssock = loop._csock = None  # type: ignore[attr-defined]
        loop._internal_fds = 0  # type: ignore[attr-defined]

    base = asyncio.selector_events.BaseSelectorEventLoop
    base._make_self_pipe = make  # type: ignore[attr-defined]
    base._close_self_pipe = lambda loop: None  # type: ignore[attr-defined]
    base._write_to_self = lambda loop: None  # type: ignore[attr-defined]


_loops_without_sockets()


def _message() -> dict:  # type: ignore[type-arg]
    pieces = []
    while piece := os.read(CONTROL, 65536):
        pieces.append(piece)
    return json.loads(b"".join(pieces))  # type: ignore[no-any-return]


def _become(order: dict) -> None:  # type: ignore[type-arg]
    path = order["path"]
    os.environ.clear()
    os.environ.update(order["env"])
    folder = os.path.dirname(path)
    os.chdir(folder)
    _make_room(folder)
    random.seed(int.from_bytes(os.urandom(32), "big"))
    uuid._last_timestamp = None  # type: ignore[attr-defined]
    sys.argv = [path]
    sys.orig_argv = [sys.executable or "python3", path]
    sys.path[:] = [folder, *(entry for entry in sys.path if entry)]
    _processor_time()
    known = len(sys.modules)
    status = _run(path)
    _exit(_finish(status, known))


def _run(path: str) -> int:
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=__builtins__, __cached__=None)
    main.__annotations__ = {}
    sys.modules["__main__"] = main
    try:
        with open(path, "rb") as file:
            source = file.read()
        exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as leave:
        return _exit_status(leave.code)
    except BaseException as error:
        trace = error.__traceback__
        error.__traceback__ = trace.tb_next if trace else None
        _tell(error)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _processor_time() -> None:
    """In this build `time.process_time` takes nanoseconds for hundredths of a second."""
    raw = time.process_time
    start = raw()
    time.process_time = lambda: (raw() - start) / 1e7
    time.process_time_ns = lambda: int((raw() - start) * 100)


def _exit_status(code: object) -> int:
    """What `sys.exit(code)` means."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    try:
        sys.stdout.flush()
        print(code, file=sys.stderr)
    except BaseException:
        pass
    return 1


def _tell(error: BaseException) -> None:
    """Shows the exception as the interpreter would, and reports it to the host."""
    try:
        sys.stdout.flush()
    except BaseException:
        pass
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException:
        traceback.print_exc()
    try:
        message = str(error)
    except BaseException:
        message = "<the message could not be made>"
    try:
        text = "".join(_form(type(error), error, error.__traceback__))
        name = type(error).__name__[:200]
        if name == "MemoryError" and not isinstance(error, MemoryError):
            name = "__main__." + name  # the interpreter's own is a verdict
        report = {
            "name": name,
            "message": message[: REPORT_CHARACTERS // 4],
            "traceback": text[-REPORT_CHARACTERS:],
        }
        _write(CONTROL, _dumps(report).encode())
    except BaseException:
        pass


def _make_room(folder: str) -> None:
    """A caller's own module goes before one of the same name that was imported ahead."""
    for entry in os.listdir(folder):
        name = entry[:-3] if entry.endswith(".py") else entry
        if name in sys.modules and name not in AT_START:
            for loaded in [n for n in sys.modules if n == name or n.startswith(name + ".")]:
                del sys.modules[loaded]


def _finish(status: int, known: int) -> int:
    """What a program can see of a shutdown. A real one would also take down everything that was
    imported ahead, which takes five times as long as a short program."""
    try:
        _run_exit_functions()
    except BaseException:
        traceback.print_exc()
    _flush_files()
    _drop_modules(known)
    _flush_files()
    failed = False
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except BaseException:
            failed = stream is sys.stdout or failed
    return 120 if failed and status == 0 else status


def _drop_modules(known: int) -> None:
    """The code's own modules: let go of and collected, so that `__del__` finds its globals; what
    survives is cleared by force."""
    try:
        own = os.path.dirname(sys.argv[0]) + "/"
        late = list(itertools.islice(reversed(sys.modules), max(0, len(sys.modules) - known)))
        names = [n for n in late if str(getattr(sys.modules[n], "__file__", "")).startswith(own)]
        own_names = dict.fromkeys(["__main__", *names])
        dropped = [weakref.ref(sys.modules.pop(name)) for name in own_names]
        _collect()
        for module in [module for module in (ref() for ref in dropped) if module]:
            for name in list(module.__dict__):
                if name != "__builtins__":
                    module.__dict__[name] = None
        _collect()
    except BaseException:
        pass


def _flush_files() -> None:
    writers = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    for item in _objects():
        try:
            if isinstance(item, writers) and not item.closed:
                item.flush()
        except BaseException:
            pass


def _rehearse() -> None:
    """A small program, in a sandbox that has time: the memory that every program writes to first is
    no longer shared with the zygote afterwards, and need not be copied while somebody waits."""
    program = "import math\nx = [1, 2]\ndef f(n):\n    return [n, str(n)]\nprint(f(x), file=out)\n"
    with open("/dev/null", "w") as out, open("/dev/null", "rb") as source:
        source.read()
        main = types.ModuleType("__main__")
        main.out = out  # type: ignore[attr-defined]
        exec(compile(program, "/workspace/main.py", "exec", dont_inherit=True), main.__dict__)
    os.environ.update(os.environ)
    _make_room("/workspace")
    random.seed()
    _flush_files()
    _collect()


gc.collect()
gc.freeze()
if _message()["rehearse"]:
    _rehearse()
_become(_message())
