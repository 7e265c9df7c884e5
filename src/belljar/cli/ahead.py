"""The slow part of a cold run, begun before the rest of Belljar is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from belljar.engines.base import Ground
from belljar.engines.jail import launch
from belljar.environments.catalogue import BASE
from belljar.environments.choose import choose
from belljar.errors import BelljarError
from belljar.runtimes import languages

JAIL_SERVES = frozenset({"fastest", "files", "any_language"})
"""Needs that the jail will be chosen for."""


def begin(code: str, options: Mapping[str, Any]) -> None:
    """Launches the bare interpreter if that is what the run will take; a wrong guess is undone."""
    try:
        environment = options["environment"]
        if environment == "auto":
            language = languages.get(options["language"])
            environment = choose(code, language, files=options["files"])
        light = options["engine"] in ("auto", "jail") and JAIL_SERVES.issuperset(options["need"])
        if environment == BASE.name and light:
            launch.begin(Ground(name=BASE.name, mount=BASE.mount_path))
    except BelljarError:
        pass  # whoever asks next meets the same error, and tells


def abandon() -> None:
    launch.abandon()
