"""Resource groups: the kernel's limits on memory, processes and processor time of one sandbox.

`detect()` looks and changes nothing, `plan()` is the list of writes, `Group` carries them out.
Everything lives in a folder of ours, `belljar-<pid>-<starttime>-<n>/<sandbox>`, so that a later
Belljar can tell what a dead one left behind (`sweep`). Nothing else is touched, except that v2 may
need its parent's controllers switched on and this process moved to a leaf beside it (`claim`). An
ordinary user's folder lies in a scope that we get from the user's systemd (`scope`).

No descriptor is held per sandbox: five hundred idle ones must fit the usual limit of 1024.
Records are named tuples: a dataclass takes eight times as long to import, at every cold start.
"""

from __future__ import annotations

from .find import HINT_USER_CPU, Absent, detect
from .group import Group
from .hierarchy import Hierarchy
from .leftovers import sweep
from .ours import claim_ours, find_ours, limited

__all__ = [
    "HINT_USER_CPU",
    "Absent",
    "Group",
    "Hierarchy",
    "claim_ours",
    "detect",
    "find_ours",
    "limited",
    "sweep",
]
