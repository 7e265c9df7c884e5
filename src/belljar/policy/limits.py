"""Limits (L1-L5): what each may be, below and above."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from belljar.errors import InvalidRequest, LimitExceeded
from belljar.model import KIB, MIB, Limits
from belljar.policy.quote import quote, size
from belljar.settings import Settings


@dataclass(frozen=True)
class Bound:
    """The least a limit may be. The most is the operator's, in `Settings.maxima`."""

    least: float
    why: str
    whole: bool = True


BOUNDS: Mapping[str, Bound] = {
    "timeout_s": Bound(0.01, "a sandbox needs about that long to answer", whole=False),
    "memory_bytes": Bound(MIB, "no program starts in less; each language asks for more"),
    "cpus": Bound(0.01, "the kernel hands out a core in hundredths", whole=False),
    "processes": Bound(1, "the code itself is one"),
    # A tmpfs takes a size or an inode count of 0 for "no limit".
    "disk_bytes": Bound(64 * KIB, "the code itself is a file"),
    "disk_files": Bound(16, "the code and the writable folders take some"),
    "open_files": Bound(16, "an interpreter opens about ten before the first line runs"),
    "output_bytes": Bound(1, "to see nothing, ignore stdout"),
    "result_files": Bound(0, "0 brings no file back"),
    "result_bytes": Bound(0, "0 brings no file back"),
}


def requested_limits(settings: Settings, asked: Mapping[str, object]) -> Limits:
    """The operator's defaults with what the caller asked for put in; None means the default.

    A default above the operator's own maximum is lowered to it, so that a caller who asked for
    nothing is never refused. The values asked for are checked by `check_limits`, not here.
    """
    chosen: dict[str, Any] = {}
    for name in BOUNDS:
        if (value := asked.get(name)) is None:
            value = min(getattr(settings.defaults, name), getattr(settings.maxima, name))
        chosen[name] = value
    if unknown := [name for name in asked if name not in BOUNDS]:
        raise InvalidRequest(
            f"limits: {quote(unknown[0])} is not a limit",
            hint=f"limits: {', '.join(BOUNDS)}",
        )
    return Limits(**chosen)


def check_limits(limits: object, settings: Settings) -> Limits:
    """The same limits with every value in its right type, or LimitExceeded naming the field."""
    if not isinstance(limits, Limits):
        raise InvalidRequest(f"limits: must be Limits, not {quote(limits)}")
    checked: dict[str, Any] = {}
    for name, bound in BOUNDS.items():
        checked[name] = _check(name, bound, getattr(limits, name), getattr(settings.maxima, name))
    return dataclasses.replace(limits, **checked)


def check_minimum(name: str, limits: Limits, least: int, *, who: str) -> None:
    """`who`: a language or an environment; below what it needs it fails, or hangs, before the code
    starts."""
    if (value := getattr(limits, name)) < least:
        raise LimitExceeded(
            f"limits.{name}: {_amount(name, value)} is below what {who} needs",
            hint=f"{who} needs at least {_amount(name, least)}",
        )


def _check(name: str, bound: Bound, given: object, most: float) -> float:
    field = f"limits.{name}"
    value = _number(field, given)
    if value != value:  # math.isnan fails on integers too large for a float
        raise LimitExceeded(f"{field}: NaN is not a limit", hint="give a finite number")
    if value > most:
        raise LimitExceeded(
            f"{field}: {_amount(name, value)} is above the maximum of {_amount(name, most)}",
            hint=f"the maximum is the operator's setting maxima.{name}",
        )
    if value < bound.least:
        raise LimitExceeded(
            f"{field}: {_amount(name, value)} is below the minimum of {_amount(name, bound.least)}",
            hint=bound.why,
        )
    if not bound.whole:
        return float(value)
    if isinstance(value, float) and not value.is_integer():
        raise LimitExceeded(f"{field}: {quote(value)} is not a whole number")
    return int(value)


def _number(field: str, given: object) -> int | float:
    """An int or a float; numbers of other libraries (numpy's) count, bool and text do not."""
    if not isinstance(given, bool):
        if isinstance(given, int | float):
            return given
        try:
            if isinstance(given, numbers.Integral):
                return int(given)
            if isinstance(given, numbers.Real):
                return float(given)
        except (ArithmeticError, TypeError, ValueError):
            pass
    raise LimitExceeded(f"{field}: {quote(given)} is not a number", hint="give an int or a float")


def _amount(name: str, value: float) -> str:
    if name.endswith("_bytes") and isinstance(value, int) and value >= KIB:
        return f"{quote(value)} ({size(value)})"
    return quote(value)
