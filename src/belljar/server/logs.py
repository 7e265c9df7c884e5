"""Structured logs: one line of JSON per event, with the request's id. Never code, keys, queries.

Libraries know no such rule: at their lower levels they write down headers, queries and messages.
So of theirs only warnings come through, whatever the level, and without the values in them.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from typing import Any, TextIO, cast

import structlog


class Stderr:
    """Where the log goes. A disk that is full, or a reader that has gone, loses lines of the log,
    and no request fails because of it."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            return sys.stderr.write(text)
        return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()


OURS = "belljar"
OUTSIDERS_PER_S = 20


class Trickle:
    """For lines that anybody can cause: so many in a second, and of the rest their number."""

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._second = 0
        self._count = 0

    def skipped(self) -> int | None:
        """None if this one is not written; else how many were not, before it."""
        second = int(time.monotonic())
        before = 0
        if second != self._second:
            before, self._second = max(0, self._count - self._per_s), second
            self._count = 0
        self._count += 1
        return before if self._count <= self._per_s else None


class Outsiders(logging.Filter):
    """For records that are not ours. Some are written for each request that is none."""

    def __init__(self) -> None:
        super().__init__()
        self._trickle = Trickle(OUTSIDERS_PER_S)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == OURS or record.name.startswith(OURS + "."):
            return True
        if record.levelno < logging.WARNING:
            return False
        record.args = None  # a method's or a session's name, a path: all of them a client's words
        return self._trickle.skipped() is not None


def configure(*, form: str, level: str) -> None:
    """For this process: our own events, and those of the libraries below us."""
    stream = Stderr()
    number = getattr(logging, level.upper())
    shared: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    render: Any = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, stream)),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
        )
    )
    handler.addFilter(Outsiders())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(number, logging.WARNING))
    logging.getLogger(OURS).setLevel(number)
    # It names every request with its query, where a token may be.
    logging.getLogger("uvicorn.access").handlers[:] = []
    logging.getLogger("uvicorn.access").propagate = False
