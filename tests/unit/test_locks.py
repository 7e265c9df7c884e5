"""File locks are found with those who hold them (L2)."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar.engines.linux import locks


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[int]:
    """A grandchild of ours with more locks than a sandbox may have; gives its parent."""
    ready, tell = os.pipe()
    over, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        if os.fork() == 0:
            for number in range(locks.MOST_LOCKS // 500 + 2):
                file = os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT)
                for at in range(500):  # neighbours of one kind would be merged
                    kind = fcntl.F_WRLCK if at % 2 else fcntl.F_RDLCK
                    fcntl.fcntl(file, fcntl.F_SETLK, struct.pack("hhqqi4x", kind, 0, at * 2, 1, 0))
            os.write(tell, b"x")
        os.read(over, 1)
        os._exit(0)
    assert os.read(ready, 1)
    yield child
    os.close(end)
    os.waitpid(child, 0)


def test_locks_count_for_the_sandbox_that_their_process_descends_from(holder: int) -> None:
    assert locks.hoarders({holder}) == {holder}
    assert locks.hoarders({holder, 2**22 + 1}) == {holder}


def test_the_locks_of_others_are_nobodys(holder: int) -> None:
    assert locks.hoarders({2**22 + 1}) == set()


def test_few_locks_are_no_hoard(tmp_path: Path) -> None:
    with (tmp_path / "one").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        assert locks.hoarders({os.getpid()}) == set()


def test_growth_is_seen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([100, 100, 110, 117, 118, 105, 121, 122])
    monkeypatch.setattr(locks.Growth, "_now", lambda _: next(sizes) << 20)
    growth = locks.Growth()
    assert [growth.seen() for _ in range(7)] == [False, False, True, False, False, False, True]
    growth.close()


def test_the_kernel_says_what_it_holds() -> None:
    growth = locks.Growth()
    assert 1 << 20 < growth._now() < 1 << 44
    growth.close()
