"""Whose walls fall when (S6, R3)."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from belljar.errors import EngineError
from belljar.holding import Held
from belljar.kept.family import Family


class Sandbox:
    def __init__(self, *, ends: bool = True) -> None:
        self.ends = ends
        self.released = False

    async def empty(self, **_: Any) -> bool:
        return self.ends

    async def release(self) -> None:
        self.released = True


def family(*sandboxes: Sandbox) -> list[Family]:
    """Each a branch of the one before."""
    first, *others = (cast(Held, sandbox) for sandbox in sandboxes)
    found = [Family(first, lambda: None)]
    for other in others:
        found.append(found[-1].branch(other, lambda: None))
    return found


def test_a_closed_parent_stands_until_its_branch_is_closed() -> None:
    parent, branch = Sandbox(), Sandbox()
    above, below = family(parent, branch)
    asyncio.run(above.leave())
    assert not parent.released
    asyncio.run(below.leave())
    assert parent.released and branch.released


def test_code_that_does_not_end_falls_with_the_walls_and_that_is_said() -> None:
    parent, branch = Sandbox(ends=False), Sandbox()
    above, _ = family(parent, branch)
    with pytest.raises(EngineError, match="branches") as caught:
        asyncio.run(above.leave())
    assert parent.released and caught.value.hint
