"""What a suite said on each side, and where the two differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Outcome = Literal["passed", "skipped", "failed", "unfinished", "absent"]


@dataclass(frozen=True, kw_only=True)
class Account:
    """One side's run of one target."""

    outcomes: Mapping[str, Outcome]
    details: Mapping[str, str]
    ended: str
    """Empty if the driver came to its end, else how the run ended instead."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Difference:
    name: str
    bare: Outcome
    inside: Outcome
    detail: str
    reason: str = ""
    """Why it is meant to be so; empty for a difference nobody has explained."""


@dataclass(kw_only=True)
class Comparison:
    suite: str
    target: str
    bare: Account
    inside: Account
    differences: list[Difference] = field(default_factory=list)

    @property
    def same(self) -> int:
        """Tests that ran and passed on both sides."""
        return self.on_both("passed")

    def on_both(self, outcome: Outcome) -> int:
        return sum(
            found == outcome and self.inside.outcomes.get(name) == outcome
            for name, found in self.bare.outcomes.items()
        )

    def count(self, side: Literal["bare", "inside"], outcome: Outcome) -> int:
        account = self.bare if side == "bare" else self.inside
        return sum(found == outcome for found in account.outcomes.values())

    @property
    def unexplained(self) -> list[Difference]:
        return [difference for difference in self.differences if not difference.reason]


def restore(saved: Mapping[str, Any]) -> Comparison:
    """A comparison from the JSON of an earlier run."""
    return Comparison(
        suite=saved["suite"],
        target=saved["target"],
        bare=Account(**saved["bare"]),
        inside=Account(**saved["inside"]),
        differences=[Difference(**item) for item in saved["differences"]],
    )


def read(lines: Iterable[str]) -> tuple[dict[str, Outcome], dict[str, str], bool]:
    """The drivers' record: one JSON object per line, the last line says that it is complete."""
    outcomes: dict[str, Outcome] = {}
    details: dict[str, str] = {}
    complete = False
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:  # the line that was being written when the program was killed
            continue
        name, outcome = entry["name"], entry["outcome"]
        if outcome == "complete":
            complete = True
        elif outcome == "started":
            outcomes.setdefault(name, "unfinished")
        elif outcomes.get(name) != "failed":
            outcomes[name] = outcome
            details[name] = entry.get("detail", "")
    return outcomes, details, complete


def differences(bare: Account, inside: Account) -> list[Difference]:
    """Every test that ended otherwise inside, whether for the worse or for the better."""
    found = []
    for name in [*bare.outcomes, *(n for n in inside.outcomes if n not in bare.outcomes)]:
        outside, within = bare.outcomes.get(name, "absent"), inside.outcomes.get(name, "absent")
        unreached = (within == "absent" and inside.ended) or (outside == "absent" and bare.ended)
        if outside != within and not unreached:
            detail = inside.details.get(name) or bare.details.get(name, "")
            found.append(Difference(name=name, bare=outside, inside=within, detail=detail))
    if bool(inside.ended) != bool(bare.ended):
        detail = f"bare: {bare.ended or 'complete'}; inside: {inside.ended or 'complete'}"
        outside, within = ("failed" if side.ended else "passed" for side in (bare, inside))
        found.append(Difference(name="(the whole run)", bare=outside, inside=within, detail=detail))
    return found
