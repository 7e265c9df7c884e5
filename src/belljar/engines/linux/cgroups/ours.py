"""What every engine does with groups: takes a place for them, and makes one with its limits."""

from __future__ import annotations

import os

from belljar.errors import EngineError
from belljar.model import Limits

from .find import Absent, detect
from .group import Group
from .hierarchy import Hierarchy
from .leftovers import sweep


def claim_ours() -> Hierarchy | None:
    """Ours, cleared of what a dead Belljar left; None if there is none.

    Before the first child is started: see `Hierarchy.step_aside`.
    """
    found = detect()
    if isinstance(found, Absent):
        return None
    try:
        found.claim()
    except EngineError:
        return None
    sweep(found)
    return found


def limited(hierarchy: Hierarchy, limits: Limits, *, reserve: int) -> Group:
    """A new group in which the limits are in force; `reserve` is for processes not the code's."""
    group = Group.create(hierarchy, os.urandom(8).hex())
    try:
        group.apply(limits, reserve=reserve)
    except BaseException:
        group.remove()
        raise
    return group
