"""The containment probes from inside kept sandboxes (I8, S1): there is a next run to poison.

What tells itself runs twice in one sandbox, and both verdicts count. What does not apply is in
`probes/behind.toml` under "kept", with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from belljar import Belljar
from belljar.probes import Probe, load
from belljar.probes.fixtures import Fixtures
from belljar.probes.kept import KeptProver
from belljar.probes.probe import KEPT
from belljar.probes.prove import judge

ALL = bool(os.environ.get("BELLJAR_ALL_PROBES"))
SLOW = {
    *("CC-05", "CC-10", "CC-15", "CC-56", "CC-58", "FS-59", "FS-60", "FS-61", "NW-51", "PR-14"),
    *("PR-11", "PR-16", "PR-53", "RS-01", "RS-03", "RS-05", "RS-10", "RS-12", "RS-16", "RS-18"),
    *("CC-17", "RS-51", "RS-52", "RS-54", "RS-55", "RS-56", "RS-57", "RS-58"),
}
"""Left out where time is short: they wait for time-outs, or use many sandboxes each of which is new
to them. BELLJAR_ALL_PROBES=1 and `belljar prove --kept` leave none out."""


def chosen() -> Iterator[Probe]:
    for probe in load():
        if probe.needs or probe.not_behind.keys() & {KEPT, f"jail+{KEPT}"}:
            continue
        if ALL or probe.id not in SLOW:
            yield probe


@pytest.fixture(scope="module")
def kept(planted: Fixtures) -> Iterator[KeptProver]:
    with Belljar() as jar, KeptProver(jar, planted, engine="jail") as prover:
        yield prover


@pytest.mark.parametrize("probe", [pytest.param(probe, id=probe.id) for probe in chosen()])
def test_holds_in_a_kept_sandbox(kept: KeptProver, probe: Probe) -> None:
    """I8: what the probe attacks holds, also for the run that comes after an attack."""
    found = judge(kept, probe)
    if found.outcome == "inapplicable":
        pytest.skip(found.detail)
    assert found.outcome == "held", f"{probe.title}: {found.detail} (expected {probe.expected})"


def test_the_second_run_of_a_pair_is_in_the_same_sandbox(kept: KeptProver) -> None:
    """A pair whose second run could not see the first would prove nothing about poisoning."""
    probe = next(probe for probe in load() if probe.id == "PV-01")
    first, second = kept.run_then(
        probe, "print(ID, open('/proc/self/stat').read().split()[0] == str(os.getpid()))"
    )
    assert "PROBE PV-01 HELD" in first.stdout
    assert second.stdout == "PV-01 True\n", "the name that the first run defined"
