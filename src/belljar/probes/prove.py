"""Proving: every probe behind one engine, and a report that says what held."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from belljar.errors import Unavailable, Unsupported
from belljar.jar import Belljar
from belljar.probes import judges, verdict
from belljar.probes.fixtures import Fixtures
from belljar.probes.kept import KeptProver
from belljar.probes.probe import INSIDE, Probe, load
from belljar.probes.prover import NoAnswer, Prover
from belljar.probes.verdict import Outcome, Verdict

AT_ONCE = 2


@dataclass(frozen=True, kw_only=True)
class Proven:
    """One probe and what came of it."""

    probe: Probe
    outcome: Outcome
    detail: str
    duration_ms: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.probe.id,
            "boundary": self.probe.boundary,
            "title": self.probe.title,
            "expected": self.probe.expected,
            "outcome": self.outcome,
            "detail": self.detail,
            "duration_ms": round(self.duration_ms, 1),
        }


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """A line of the table: what held of what was tried."""

    name: str
    held: int
    total: int
    broken: tuple[str, ...]
    inapplicable: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Report:
    engine: str
    isolation: dict[str, str]
    proven: tuple[Proven, ...]
    duration_s: float

    @property
    def ok(self) -> bool:
        """Nothing is broken, and something was tried."""
        return not self.broken and bool(self.held)

    @property
    def held(self) -> tuple[Proven, ...]:
        return self._with("held")

    @property
    def broken(self) -> tuple[Proven, ...]:
        return self._with("broken")

    @property
    def inapplicable(self) -> tuple[Proven, ...]:
        return self._with("inapplicable")

    def reasons(self) -> dict[str, list[str]]:
        """Why probes say nothing about this wall: reason → their ids."""
        found: dict[str, list[str]] = {}
        for item in self.inapplicable:
            found.setdefault(item.detail, []).append(item.probe.id)
        return found

    def boundaries(self) -> tuple[Boundary, ...]:
        names = dict.fromkeys(item.probe.boundary for item in self.proven)
        return tuple(self._boundary(name) for name in names)

    def to_dict(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "isolation": self.isolation,
            "ok": self.ok,
            "held": len(self.held),
            "broken": [item.probe.id for item in self.broken],
            "inapplicable": [item.probe.id for item in self.inapplicable],
            "duration_s": round(self.duration_s, 2),
            "boundaries": [vars(item) for item in self.boundaries()],
            "probes": [item.to_dict() for item in self.proven],
        }

    def _with(self, outcome: Outcome) -> tuple[Proven, ...]:
        return tuple(item for item in self.proven if item.outcome == outcome)

    def _boundary(self, name: str) -> Boundary:
        mine = [item for item in self.proven if item.probe.boundary == name]
        ids = {
            outcome: tuple(item.probe.id for item in mine if item.outcome == outcome)
            for outcome in ("held", "broken", "inapplicable")
        }
        return Boundary(
            name=name,
            held=len(ids["held"]),
            total=len(ids["held"]) + len(ids["broken"]),
            broken=ids["broken"],
            inapplicable=ids["inapplicable"],
        )


OnProven = Callable[[Proven, int, int], None]
"""Called after each probe with it, how many are done, and how many there are."""


def prove(
    jar: Belljar,
    *,
    engine: str = "auto",
    on_progress: OnProven | None = None,
    only: Collection[str] | None = None,
    kept: bool = False,
) -> Report:
    """Runs the probes (`only` these ids or boundaries) behind `engine`; `kept`: from inside
    sandboxes that live from run to run."""
    started = time.monotonic()
    chosen = choose(only)
    proven: list[Proven] = []

    def done(item: Proven) -> None:
        proven.append(item)
        if on_progress:
            on_progress(item, len(proven), len(chosen))

    first = jar.run("print(1)", engine=engine)  # says which wall "auto" is, and that it stands
    make = KeptProver if kept else Prover
    with Fixtures() as fixtures, make(jar, fixtures, engine=first.engine) as prover:
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="belljar-prove") as pool:
            beside = [pool.submit(prove_one, prover, p) for p in chosen if not p.alone]
            for future in as_completed(beside):
                done(future.result())
        for probe in chosen:
            if probe.alone:
                done(prove_one(prover, probe))
    order = {probe.id: index for index, probe in enumerate(chosen)}
    return Report(
        engine=first.engine,
        isolation=dict(first.isolation),
        proven=tuple(sorted(proven, key=lambda item: order[item.probe.id])),
        duration_s=time.monotonic() - started,
    )


def choose(only: Collection[str] | None) -> tuple[Probe, ...]:
    """The probes of these ids or boundaries; an unknown name is an error, not an empty proof."""
    if not only:
        return load()
    known = {name for probe in load() for name in (probe.id, probe.boundary)}
    if unknown := sorted(set(only) - known):
        raise ValueError(f"no such probe or boundary: {', '.join(unknown)}")
    return tuple(probe for probe in load() if {probe.id, probe.boundary} & set(only))


def prove_one(prover: Prover, probe: Probe) -> Proven:
    started = time.monotonic()
    found = judge(prover, probe)
    return Proven(
        probe=probe,
        outcome=found.outcome,
        detail=found.detail,
        duration_ms=(time.monotonic() - started) * 1000,
    )


def judge(prover: Prover, probe: Probe) -> Verdict:
    """The verdict on one probe. Whatever goes wrong on the way is not held."""
    if probe.needs:
        return verdict.inapplicable(f"needs {probe.needs}")
    for wall in prover.walls:
        if why := probe.not_behind.get(wall):
            return verdict.inapplicable(why)
    try:
        if probe.judge == INSIDE:
            return _inside(prover, probe)
        return judges.by_name(probe.judge)(prover, probe)
    except (Unavailable, Unsupported) as error:
        return verdict.inapplicable(error)
    except NoAnswer as error:
        return verdict.broken(error)
    except Exception as error:
        return verdict.broken(f"no verdict: {type(error).__name__}: {error}")


def _inside(prover: Prover, probe: Probe) -> Verdict:
    return _worst(verdict.read(probe, result) for result in prover.run_each(probe))


def _worst(found: Iterable[Verdict]) -> Verdict:
    return min(found, key=lambda item: item.outcome != "broken")
