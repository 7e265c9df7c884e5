"""Samples, and what is said about them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Contender:
    """One way of running the same code, measured in turns with the others."""

    name: str
    group: str
    """The code that is run: contenders of one group are compared with each other."""
    once: Callable[[], None]
    """Runs the code, waits for its output and raises if that is not what it should be."""
    settle: Callable[[], None] = lambda: None
    """Called before each turn, not measured: brings back the state an idle machine is in."""
    burst: int = 1
    """Measurements per turn, without a pause between them."""
    every: int = 1
    """Takes part in every n-th round only: for what is slow and steady."""
    samples_ms: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def turn(self) -> None:
        self.settle()
        for _ in range(self.burst):
            started = time.perf_counter()
            try:
                self.once()
            except Exception as error:
                self.failures.append(f"{type(error).__name__}: {error}"[:300])
            else:
                self.samples_ms.append((time.perf_counter() - started) * 1000)


@dataclass(frozen=True, kw_only=True)
class Absent:
    """A contender that is not on this machine."""

    name: str
    group: str
    why: str


def percentile(samples: Sequence[float], share: float) -> float:
    """The nearest-rank percentile: always a value that was really measured."""
    ordered = sorted(samples)
    rank = max(1, -(-len(ordered) * share // 100))
    return ordered[int(rank) - 1]


def in_turns(contenders: Sequence[Contender], rounds: Iterable[int]) -> None:
    """A B C, A B C, …: what disturbs the machine disturbs all of them alike."""
    for contender in contenders:
        contender.settle()
        contender.once()  # the first time pays for cold files and for starting zygotes
    for number in rounds:
        for contender in contenders:
            if number % contender.every == 0:
                contender.turn()
