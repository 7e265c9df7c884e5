"""The keyword options of `Sandbox`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from belljar.errors import InvalidRequest
from belljar.policy.packages import parse_all

OWN = ("max_runs", "idle_s", "lifetime_s", "checkpoints", "when_busy")


@dataclass(frozen=True, kw_only=True)
class Options:
    max_runs: int = 20
    idle_s: float = 600.0
    lifetime_s: float = 3600.0
    checkpoints: int | None = None
    """How many states are kept to go back to: one before each of the latest runs. None: 8 for
    Python, which alone can have any."""
    when_busy: str = "wait"
    """What a second caller gets while a run is under way: "wait" or "refuse"."""
    paths: Mapping[str, str | os.PathLike[str]]
    """Inputs that are on the host."""
    request: Mapping[str, Any]
    """The options that are those of `run`."""

    def __post_init__(self) -> None:
        for name, least, most in (("max_runs", 1, 1_000_000), ("checkpoints", 0, 64)):
            value = getattr(self, name)
            if name == "checkpoints" and value is None:
                continue
            if type(value) is not int or not least <= value <= most:
                raise InvalidRequest(
                    f"{name}: must be a whole number of {least} to {most}, not {value!r}"
                )
        for name in ("idle_s", "lifetime_s"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 < value < 1e9:
                raise InvalidRequest(f"{name}: must be a number of seconds above 0, not {value!r}")
        parse_all(self.request.get("packages", ()))
        if self.when_busy not in ("wait", "refuse"):
            raise InvalidRequest(f'when_busy: must be "wait" or "refuse", not {self.when_busy!r}')


_OF_A_RUN = ("stdin", "stdin_descriptor", "on_output", "on_usage")


def make_options(options: Mapping[str, Any]) -> Options:
    for name in _OF_A_RUN:
        if name in options:
            raise InvalidRequest(f"{name}: is about a run, not a sandbox", hint="give it to run()")
    own = {name: value for name, value in options.items() if name in OWN}
    request = {name: value for name, value in options.items() if name not in OWN}
    paths = {}
    if isinstance(given := request.get("inputs"), Mapping):
        # Text is a path here and content in `run`: a sandbox that is kept is given data to keep.
        paths = {name: v for name, v in given.items() if isinstance(v, (str, os.PathLike))}
        request["inputs"] = {name: v for name, v in given.items() if name not in paths}
    return Options(request=request, paths=paths, **own)
