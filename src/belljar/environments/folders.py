"""Where built environments are on disk. Light to import: every run asks."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from belljar.environments.catalogue import Environment
from belljar.settings import Settings

BUILDER_VERSION = 1
"""Raise it when the same environment would be built differently."""
MANIFEST = "belljar-environment.json"

Progress = Callable[[str, float | None], None]
"""Called with what is being done, and how much of that is done (0 to 1) where it is known."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """An environment on disk."""

    name: str
    path: Path
    python: str
    versions: dict[str, str]
    """Distribution → version, as resolved when it was built."""


def key(environment: Environment) -> str:
    """Changes with everything that changes the folder."""
    parts = [
        BUILDER_VERSION,
        environment.packages,
        environment.runtime,
        sorted(environment.executables.items()),
        environment.drop,
        environment.mount_path,
        sys.implementation.cache_tag,
        EXTENSION_SUFFIXES[0],
        sys.platform,
        os.uname().machine,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _root(settings: Settings) -> Path:
    return settings.home.absolute() / "environments"


def folder_of(environment: Environment, settings: Settings) -> Path:
    """Where it is, or will be once it is built."""
    return _root(settings) / f"{environment.name}-{key(environment)}"


def locate(environment: Environment, settings: Settings) -> Path | None:
    """Its folder, or None while it is not built."""
    path = folder_of(environment, settings)
    return path if (path / MANIFEST).is_file() else None


def installed(settings: Settings) -> list[Built]:
    """Every environment on disk, of any version."""
    found = []
    for manifest in sorted(_root(settings).glob(f"*/{MANIFEST}")):
        try:
            facts = json.loads(manifest.read_text())
            built = Built(
                name=facts["name"],
                path=manifest.parent,
                python=facts["python"],
                versions=dict(facts["versions"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue  # damaged, or deleted meanwhile
        found.append(built)
    return found
