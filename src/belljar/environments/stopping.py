"""Ending builds that nobody waits for any more.

A build works in a thread and waits for other programs. Nothing can interrupt a thread, so it looks
at what it waits for in short turns, and asks here in between.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from belljar.errors import EnvironmentUnavailable

LOOK_S = 0.25
_here = threading.local()


@contextlib.contextmanager
def when(stop: threading.Event) -> Iterator[None]:
    """What this thread builds meanwhile ends once `stop` is set."""
    _here.stop = stop
    try:
        yield
    finally:
        del _here.stop


def check() -> None:
    stop = getattr(_here, "stop", None)
    if stop is not None and stop.is_set():
        raise EnvironmentUnavailable("the build was stopped: nobody waits for it", hint="try again")
