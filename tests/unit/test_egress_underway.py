"""N1: attempts that are under way, in memory that outlives the process which wrote them."""

from __future__ import annotations

import os

import pytest

from belljar.egress import underway
from belljar.egress.refusal import Refusal


def begin(table: underway.UnderWay, lease: int, path: str = "/a") -> int:
    return table.begin(lease, 1.5, 443, "https", "GET", "a.example", "*.example", path)


def test_n1_what_has_begun_and_is_not_over_is_left() -> None:
    memory = underway.make()
    table = underway.UnderWay(memory)
    over, stays = begin(table, 1), begin(table, 2, "/long" * 1_000)
    table.over(over)
    again = begin(table, 3)
    assert again == over != stays
    found = dict(underway.left(memory))
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
    assert list(underway.left(memory)) == []
    os.close(memory)
