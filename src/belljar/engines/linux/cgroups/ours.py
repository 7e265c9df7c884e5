"""What every engine does with groups: takes a place for them, and makes one with its limits."""

from __future__ import annotations

import os

from belljar.errors import EngineError
from belljar.model import Limits

from . import files
from .find import Absent, Tree, detect, has_v2, in_scope
from .group import Group
from .hierarchy import Hierarchy
from .leftovers import sweep
from .scope import NoScope, Scope


def claim_ours(*, ask_systemd: bool = False) -> Hierarchy | None:
    """Ours, cleared of what a dead Belljar left; None if there is none.

    Before the first child is started: see `Hierarchy.step_aside`. `ask_systemd`: for callers
    that admit (`Hierarchy.admit`) every process that enters a group.
    """
    found = find_ours(ask_systemd=ask_systemd)
    return None if isinstance(found, Absent) else found


def find_ours(*, ask_systemd: bool) -> Hierarchy | Absent:
    """As `claim_ours`; where there is none it says why, and what to type."""
    found = detect()
    if ask_systemd and os.geteuid() != 0 and has_v2() and not _is_delegated(found):
        asked = _from_systemd()
        if isinstance(asked, Hierarchy):
            found = asked
        elif isinstance(found, Absent):
            found = Absent(f"{found.reason}; {asked.reason}", asked.hint or found.hint)
    if isinstance(found, Absent):
        return found
    try:
        found.claim()
    except EngineError as error:
        if found.scope:
            found.scope.close()
        return Absent(error.message, error.hint or "")
    sweep(found)
    return found


def _is_delegated(found: Hierarchy | Absent) -> bool:
    """A user may write to every group of a user service, even to those that systemd arranges. We
    use one only if systemd was told to leave it to us."""
    if isinstance(found, Absent):
        return False
    return not found.step_aside or Tree().delegated(found.places[0])


def _from_systemd() -> Hierarchy | Absent:
    try:
        scope = Scope()
    except NoScope as error:
        return Absent(error.reason, error.hint)
    found = in_scope(scope)
    if isinstance(found, Absent):
        scope.close()
        return found
    try:
        scope.take(found.places[0])
    except OSError as error:
        scope.close()
        return Absent(files.engine_error("scope", error).message, "")
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
