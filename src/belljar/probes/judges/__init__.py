"""Judges of the probes that cannot tell themselves: each looks at the effect from the host.

A judge is a function (prover, probe) -> Verdict, named in the probe's row of the catalogue.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from belljar.probes.judges import arguments, channel, files, network, processes, resources
from belljar.probes.probe import Probe
from belljar.probes.prover import Prover
from belljar.probes.verdict import Verdict

Judge = Callable[[Prover, Probe], Verdict]

_MODULES: tuple[ModuleType, ...] = (arguments, channel, files, network, processes, resources)


def by_name(name: str) -> Judge:
    for module in _MODULES:
        judge = vars(module).get(name)
        if callable(judge) and judge.__module__ == module.__name__ and not name.startswith("_"):
            found: Judge = judge
            return found
    raise LookupError(f"no judge is called {name!r}")
