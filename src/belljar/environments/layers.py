"""Package layers: what `packages=` of a sandbox is mounted from. Light to import: runs ask.

On disk, below the data directory:

    layers/<key>/files/…       what sandboxes see, read-only: the packages, and commands in bin/
    layers/<key>/layer.json    what it holds; never seen inside
    layers/requests/<…>.json   what was asked for → the key of the layer that answered it

The key is a hash of what was resolved: names, versions, the wheels' hashes, Python, platform. So
two ways of asking for the same set share a layer. What a request was resolved to stays so until
somebody refreshes it: sandboxes that ask alike get alike, today and next month, and no index is
asked for that. A new release is therefore not taken up by itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from belljar.environments import folders
from belljar.environments.catalogue import Environment
from belljar.environments.folders import Progress
from belljar.errors import EnvironmentUnavailable, PackageRefused
from belljar.model import NOBODY, Caller
from belljar.settings import Settings

LAYER_VERSION = 1
"""Raise it when the same set would be laid out differently."""
MANIFEST = "layer.json"
FILES = "files"

_KEY = re.compile(r"[0-9a-f]{32}")
# The form that policy writes. Policy judges; here nothing else may reach a file that uv reads.
_CLAUSE = r"(?:[=!~<>]=|<|>)[0-9][a-z0-9.*+!_-]*"
_CANONICAL = re.compile(rf"[a-z0-9-]+(\[[a-z0-9,-]+\])?({_CLAUSE}(,{_CLAUSE})*)?")


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A set of packages on disk."""

    key: str
    folder: Path
    """What is to be mounted, read-only."""
    packages: Mapping[str, str]
    """Distribution → version; without those that the environment has."""
    bytes: int
    imports: frozenset[str]
    """Top-level modules it offers."""
    tenant: str
    """Whom it was built for."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request that was answered before."""

    requirements: tuple[str, ...]
    environment: str
    layer: str


class Lease:
    """While somebody holds it, the layer is not removed. The kernel ends it with the process."""

    def __init__(self, layer: Layer, lock_fd: int) -> None:
        self.layer = layer
        self._lock_fd = lock_fd

    def share(self) -> Lease:
        """Another holder of the same lock."""
        return Lease(self.layer, os.dup(self._lock_fd))

    def close(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def lease(layer: Layer, settings: Settings) -> Lease | None:
    """None if it was removed since it was found."""
    path = root(settings) / layer.key / MANIFEST
    try:
        lock_fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    held = Lease(layer, lock_fd)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        # Who removes takes the lock first and the name away second.
        if path.stat().st_ino == os.fstat(lock_fd).st_ino:
            return held
    except (BlockingIOError, FileNotFoundError):
        pass
    held.close()
    return None


def layer(
    requirements: Sequence[str],
    settings: Settings,
    *,
    environment: Environment,
    earlier: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    caller: Caller = NOBODY,
) -> Layer:
    """The layer for texts that `policy.packages.check_packages` returned, built if need be, on top
    of the environment and of `earlier` layers (distribution → version). One that is built counts
    for the caller's tenant.

    Blocks while it builds, for `package_build_s` at most, and as long for other builders. One that
    is there takes two small files to find.
    """
    found = locate(requirements, settings, environment=environment, earlier=earlier)
    if found is not None:
        return found
    if not settings.build_environments:
        import shlex

        wanted = [part for text in requirements for part in ("--packages", text)]
        raise EnvironmentUnavailable(
            f"packages: {', '.join(requirements)} are not built for {environment.name}",
            hint=shlex.join(["belljar", "env", "build", environment.name, *wanted]),
        )
    from belljar.environments.assemble import build_layer  # needed once in a set's life

    return build_layer(
        requirements,
        settings,
        environment=environment,
        earlier=earlier,
        progress=progress,
        caller=caller,
    )


def locate(
    requirements: Sequence[str],
    settings: Settings,
    *,
    environment: Environment,
    earlier: Mapping[str, str] | None = None,
) -> Layer | None:
    """The layer that such a request was answered with, or None while it has to be built."""
    check(requirements, environment)
    versions = provided(environment, settings)
    if versions is None:
        return None
    versions.update(earlier or {})
    asked = _read_request(request_path(requirements, settings, environment, versions))
    return read(asked.layer, settings) if asked else None


def check(requirements: Sequence[str], environment: Environment) -> None:
    if environment.runtime != "python":
        raise PackageRefused(
            f"packages: the environment {environment.name!r} has no Python",
            hint='packages are for Python; environments with it: "base", "data"',
        )
    for text in requirements:
        if not _CANONICAL.fullmatch(text):
            raise ValueError(f"not in the form that policy.packages writes: {text!r:.80}")


def provided(environment: Environment, settings: Settings) -> dict[str, str] | None:
    """Distribution → version of what the environment has; None if it is not built."""
    if not environment.needs_build:
        return {}
    manifest = folders.folder_of(environment, settings) / folders.MANIFEST
    try:
        versions = json.loads(manifest.read_bytes())["versions"]
        return {re.sub(r"[-_.]+", "-", name).lower(): str(versions[name]) for name in versions}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def root(settings: Settings) -> Path:
    return settings.home.absolute() / "layers"


def request_path(
    requirements: Sequence[str],
    settings: Settings,
    environment: Environment,
    versions: Mapping[str, str],
) -> Path:
    """Where the answer to a request is noted. The environment counts by what is in it: built
    again, it may hold other versions, and then the layer must fit those."""
    asked = [sorted(set(requirements)), environment.name, sorted(versions.items())]
    return root(settings) / "requests" / f"{digest(asked)}.json"


def digest(facts: object) -> str:
    """A hash of `facts`, and of everything else that decides what a folder of packages is."""
    tags = [sys.implementation.cache_tag, EXTENSION_SUFFIXES[0], sys.platform, os.uname().machine]
    return hashlib.sha256(json.dumps([LAYER_VERSION, tags, facts]).encode()).hexdigest()[:32]


def read(key: str, settings: Settings) -> Layer | None:
    """The layer with this key, if it is there and whole."""
    if not _KEY.fullmatch(key):
        return None
    path = root(settings) / key
    try:
        facts = json.loads((path / MANIFEST).read_bytes())
        return Layer(
            key=key,
            folder=path / FILES,
            packages={str(name): str(version) for name, version in facts["packages"].items()},
            bytes=int(facts["bytes"]),
            imports=frozenset(map(str, facts["imports"])),
            tenant=str(facts.get("tenant", NOBODY.tenant)),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # not there, damaged, or deleted meanwhile


def installed(settings: Settings) -> list[Layer]:
    """Every layer on disk, for any Python."""
    keys = sorted(path.parent.name for path in root(settings).glob(f"*/{MANIFEST}"))
    return [found for key in keys if (found := read(key, settings))]


def requests(settings: Settings) -> Iterator[tuple[Path, Asked]]:
    """What was asked for so far."""
    for path in sorted((root(settings) / "requests").glob("*.json")):
        if asked := _read_request(path):
            yield path, asked


def _read_request(path: Path) -> Asked | None:
    try:
        facts = json.loads(path.read_bytes())
        return Asked(
            requirements=tuple(map(str, facts["requirements"])),
            environment=str(facts["environment"]),
            layer=str(facts["layer"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
