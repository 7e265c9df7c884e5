"""Where no cgroup can be written, a kept sandbox's memory limit holds all the same (L2): for what
its processes share, for all of them together, and for each branch by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from belljar import Belljar, Sandbox
from belljar.engines.linux import cgroups

MIB = 1 << 20
LIMIT = 96 * MIB
SHARED = """
import mmap, time
held = mmap.mmap(-1, 400 << 20)
for at in range(0, 400 << 20, 4096):
    held[at] = 1
time.sleep(30)
"""
LET_GO = """
import mmap, time
held = mmap.mmap(-1, 400 << 20)
for at in range(0, 400 << 20, 4096):
    held[at] = 1
    if at % (16 << 20) == 0:
        held.madvise(mmap.MADV_DONTNEED)
time.sleep(30)
"""
TOGETHER = """
import os, time
done, finish = os.pipe()
for _ in range(8):
    if os.fork() == 0:
        held = bytearray(b"x") * (40 << 20)
        os.write(finish, b"x")
        time.sleep(60)
for _ in range(8):
    os.read(done, 1)
time.sleep(30)
"""
IN_FILES = """
import time
with open("/tmp/held", "wb") as file:
    for _ in range(90):
        file.write(bytes(1 << 20))
held = bytearray(b"x") * (60 << 20)
time.sleep(30)
"""


@pytest.fixture
def jar(monkeypatch: pytest.MonkeyPatch) -> Iterator[Belljar]:
    monkeypatch.setattr(cgroups, "claim_ours", lambda **_: None)
    with Belljar() as jar:
        assert jar.run("pass").isolation["memory"] == "watchdog"
        yield jar


@pytest.mark.parametrize(
    "code",
    [SHARED, LET_GO, TOGETHER, IN_FILES],
    ids=["shared", "let go", "together", "in files"],
)
def test_more_than_the_limit_ends_the_run(jar: Belljar, code: str) -> None:
    with Sandbox(jar, memory_bytes=LIMIT, disk_bytes=100 * MIB) as box:
        box.run("x = 1")
        result = box.run(code, timeout_s=60)
        assert result.status == "out_of_memory", result
        box.restart()
        assert box.run("print('next')").stdout == "next\n"


def test_what_was_there_before_the_run_can_be_gone_back_to(jar: Belljar) -> None:
    with Sandbox(jar, memory_bytes=LIMIT) as box:
        box.run("x = 'kept'")
        spent = box.run(SHARED, timeout_s=60)
        assert spent.status == "out_of_memory"
        box.rollback(spent.run_id)
        assert box.run("print(x)").stdout == "kept\n"


def test_each_branch_has_the_limit_for_itself(jar: Belljar) -> None:
    """Together they hold more than one may; the one that goes too far ends alone."""
    hold = "held = bytearray(b'x') * (50 << 20); print('holds')"
    with Sandbox(jar, memory_bytes=LIMIT) as box:
        box.run("x = 1")
        with box.fork(1)[0] as branch:
            assert box.run(hold).stdout == "holds\n"
            assert branch.run(hold).stdout == "holds\n"
            assert branch.run(SHARED, timeout_s=60).status == "out_of_memory"
            assert box.run("print(len(held) >> 20)").stdout == "50\n"


def test_a_parent_that_goes_too_far_leaves_its_branches_alone(jar: Belljar) -> None:
    with Sandbox(jar, memory_bytes=LIMIT) as box:
        box.run("x = 1")
        with box.fork(1)[0] as branch:
            assert branch.run("y = 2; print('there')").stdout == "there\n"
            assert box.run(SHARED, timeout_s=60).status == "out_of_memory"
            assert branch.run("print(x + y)").stdout == "3\n"


SOCKETS = """
import os, socket, time
block = bytes(65536)
for _ in range(16):
    if os.fork() == 0:
        held = [socket.socketpair() for _ in range(100)]
        for pair in held:
            for end in pair:
                end.setblocking(False)
                try:
                    while True:
                        end.send(block)
                except BlockingIOError:
                    pass
        time.sleep(30)
time.sleep(30)
"""


@pytest.mark.parametrize("kept", [False, True])
def test_socket_buffers_that_nobody_counts_are_few(jar: Belljar, kept: bool) -> None:
    """L2: 3,200 sockets would hold 600 MB and more."""
    with Sandbox(jar) if kept else nullcontext(jar) as place:
        assert place.run(SOCKETS, timeout_s=60).status == "out_of_memory"
