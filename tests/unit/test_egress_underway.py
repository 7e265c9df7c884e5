"""N1: attempts that are under way, in memory that outlives the process which wrote them."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from dataclasses import asdict

import pytest

from belljar.egress import control, underway
from belljar.egress.refusal import Refusal
from belljar.egress.running import Listener, Running
from belljar.network import Egress


def begin(table: underway.UnderWay, lease: int, path: str = "/a") -> int:
    return table.begin(lease, 1.5, 443, "https", "GET", "a.example", "*.example", path)


def test_n1_what_has_begun_and_is_not_over_is_left() -> None:
    memory = underway.make()
    table = underway.UnderWay(memory)
    over, stays = begin(table, 1), begin(table, 2, "/long" * 1_000)
    table.over(over)
    again = begin(table, 3)
    assert again == over != stays
    found = dict(underway.left(memory, {}))
    assert set(found) == {2, 3}
    assert (found[3].host, found[3].port, found[3].path) == ("a.example", 443, "/a")
    assert (found[3].at, found[3].scheme, found[3].rule) == (1.5, "https", "*.example")
    assert found[2].path.startswith("/long") and len(found[2].path) <= 500
    assert found[2].verdict == "failed" and "gateway was lost" in found[2].why
    os.close(memory)


def test_n1_nothing_goes_out_that_cannot_be_noted() -> None:
    memory = underway.make()
    table = underway.UnderWay(memory)
    slots = [begin(table, 1) for _ in range(underway.SLOTS)]
    with pytest.raises(Refusal) as caught:
        begin(table, 1)
    assert caught.value.status == 503
    table.over(slots[7])
    assert begin(table, 1) == slots[7]
    os.close(memory)


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff" * 5_000, b"\x05\x00a\nb\nc", b"\x10\x00x\n1\n1\na\nb\nc\nd\ne", b"\0" * 3],
)
def test_n1_the_host_believes_nothing_of_it_that_cannot_be(content: bytes) -> None:
    memory = underway.make()
    os.ftruncate(memory, 0)
    os.pwrite(memory, content, 0)
    assert list(underway.left(memory, {})) == []
    os.close(memory)


def test_n1_what_the_host_has_heard_is_not_told_again() -> None:
    """Killed between the record and the clearing of its slot; a later one in that slot counts."""

    async def main() -> None:
        memory = underway.make()
        table = underway.UnderWay(os.dup(memory))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        gateway = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        running = Running(
            ours,
            gateway,
            authority=None,  # type: ignore[arg-type]
            more_roots=b"",
            under_way=memory,
        )
        told: list[Egress] = []
        running.listeners[1] = Listener(told.append, lambda: None)

        def tell(slot: int, path: str) -> None:
            record = Egress(at=1.5, host="a.example", port=443, verdict="allowed", path=path)
            message = {"lease": 1, "egress": [asdict(record)]}
            control.send(theirs, {**message, "slot": [slot, table.number(slot)]})

        first, second = begin(table, 1, "/heard"), begin(table, 1, "/cleared")
        tell(first, "/heard")
        tell(second, "/cleared")
        table.over(second)
        assert begin(table, 1, "/later") == second
        running.close()
        theirs.close()
        assert [(one.path, one.verdict) for one in told] == [
            ("/heard", "allowed"),
            ("/cleared", "allowed"),
            ("/later", "failed"),
        ]

    asyncio.run(main())
