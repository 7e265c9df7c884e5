"""Inside a guest: all probes, or those that are named, with each verdict printed as it falls.

`belljar prove --json` prints once, at the end. A guest whose time is up before that would take
along what had failed until then.
"""

from __future__ import annotations

import json
import sys

from belljar import Belljar, probes
from belljar.errors import BelljarError
from belljar.probes import Proven, prover

SPIKES = 2.5
"""How much slower a guest may become than it was when the probes measured their patience: its host
has other things to do, and they come and go."""
VERDICT = "verdict"
"""What a line of one begins with: then its number of how many, the probe, the outcome, why."""


def main() -> int:
    prover.USUAL_S /= SPIKES

    def tell(item: Proven, done: int, total: int) -> None:
        why = " ".join(item.detail.split())[:300]
        print(f"{VERDICT} {done}/{total} {item.probe.id} {item.outcome} {why}", flush=True)

    try:
        with Belljar() as jar:
            report = probes.prove(jar, only=sys.argv[1:] or None, on_progress=tell)
    except BelljarError as error:
        print(json.dumps({"error": {"message": error.message, "hint": error.hint}}))
        return 125
    print(json.dumps(report.to_dict()))
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
