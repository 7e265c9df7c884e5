"""The containment probes: attacks on Belljar's walls, run on the user's own machine (I8).

    with Belljar() as jar:
        report = prove(jar)

Each probe in `catalogue/` is the attack itself, with a row in its boundary's table that says what
a safe outcome is. Most print their own verdict; the rest are judged from the host, in `judges/`.
"""

from __future__ import annotations

from belljar.probes.probe import Probe, load
from belljar.probes.prove import Boundary, Proven, Report, prove
from belljar.probes.verdict import Verdict

__all__ = ["Boundary", "Probe", "Proven", "Report", "Verdict", "load", "prove"]
