"""How an exception that ended a run is shown and told: like a script's, without our own frames."""

from __future__ import annotations

import os
import sys
import traceback
import types
from typing import Any

from . import ending
from .plain import cut
from .reporting import OwnModulesFirst
from .streams import Streams

MESSAGE_CHARS = 8 * 1024
TRACEBACK_CHARS = 32 * 1024
_CHAIN = 50
_OWN = __name__.rpartition(".")[0] + "."

_format_exception = traceback.format_exception
_default_hook = sys.__excepthook__


def tell(error: BaseException, streams: Streams) -> dict[str, str]:
    """Prints the traceback and returns it, bounded, with the exception's name and message."""
    _hide_our_frames(error)
    try:
        with OwnModulesFirst():
            text = "".join(_format_exception(type(error), error, error.__traceback__))
    except Exception:  # no memory, or a recursion limit of ten
        text = "%s\n(the traceback could not be made)\n" % type(error).__name__
    streams.flush()
    if sys.excepthook is _default_hook:
        streams.complain(text)
    else:
        try:
            ending.show(error)
        except Exception:
            streams.complain(text)
    return {
        "name": ending.name_of(error),
        "message": cut(_message(error), MESSAGE_CHARS),
        "traceback": cut(text, TRACEBACK_CHARS),
    }


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<the message could not be made>"


def _hide_our_frames(error: BaseException) -> None:
    seen: set[int] = set()
    waiting: list[Any] = [error]
    while waiting and len(seen) < _CHAIN:
        current = waiting.pop()
        if not isinstance(current, BaseException) or id(current) in seen:
            continue
        seen.add(id(current))
        current.__traceback__ = _without_ours(current.__traceback__)
        waiting += [current.__cause__, current.__context__]


def _without_ours(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Ours, and those of the event loop between ours and the code's. Frames of one kind can be
    thousands: they are walked through, not recursed into."""
    kept: list[types.TracebackType] = []
    above_code = trace is not None and _is_ours(trace)
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        above_code = above_code and (_is_ours(trace) or _is_loop(name))
        if not above_code and not _is_ours(trace):
            kept.append(trace)
        trace = trace.tb_next
    following = None
    for here in reversed(kept):
        here.tb_next = following
        following = here
    return following


def _is_ours(trace: types.TracebackType) -> bool:
    """By the module, whose name stays when the path in the code is taken away (see zygote)."""
    return str(trace.tb_frame.f_globals.get("__name__")).startswith(_OWN)


def _is_loop(name: str) -> bool:
    return os.path.basename(os.path.dirname(name)) == "asyncio"
