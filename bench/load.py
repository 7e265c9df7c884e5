"""Sustained load: so many callers, each asking again as soon as it has its answer."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from belljar import Belljar
from bench.contenders import Code
from bench.timing import percentile


@dataclass(frozen=True, kw_only=True)
class Load:
    group: str
    callers: int
    seconds: float
    runs: int
    failures: int
    first_failure: str
    p50_ms: float | None
    p99_ms: float | None

    @property
    def per_second(self) -> float:
        return self.runs / self.seconds


def sustain(jar: Belljar, code: Code, *, callers: int, seconds: float) -> Load:
    """Threads on one Belljar. A run counts if it ended in time and printed the right thing."""
    samples: list[list[float]] = [[] for _ in range(callers)]
    failures: list[str] = []
    start = threading.Barrier(callers + 1)
    deadline = [0.0]

    def caller(mine: list[float]) -> None:
        start.wait()
        while (began := time.perf_counter()) < deadline[0]:
            try:
                result = jar.run(code.text, environment=code.environment)
                if result.stdout != "1\n" or not result.success:
                    raise RuntimeError(f"{result.status}: {result.stderr[-200:]}")
            except Exception as error:
                failures.append(f"{type(error).__name__}: {error}")
                time.sleep(0.05)  # a failure that comes at once must not become a busy loop
            else:
                if (ended := time.perf_counter()) < deadline[0]:
                    mine.append((ended - began) * 1000)

    jar.warm(code.environment, jar.settings.pool_size)
    threads = [threading.Thread(target=caller, args=(mine,)) for mine in samples]
    for thread in threads:
        thread.start()
    deadline[0] = time.perf_counter() + seconds
    start.wait()
    for thread in threads:
        thread.join()
    taken = [sample for mine in samples for sample in mine]
    return Load(
        group=code.group,
        callers=callers,
        seconds=seconds,
        runs=len(taken),
        failures=len(failures),
        first_failure=failures[0][:300] if failures else "",
        p50_ms=percentile(taken, 50) if taken else None,
        p99_ms=percentile(taken, 99) if taken else None,
    )
