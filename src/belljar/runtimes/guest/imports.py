"""Imports: ours, and those of the code that we look on at.

Some packages must know that they are in a notebook. They are told when the code imports them, and
never imported for it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from . import reporting


def library(name: str) -> Any:
    """A module of the standard library, loaded when needed; not one of that name that lies in the
    code's folder."""
    module = sys.modules.get(name)
    if module is not None:
        return module
    path = list(sys.path)
    sys.path[:] = reporting.trusted_path
    try:
        return importlib.import_module(name)
    finally:
        sys.path[:] = path


class Onlooker:
    """The first finder: for a few names, does something after the import."""

    def __init__(
        self,
        after: Mapping[str, Callable[[ModuleType], None]],
        stand_ins: Mapping[str, Callable[[ModuleType], None]],
    ) -> None:
        """`stand_ins`: modules that are made here if they are nowhere else."""
        self._after = after
        self._stand_ins = stand_ins
        for name in after:
            module = sys.modules.get(name)
            if module is not None:
                _apply(after[name], module)
        # One is enough, when a second notebook takes the place of the first.
        others = [finder for finder in sys.meta_path if not isinstance(finder, Onlooker)]
        sys.meta_path[:] = [self, *others]

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._after and name not in self._stand_ins:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)  # type: ignore[arg-type]
            if spec is not None:
                if name in self._after and spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._after[name])  # type: ignore[assignment]
                return spec
        if name in self._stand_ins:
            return ModuleSpec(name, _StandIn(self._stand_ins[name]), is_package="." not in name)  # type: ignore[arg-type]
        return None


class _Loader:
    """The module's own loader, and something after it."""

    def __init__(self, loader: Any, after: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._after = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _apply(self._after, module)


class _StandIn:
    def __init__(self, fill: Callable[[ModuleType], None]) -> None:
        self._fill = fill

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        self._fill(module)


def _apply(after: Callable[[ModuleType], None], module: ModuleType) -> None:
    try:
        after(module)
    except Exception:
        pass  # a version with other names: it then behaves as it does outside a notebook
