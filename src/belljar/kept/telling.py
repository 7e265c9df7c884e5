"""What a guest told about a run, read as what it is: words of somebody who may lie."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from belljar.engines.base import Seen
from belljar.holding import Held
from belljar.kept import outputs
from belljar.model import Dropped, ErrorInfo, Result, Status, Usage
from belljar.runtimes.guest import protocol

TEXT_BYTES = 64 * 1024
"""Of an error's name, message and traceback, each."""


def make_result(held: Held, told: Mapping[str, Any], *, run_id: int) -> Result:
    seen = held.conversation.wall.look()
    lost = told.get("lost") is True
    used = told.get("used")
    exit_code = told.get("exit_code")
    error = uncaught(told)
    warnings = list(held.warnings)
    if hint := held.packages.hint(error):
        warnings.append(hint)
    if told["lost_outputs"]:
        warnings.append(f"{told['lost_outputs']} outputs were too many or too large")
    return Result(
        status=judge(told, out_of_memory=lost and out_of_memory(used, seen)),
        exit_code=exit_code if type(exit_code) is int and 0 <= exit_code < 256 else None,
        signal=whole(told.get("signal")) or None,
        stdout=text(told, 1),
        stderr=text(told, 2),
        dropped=dropped(told),
        error=error,
        duration_ms=told["duration_ms"],
        usage=usage(used, seen),
        execution_id=secrets.token_hex(16),
        language=held.request.language,
        environment=held.ground.name,
        engine=held.engine.name,
        engine_reason=held.reason,
        isolation=held.conversation.isolation,
        warnings=tuple(warnings),
        value=value(told),
        outputs=told["outputs"],
        run_id=run_id,
        state_kept=not lost,
    )


def judge(told: Mapping[str, Any], *, out_of_memory: bool) -> Status:
    """The kernel's word goes before the guest's."""
    error = uncaught(told)
    if out_of_memory or (error and error.name == "MemoryError"):
        return "out_of_memory"
    if told["timed_out"]:
        return "timeout"
    if told.get("signal"):
        return "killed"
    if told.get("status") == "ok" or told.get("exit_code") == 0:
        return "ok"
    return "error"


def text(told: Mapping[str, Any], stream: int) -> str:
    head, tail = bytes(told["head"][stream]), bytes(told["tail"][stream])
    missing = dropped(told)
    count = missing.stdout if stream == 1 else missing.stderr
    mark = b"\n[belljar: %d bytes dropped here]\n" % count if count else b""
    return (head + mark + tail).decode("utf-8", "replace")


def dropped(told: Mapping[str, Any]) -> Dropped:
    counts = told.get("dropped")
    if not isinstance(counts, dict):
        return Dropped()
    return Dropped(stdout=whole(counts.get("1")), stderr=whole(counts.get("2")))


def usage(used: object, seen: Seen | None = None) -> Usage:
    """What the wall saw; what it cannot see, as the agent told it."""
    told = used if isinstance(used, dict) else {}
    if seen is None:
        return Usage(
            cpu_ms=whole(told.get("cpu_ms")),
            peak_memory_bytes=whole(told.get("peak_memory_bytes")),
            peak_processes=whole(told.get("peak_processes")),
        )
    if seen.usage.peak_processes:
        return seen.usage
    return replace(seen.usage, peak_processes=whole(told.get("peak_processes")))


def out_of_memory(used: object, seen: Seen | None) -> bool:
    """Of the whole sandbox; whether that is why the run ended is another question."""
    told = isinstance(used, dict) and used.get("out_of_memory") is True
    return told or bool(seen and seen.out_of_memory)


def whole(value: object) -> int:
    return value if type(value) is int and 0 <= value < 1 << 62 else 0


def uncaught(told: Mapping[str, Any]) -> ErrorInfo | None:
    if told.get("error") is not True:
        return None
    texts = told["texts"]
    parts = {
        part: outputs.decoded(bytes(texts.get(stream, b"")))
        for stream, part in protocol.ERROR_TEXTS.items()
    }
    return ErrorInfo(**parts)


def value(told: Mapping[str, Any]) -> str | None:
    """The last expression."""
    if told.get("valued") is not True:
        return None
    return outputs.decoded(bytes(told["texts"].get(protocol.Stream.VALUE, b"")))
