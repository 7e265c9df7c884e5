"""Belljar's table of system calls as Docker's seccomp profile (I3).

The format knows no order among the rules of one call and one errno for all that is not allowed, so
it can say *what* the table allows, but not every errno, nor that a call pretends to succeed. Where
only a few uses of a call are refused (getsockopt, fadvise64) it cannot even say that, and the call
is allowed whole. Therefore the
container's first process puts on the table's own filter as well before it does anything else (see
`boot.py`); of two filters the stricter answer counts, and of two errnos the later one's.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from belljar.engines.linux import syscalls
from belljar.engines.linux.syscalls import ALLOW, LOW, PRETEND, Check, Clauses

_ENOSYS = 38
_PR_SET_SECCOMP = 22
_FILTER_ITSELF: Check = (0, LOW, (_PR_SET_SECCOMP,))


def profile() -> dict[str, Any]:
    """For the machine's own architecture, whichever that is: names it has no number for are
    ignored. Calls by the numbers of another one kill the process."""
    always: list[str] = []
    refused: dict[int, list[str]] = {}
    rules: list[dict[str, Any]] = []
    for name in _names():
        clauses = syscalls.clauses(name)
        if name == "prctl":
            clauses = ((ALLOW, (_FILTER_ITSELF,)), *clauses)
        verdict, checks = clauses[-1]
        if verdict == ALLOW and not checks:
            always.append(name)
        elif verdict == PRETEND and len(clauses) == 1:
            continue
        elif len(clauses) == 1:
            refused.setdefault(verdict, []).append(name)
        else:
            rules += [_rule([name], args=args) for args in _allowed(name, clauses)]
    rules.append(_rule(always))
    rules += [_rule(names, errno=code) for code, names in sorted(refused.items())]
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": _ENOSYS,
        "syscalls": rules,
    }


def _names() -> list[str]:
    known = {name: None for machine in syscalls.MACHINES for name in syscalls.numbers(machine)}
    return list(known)


def _allowed(name: str, clauses: Clauses) -> list[list[dict[str, Any]]]:
    """One list of conditions for each combination that is allowed; all of a list must hold."""
    found = []
    refused_before = False
    for verdict, checks in clauses:
        if verdict != ALLOW:
            refused_before = True
            continue
        if refused_before:
            raise ValueError(f"{name}: allowed after something was refused cannot be said here")
        if len({argument for argument, _, _ in checks}) < len(checks):
            raise ValueError(f"{name}: two checks of one argument would be taken as alternatives")
        choices = [[_condition(check, value) for value in check[2]] for check in checks]
        found += [list(chosen) for chosen in product(*choices)]
    return found


def _condition(check: Check, value: int) -> dict[str, Any]:
    argument, mask, _ = check
    return {"index": argument, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


def _rule(
    names: list[str], *, args: list[dict[str, Any]] | None = None, errno: int | None = None
) -> dict[str, Any]:
    action = "SCMP_ACT_ALLOW" if errno is None else "SCMP_ACT_ERRNO"
    rule: dict[str, Any] = {"names": names, "action": action, "args": args or []}
    if errno is not None:
        rule["errnoRet"] = errno
    return rule
