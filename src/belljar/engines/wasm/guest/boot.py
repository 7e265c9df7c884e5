"""The first program of CPython in WebAssembly: warms up, waits for its order, becomes the code.

Run once per zygote as `python -c`. Its standard input is its order, and writing there its report
(cpython.py). The first read does not return there: the zygote
forks inside that call, and each sandbox returns from it with an order of its own.
"""

# ruff: noqa: E402, F401
import sys

AT_START = frozenset(sys.modules)
sys.dont_write_bytecode = True

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

CONTROL = 0
REPORT_CHARACTERS = 8192


def _order():
    pieces = []
    while piece := os.read(CONTROL, 65536):
        pieces.append(piece)
    return json.loads(b"".join(pieces))


def _become(order, *, read=os.read, write=os.write, dumps=json.dumps, form=traceback.format_exception):
    path = order["path"]
    os.environ.clear()
    os.environ.update(order["env"])
    if "TZ" in order["env"] and hasattr(time, "tzset"):
        time.tzset()
    folder = os.path.dirname(path)
    os.chdir(folder)
    _make_room(folder)
    random.seed()
    uuid._last_timestamp = None
    sys.argv = [path]
    sys.orig_argv = [sys.executable or "python3", path]
    sys.path[:] = [folder, *(entry for entry in sys.path if entry)]
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=__builtins__, __cached__=None)
    main.__annotations__ = {}
    sys.modules["__main__"] = main
    try:
        with open(path, "rb") as file:
            source = file.read()
        exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        error.__traceback__ = trace.tb_next if trace else None
        _tell(error, write, dumps, form)
        raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 1) from None


def _tell(error, write, dumps, form):
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
        text = "".join(form(type(error), error, error.__traceback__))
        report = {
            "name": type(error).__name__[:200],
            "message": message[: REPORT_CHARACTERS // 4],
            "traceback": text[-REPORT_CHARACTERS:],
        }
        write(CONTROL, dumps(report).encode())
    except BaseException:
        pass


def _make_room(folder):
    """A caller's own module goes before one of the same name that was imported ahead."""
    for entry in os.listdir(folder):
        name = entry[:-3] if entry.endswith(".py") else entry
        if name in sys.modules and name not in AT_START:
            for loaded in [n for n in sys.modules if n == name or n.startswith(name + ".")]:
                del sys.modules[loaded]


_become(_order())
