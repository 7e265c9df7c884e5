"""The table of system calls as Docker's profile says the same as the table (I3)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.engines.docker.profile import profile
from belljar.engines.linux import syscalls
from belljar.engines.linux.syscalls import ALLOW

PROFILE = profile()
NAMES = sorted({name for machine in syscalls.MACHINES for name in syscalls.numbers(machine)})
WHOLE = {"getsockopt", "fadvise64"}
"""Calls of which only a few uses are refused, which the format cannot say."""
_INTERESTING = sorted(
    {
        value
        for _, clauses in syscalls.RULED.values()
        for _, checks in clauses
        for _, _, values in checks
        for value in values
    }
    | {0, 1, 22, 0xFFFF_FFFF, 1 << 32, (1 << 64) - 1, syscalls.CLONE_NEW_ANY, 0x4000_0000}
)
arguments = st.lists(
    st.one_of(st.sampled_from(_INTERESTING), st.integers(0, (1 << 64) - 1)), min_size=6, max_size=6
)


def by_table(name: str, args: list[int]) -> int:
    for verdict, checks in syscalls.clauses(name):
        if all(args[argument] & mask in values for argument, mask, values in checks):
            return verdict
    raise AssertionError(f"{name}: no clause decides")


def by_profile(name: str, args: list[int]) -> int:
    """As libseccomp reads it: all conditions of a rule, any rule of a name."""
    for rule in PROFILE["syscalls"]:
        if name in rule["names"] and all(holds(condition, args) for condition in rule["args"]):
            return ALLOW if rule["action"] == "SCMP_ACT_ALLOW" else int(rule["errnoRet"])
    return int(PROFILE["defaultErrnoRet"])


def holds(condition: dict[str, Any], args: list[int]) -> bool:
    assert condition["op"] == "SCMP_CMP_MASKED_EQ"
    return bool(args[condition["index"]] & condition["value"] == condition["valueTwo"])


@given(name=st.sampled_from(NAMES), args=arguments)
def test_allows_what_the_table_allows(name: str, args: list[int]) -> None:
    if name in WHOLE:
        assert by_profile(name, args) == ALLOW
    elif name == "prctl" and args[0] & syscalls.LOW == 22:
        assert by_profile(name, args) == ALLOW  # the filter itself, which then refuses this
    else:
        assert (by_profile(name, args) == ALLOW) == (by_table(name, args) == ALLOW)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in syscalls.RULED])
def test_refuses_with_the_same_errno(name: str) -> None:
    assert by_profile(name, [0] * 6) == by_table(name, [0] * 6)


def test_no_call_is_named_twice_without_conditions() -> None:
    """libseccomp would take either."""
    plain = [name for rule in PROFILE["syscalls"] if not rule["args"] for name in rule["names"]]
    assert len(plain) == len(set(plain))
    ruled = {name for rule in PROFILE["syscalls"] if rule["args"] for name in rule["names"]}
    assert not ruled & set(plain)


def test_each_rule_looks_at_an_argument_once() -> None:
    """Docker takes two conditions on one argument as alternatives."""
    for rule in PROFILE["syscalls"]:
        indices = [condition["index"] for condition in rule["args"]]
        assert len(indices) == len(set(indices))


def test_everything_else_does_not_exist() -> None:
    assert PROFILE["defaultAction"] == "SCMP_ACT_ERRNO" and PROFILE["defaultErrnoRet"] == 38
