"""What is seen of a run while it runs (L6, L7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from belljar.model import Output, Result, Usage


@dataclass(frozen=True, kw_only=True)
class Printed:
    stream: str
    """stdout or stderr"""
    data: bytes


@dataclass(frozen=True, kw_only=True)
class Shown:
    output: Output


@dataclass(frozen=True, kw_only=True)
class Used:
    usage: Usage


@dataclass(frozen=True, kw_only=True)
class Progress:
    fraction: float
    message: str


@dataclass(frozen=True, kw_only=True)
class Ended:
    result: Result


Event = Printed | Shown | Used | Progress | Ended


def telling(on_usage: Callable[[Usage], None]) -> Callable[[Event], None]:
    """For whoever wants to hear of that alone."""

    def on_event(event: Event) -> None:
        if isinstance(event, Used):
            on_usage(event.usage)

    return on_event
