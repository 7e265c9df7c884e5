"""Engines are found by name: ours, and those of other packages (I5)."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from belljar import Settings
from belljar.engines import registry
from belljar.engines.base import Capabilities, Missing
from belljar.errors import EngineUnavailable, UnknownEngine


class Foreign:
    """An engine of another package, as far as the registry looks at it."""

    name = "foreign"
    capabilities = Capabilities(languages=frozenset({"python"}))

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @staticmethod
    def why_not(settings: Settings) -> Missing | None:
        return Missing(why="no planet", hint="find one")


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    points = {
        "foreign": EntryPoint("foreign", f"{__name__}:Foreign", registry.GROUP),
        "broken": EntryPoint("broken", "belljar_does_not_exist:Engine", registry.GROUP),
        "jail": EntryPoint("jail", f"{__name__}:Foreign", registry.GROUP),
    }
    monkeypatch.setattr(registry, "_plug_ins", lambda: points)
    monkeypatch.setattr(EntryPoint, "load", lambda point: _load(point))


def _load(point: EntryPoint) -> object:
    if point.module != __name__:
        raise ModuleNotFoundError(point.module)
    return Foreign


def test_i5_another_packages_engine_is_made_by_its_name(foreign: None) -> None:
    settings = Settings()
    made = registry.create("foreign", settings)
    assert isinstance(made, Foreign) and made.settings is settings
    assert registry.capabilities("foreign") is Foreign.capabilities
    assert registry.why_not("foreign", settings) == Missing(why="no planet", hint="find one")
    assert "foreign" in registry.names()


def test_i5_nobody_can_put_himself_in_place_of_our_engines(foreign: None) -> None:
    """A package that is merely installed must not become everybody's wall."""
    assert type(registry.create("jail", Settings())).__name__ == "JailEngine"
    assert registry.names().count("jail") == 1


def test_i5_one_that_cannot_be_loaded_breaks_nothing_else(foreign: None) -> None:
    with pytest.raises(EngineUnavailable, match="cannot be loaded"):
        registry.create("broken", Settings())
    missing = registry.why_not("broken", Settings())
    assert missing and "cannot be loaded" in missing.why
    assert registry.why_not("jail", Settings()) is None


def test_an_unknown_name_is_refused(foreign: None) -> None:
    with pytest.raises(UnknownEngine, match="'nothing'") as refused:
        registry.create("nothing", Settings())
    assert "foreign" in refused.value.hint


def test_other_packages_are_not_looked_for_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the metadata of everything that is installed: milliseconds."""
    monkeypatch.setattr(registry, "_plug_ins", lambda: pytest.fail("looked"))
    for name in ("auto", *registry.BUILT_IN):
        assert name in registry.known(name)
