"""Which engines there are, by name: the built-in ones, and those of other packages.

Another package offers an engine by an entry point of the group `belljar.engines`. Nothing is
imported before it is asked for: most runs need one engine, and its libraries are not small.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection
from typing import TYPE_CHECKING, cast

from belljar.engines.base import Capabilities, Engine, Missing
from belljar.errors import EngineUnavailable, UnknownEngine
from belljar.settings import Settings

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "belljar.engines"

BUILT_IN = {
    "jail": "belljar.engines.jail.engine:JailEngine",
    "docker": "belljar.engines.docker.engine:DockerEngine",
    "gvisor": "belljar.engines.gvisor.engine:GvisorEngine",
    "microvm": "belljar.engines.microvm.engine:MicrovmEngine",
    "wasm": "belljar.engines.wasm.engine:WasmEngine",
}


def names() -> tuple[str, ...]:
    """Every engine that is installed; whether it works here is another question."""
    return (*BUILT_IN, *(name for name in _plug_ins() if name not in BUILT_IN))


def known(asked: object) -> Collection[str]:
    """What `engine` may be, to judge `asked` by. Looking for other packages' engines reads many
    files, so that is done only for a name that is none of ours."""
    ours = ("auto", *BUILT_IN)
    return ours if asked in ours else ("auto", *names())


def create(name: str, settings: Settings) -> Engine:
    """A new engine. Whether it can build walls on this machine shows when it is asked to."""
    return cast(type[Engine], _load(name))(settings)  # type: ignore[call-arg]


def capabilities(name: str) -> Capabilities:
    found = getattr(_load(name), "capabilities", None)
    return found if isinstance(found, Capabilities) else Capabilities()


def why_not(name: str, settings: Settings) -> Missing | None:
    """What keeps this engine from working here, as far as a quick look can tell.

    Ours answer in a module `available` beside the engine, which loads nothing heavy; the class of
    another package may have a static method `why_not(settings)`.
    """
    if name in BUILT_IN:
        package = BUILT_IN[name].partition(":")[0].rpartition(".")[0]
        found = importlib.import_module(f"{package}.available").why_not(settings)
    else:
        try:
            look = getattr(_load(name), "why_not", None)
        except EngineUnavailable as error:
            return Missing(why=error.message, hint=error.hint)
        found = look(settings) if look else None
    return cast("Missing | None", found)


def _load(name: str) -> object:
    if place := BUILT_IN.get(name):
        module, _, attribute = place.partition(":")
        return getattr(importlib.import_module(module), attribute)
    plug_in = _plug_ins().get(name)
    if plug_in is None:
        raise UnknownEngine(f"engine: {name!r} is unknown", hint=f"known: {', '.join(names())}")
    try:
        return plug_in.load()
    except Exception as error:
        raise EngineUnavailable(
            f"the engine {name!r} ({plug_in.value}) cannot be loaded: {error!r}",
            hint="it comes from another package: is that one installed whole?",
        ) from error


def _plug_ins() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}
