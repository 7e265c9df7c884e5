"""One target on both sides, as often as it takes to tell a difference from a flaky test."""

from __future__ import annotations

from belljar import Belljar
from compat import sides
from compat.accounts import Comparison, Difference, differences
from compat.reasons import explain

ATTEMPTS = 3


def compare(jar: Belljar, job: sides.Job) -> Comparison:
    """A difference counts if it is there each time: public suites have flaky tests too."""
    inside, bare = sides.inside(jar, job), sides.bare(job)
    comparison = Comparison(suite=job.suite, target=job.target, bare=bare, inside=inside)
    comparison.differences = explain(job.suite, differences(bare, inside))
    if not bare.outcomes:
        nothing = Difference(
            name="(nothing ran)", bare="absent", inside="absent", detail=bare.ended
        )
        comparison.differences.append(nothing)
        return comparison
    for _ in range(ATTEMPTS - 1):
        if not comparison.unexplained:
            break
        again = differences(sides.bare(job), sides.inside(jar, job))
        steady = {(item.name, item.bare, item.inside) for item in again}
        comparison.differences = [
            item
            for item in comparison.differences
            if item.reason or (item.name, item.bare, item.inside) in steady
        ]
    return comparison
