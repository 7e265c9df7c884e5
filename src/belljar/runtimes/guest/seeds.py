"""New seeds for whatever would draw the same random numbers in two copies of one process.

The hash seed and the address layout cannot be changed in a running process: `fresh_exec`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

_RENEWING: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("RAND_poll", ()),  # OpenSSL and its descendants
    ("sqlite3_randomness", (0, None)),
)
"""Functions by which libraries of C take a new seed, now or when they next need one. OpenSSL would
do so by itself in a process of another pid, and so do many others; SQLite never does."""


def renew() -> None:
    """What Python's own modules hold."""
    if "random" in sys.modules:
        sys.modules["random"].seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "multiprocessing.process" in sys.modules:
        process = sys.modules["multiprocessing.process"].current_process()
        process.authkey = os.urandom(32)
    if "uuid" in sys.modules:
        sys.modules["uuid"]._last_timestamp = None  # type: ignore[attr-defined]
    if "tempfile" in sys.modules:
        sys.modules["tempfile"]._name_sequence = None  # type: ignore[attr-defined]


def renew_libraries() -> None:
    """What libraries of C hold. For copies that may have the pid of their original."""
    import ctypes  # not every process that loads this comes here

    called = set()
    for library in _loaded():
        for name, arguments in _RENEWING:
            function = getattr(library, name, None)
            if function is None:
                continue
            address = ctypes.cast(function, ctypes.c_void_p).value
            if address not in called:
                called.add(address)
                function(*arguments)
    uuid: Any = sys.modules.get("uuid")
    if hasattr(uuid, "_random_getnode"):
        # libuuid keeps its node and sequence to itself; Python has a uuid1() of its own.
        uuid._node = uuid._random_getnode()
        uuid._generate_time_safe = None


def _loaded() -> Iterator[Any]:
    import ctypes

    yield ctypes.CDLL(None)
    with open("/proc/self/maps", errors="surrogateescape") as file:
        lines = [line for line in file if " r-xp " in line and ".so" in line]
    for path in sorted({line[line.index("/") :].rstrip("\n") for line in lines if "/" in line}):
        try:
            yield ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        except OSError:
            continue  # it was removed, or is mapped without being loaded
