"""The keyword options of `run`, the same in the synchronous and the asynchronous face."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

from belljar.errors import InvalidRequest
from belljar.model import NOBODY, Caller, FilterMode, LanguageLevel, Need, Request
from belljar.policy.limits import BOUNDS, requested_limits
from belljar.receiver import OnOutput, OnUsage
from belljar.settings import Settings

if TYPE_CHECKING:
    from belljar.network import Allow, Secret


class RunOptions(TypedDict, total=False):
    language: str
    environment: str
    engine: str
    need: Need | Sequence[Need]
    timeout_s: float | None
    memory_bytes: int | None
    cpus: float | None
    processes: int | None
    disk_bytes: int | None
    disk_files: int | None
    open_files: int | None
    output_bytes: int | None
    result_files: int | None
    result_bytes: int | None
    stdin: str | bytes
    env: Mapping[str, str]
    files: Mapping[str, str | bytes]
    inputs: Mapping[str, str | bytes]
    packages: Sequence[str]
    filter: FilterMode
    language_level: LanguageLevel
    fresh_exec: bool
    network: Allow | str | Sequence[Allow | str]
    """Hosts that the code may reach through the gateway; none without it."""
    secrets: Mapping[str, Secret]
    """Variable → a credential that the code uses without having it."""
    stdin_descriptor: int | None
    """An open file, pipe or terminal to read standard input from while the code runs."""
    on_output: OnOutput | None
    """Called with ("stdout" | "stderr", bytes) as the code prints, on the event loop's thread."""
    on_usage: OnUsage | None
    """Called with a Usage several times a second while the code runs, on that thread too."""
    caller: Caller
    """Who asks, for the trail."""


class PlacedOptions(RunOptions, total=False):
    """For the module-level functions."""

    url: str
    """Where a belljar server is; without it the code runs on this machine."""
    key: str


LIVE = ("stdin_descriptor", "on_output", "on_usage", "caller")
"""Options that belong to the call, not to the request: they cannot travel."""


def make_request(code: str, options: Mapping[str, object], settings: Settings) -> Request:
    """A Request from keywords; what the values may be is policy's to say."""
    known = set(RunOptions.__annotations__)
    for name in options:
        if name not in known:
            raise InvalidRequest(
                f"run() has no option {name!r}", hint=f"options: {', '.join(sorted(known))}"
            )
    _check_descriptor(options)
    for name in ("on_output", "on_usage"):
        if not (options.get(name) is None or callable(options[name])):
            raise InvalidRequest(f"{name}: must be something to call, not {options[name]!r}")
    if not isinstance(options.get("caller", NOBODY), Caller):
        raise InvalidRequest("caller: must be a belljar.Caller")
    limits = {name: options[name] for name in BOUNDS if name in options}
    fields = {
        name: value for name, value in options.items() if name not in BOUNDS and name not in LIVE
    }
    return Request(code=code, limits=requested_limits(settings, limits), **fields)  # type: ignore[arg-type]


def _check_descriptor(options: Mapping[str, object]) -> None:
    descriptor = options.get("stdin_descriptor")
    if descriptor is None:
        return
    if options.get("stdin"):
        raise InvalidRequest("give standard input once: stdin or stdin_descriptor")
    try:
        if type(descriptor) is not int:
            raise OSError
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError
    except OSError:
        raise InvalidRequest(
            f"stdin_descriptor: {descriptor!r} is not an open file, pipe or terminal"
        ) from None
