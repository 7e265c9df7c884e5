"""Who may have how much: tenants, their quotas, and what they have used."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from belljar.errors import InvalidRequest, LimitExceeded
from belljar.model import GIB, Limits
from belljar.network import patterns, rules
from belljar.policy.limits import BOUNDS
from belljar.policy.network import check_inside
from belljar.server.errors import ApiError

DAY_S = 86_400
MINUTE_S = 60.0
MOST_TOLD = 100_000
"""Runs of a minute that are remembered of a tenant without `runs_per_minute`."""
Count = Annotated[int, Field(ge=0, le=2**53)]


class Quotas(BaseModel):
    """What one tenant may have at most; 0 and empty mean: no bound of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    runs_at_once: Count = 0
    """Runs under way; further ones wait in the tenant's queue."""
    queue: Annotated[int, Field(ge=0, le=100_000)] = 100
    """Runs that may wait; then 429."""
    runs_per_minute: Count = 0
    cpu_s_per_day: Count = 0
    """CPU seconds of all runs of a day (UTC)."""
    memory_bytes: Count = 0
    """Of all runs and sandboxes at once, by their limits."""
    disk_bytes: Count = 0
    """The same for disk."""
    sandboxes: Count = 20
    """Kept sandboxes at once."""
    dataset_bytes: Count = 10 * GIB
    """Of all datasets."""
    layers_bytes: Count = 5 * GIB
    """Of the sets of packages that were built for it."""
    engines: tuple[str, ...] = ()
    """The walls it may choose; "auto" is then the first of them."""
    network_allowed: tuple[str, ...] | None = None
    """Hosts that it may ask for, within the operator's; null: those, empty: none."""
    maxima: Mapping[str, float] = Field(default_factory=dict)
    """Limit → the most that it may ask for, below the operator's own maxima."""

    @field_validator("maxima")
    @classmethod
    def _limits(cls, value: Mapping[str, float]) -> Mapping[str, float]:
        for name, most in value.items():
            if name not in BOUNDS:
                raise ValueError(f"{name!r} is no limit; limits: {', '.join(BOUNDS)}")
            if not math.isfinite(most) or most < BOUNDS[name].least:
                raise ValueError(f"{name}: at least {BOUNDS[name].least}")
        return value

    @field_validator("network_allowed")
    @classmethod
    def _hosts(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        try:
            return patterns(value) if value else value
        except InvalidRequest as error:
            raise ValueError(error.message) from None


class OutOfCpu(ApiError):
    """Nothing is left of the day's CPU seconds."""

    def __init__(self, most_s: int, now: float, *, meanwhile: bool = False) -> None:
        super().__init__(
            "quota_exceeded",
            f"the {most_s} CPU seconds of today are used up"
            + (": the run was ended" if meanwhile else ""),
            hint="the next day begins at 00:00 UTC",
            retry_after_s=None if meanwhile else math.ceil(DAY_S - now % DAY_S),
        )
        if meanwhile:
            self.retryable = False  # what it did until then it would do twice


class Tenant:
    """One tenant while the server lives: its quotas and what it has used of them."""

    def __init__(self, name: str, quotas: Quotas) -> None:
        self.name = name
        self.quotas = quotas
        self.runs = 0
        """Since the server started."""
        self.quotas_unread = False
        """What its quotas are cannot be read: nothing new is begun, what is under way keeps those
        that were last known."""
        self._starts: deque[float] = deque()
        """By a clock that nobody sets."""
        self._day = 0
        self._cpu_s = 0.0
        """Of the day, by all servers that share their state, as it was last written and read."""
        self._unsaved_s: dict[int, float] = {}
        """By day."""

    def options(self, asked: Mapping[str, Any], defaults: Limits) -> dict[str, Any]:
        """The options of a run as this tenant may have them, or InvalidRequest.

        Not asked for means the operator's default, or the tenant's own maximum if that is less."""
        chosen = dict(asked)
        for name, most in self.quotas.maxima.items():
            value = chosen.get(name)
            if value is None:
                chosen[name] = _whole(name, min(most, getattr(defaults, name)))
            elif value > most:
                raise LimitExceeded(
                    f"limits.{name}: {value} is above this key's maximum of {most:g}",
                    hint="the operator sets it with: belljar keys quotas",
                )
        self.check_network(chosen.get("network"))
        if allowed := self.quotas.engines:
            if chosen.get("need"):
                raise InvalidRequest(
                    "need: this key is bound to engines", hint=f"name one: {', '.join(allowed)}"
                )
            if chosen.get("engine", "auto") == "auto":
                chosen["engine"] = allowed[0]
            elif chosen["engine"] not in allowed:
                raise InvalidRequest(
                    f"engine: this key may not use {chosen['engine']!r}",
                    hint=f"allowed: {', '.join(allowed)}",
                )
        return chosen

    def check_network(self, asked: object) -> None:
        """Whether these rules are inside its own maximum; policy looks at the operator's."""
        if asked and self.quotas.network_allowed is not None:
            check_inside(
                rules(asked),
                self.quotas.network_allowed,
                setting="quotas.network_allowed",
                whose="this key's quota",
            )

    def maximum_s(self, maxima: Limits) -> float:
        """The most time of one run, by the operator's maxima and its own."""
        return min(maxima.timeout_s, self.quotas.maxima.get("timeout_s", maxima.timeout_s))

    def start(self, number: int = 1, *, runs: bool = True) -> None:
        """Counts a run, or so many, or refuses them. `runs`: whether they are told as such; what is
        refused for its form counts against the quota all the same."""
        self.check()
        if self.out_of_cpu():
            raise OutOfCpu(self.quotas.cpu_s_per_day, time.time())
        now = time.monotonic()
        starts = self._starts
        most = self.quotas.runs_per_minute
        while starts and (starts[0] <= now - MINUTE_S or (not most and len(starts) > MOST_TOLD)):
            starts.popleft()
        if most and len(starts) + number > most:
            raise ApiError(
                "quota_exceeded",
                f"{most} runs per minute are this key's quota",
                hint="wait as long as Retry-After says"
                if number <= most
                else f"{number} at once are more than that: ask for fewer",
                retry_after_s=max(1, math.ceil(_free_at(starts, most - number) + MINUTE_S - now)),
            )
        starts.extend([now] * number)
        self.runs += number if runs else 0

    def check(self) -> None:
        """Whether it may begin anything."""
        if self.quotas_unread:
            raise ApiError(
                "quota_exceeded",
                "this server cannot read this key's quotas, so nothing is begun for it",
                hint="the operator can set them again, or use the version that wrote them",
                retry_after_s=60,
            )

    def out_of_cpu(self) -> bool:
        most = self.quotas.cpu_s_per_day
        return bool(most) and self.cpu_s() >= most

    def used(self, cpu_ms: float) -> None:
        self.cpu_s()
        self._unsaved_s[self._day] = self._unsaved_s.get(self._day, 0.0) + cpu_ms / 1000

    def cpu_s(self) -> float:
        """CPU seconds used today."""
        day = today()
        if day != self._day:
            self._day, self._cpu_s = day, 0.0
        return self._cpu_s + self._unsaved_s.get(day, 0.0)

    def unsaved_s(self) -> dict[int, float]:
        """What is still to be added to the sums in the server's state, by day: also to those of
        days that are over."""
        return {day: cpu_s for day, cpu_s in self._unsaved_s.items() if cpu_s}

    def saved(self, day: int, cpu_s: float) -> None:
        """So much of it was added there; below 0: it was not, after all."""
        left_s = max(0.0, self._unsaved_s.pop(day, 0.0) - cpu_s)
        if left_s:
            self._unsaved_s[day] = left_s
        if day == self._day:
            self._cpu_s += cpu_s

    def recall(self, day: int, cpu_s: float) -> None:
        """What the state says: what earlier servers have counted, and others beside this one."""
        self.cpu_s()
        if day == self._day:
            self._cpu_s = cpu_s

    def runs_last_minute(self) -> int:
        since = time.monotonic() - MINUTE_S
        while self._starts and self._starts[0] <= since:
            self._starts.popleft()
        return len(self._starts)


def today() -> int:
    """As a number, in UTC."""
    return int(time.time() // DAY_S)


def _free_at(starts: deque[float], left: int) -> float:
    """When the start was after whose minute no more than `left` are in it."""
    return starts[max(0, len(starts) - 1 - max(0, left))] if starts else time.monotonic()


def _whole(name: str, value: float) -> float:
    return int(value) if BOUNDS[name].whole else value
