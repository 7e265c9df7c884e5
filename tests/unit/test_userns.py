"""I1: which ids a zygote gets, from nothing but the text of a uid_map."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.engines.jail import userns

WHOLE = "         0          0 4294967295\n"
ALL = (1 << 41) - 1


def test_root_of_the_machine_gets_a_range_of_its_own() -> None:
    ids = userns.choose(WHOLE, euid=0, egid=0, slot=4242, capabilities=ALL)
    assert ids.has_range
    assert ids.count == userns.RANGE == 65_536
    assert ids.uid == ids.gid
    # Above every account, and below 2**31, beyond which some tools see a negative number.
    assert ids.uid >= 2**30
    assert ids.uid + ids.count < 2**31


@pytest.mark.parametrize("extents", [WHOLE, "0 100000 65536\n"])
def test_two_slots_are_different_ranges(extents: str) -> None:
    one = userns.choose(extents, euid=0, egid=0, slot=100, capabilities=ALL)
    other = userns.choose(extents, euid=0, egid=0, slot=101, capabilities=ALL)
    assert abs(one.uid - other.uid) >= one.count


CLAIM = "from belljar.engines.jail import userns; userns._any_slot = iter({slots}).__next__; "


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has no range")
def test_two_processes_never_have_the_same_range() -> None:
    """I1: however the slots come out; a name that is in use is taken for an answer."""
    first = subprocess.Popen(
        [sys.executable, "-c", CLAIM.format(slots=[77]) + "print(userns.ours().uid); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout
    held = int(first.stdout.readline())
    said = subprocess.check_output(
        [sys.executable, "-c", CLAIM.format(slots=[77, 77, 78]) + "print(userns.ours().uid)"]
    )
    first.communicate("")
    assert int(said) != held
    after = subprocess.check_output(
        [sys.executable, "-c", CLAIM.format(slots=[77]) + "print(userns.ours().uid)"]
    )
    assert int(after) == held


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has no range")
def test_a_fork_has_a_range_of_its_own() -> None:
    code = CLAIM.format(slots=[91, 91, 92]) + (
        "import os; one = userns.ours().uid; "
        "child = os.fork(); os.write(1, b'%d\\n' % userns.ours().uid); child and os.wait()"
    )
    said = subprocess.check_output([sys.executable, "-c", code]).split()
    assert len(set(said)) == 2


def test_an_ordinary_user_has_its_one_id() -> None:
    ids = userns.choose(WHOLE, euid=1234, egid=567, slot=1, capabilities=ALL)
    assert (ids.uid, ids.gid, ids.count, ids.has_range) == (1234, 567, 1, False)


def test_only_root_that_may_mount_mounts_before_it_has_a_namespace() -> None:
    assert userns.choose(WHOLE, euid=0, egid=0, slot=1, capabilities=ALL).mounts_first
    for held in (0xA80425FB, 1 << 6 | 1 << 7):  # Docker's usual set; SETGID and SETUID alone
        ids = userns.choose(WHOLE, euid=0, egid=0, slot=1, capabilities=held)
        assert ids.has_range and not ids.mounts_first
        assert not userns.is_privileged(0, held) and not userns.is_stuck(0, held)


@pytest.mark.parametrize("number", [6, 7])  # SETGID, SETUID
def test_no_sandbox_gets_roots_own_id(number: int) -> None:
    """The kernel does not count root's processes, and root owns files in /proc."""
    left = ALL & ~(1 << number)
    assert userns.is_stuck(0, left) and not userns.is_stuck(1000, 0)
    with pytest.raises(PermissionError, match="no sandbox may be root"):
        userns.choose(WHOLE, euid=0, egid=0, slot=4242, capabilities=left)


def test_root_of_a_container_takes_the_upper_half_of_what_exists() -> None:
    """The ids of the container's own accounts are the low ones."""
    ids = userns.choose("0 100000 65536\n", euid=0, egid=0, slot=7, capabilities=ALL)
    assert (ids.uid, ids.gid, ids.count) == (32_768 + 7 * 1024, 32_768 + 7 * 1024, 1024)


def test_the_second_extent_of_a_rootless_container() -> None:
    ids = userns.choose("0 1000 1\n1 100000 65536\n", euid=0, egid=0, slot=7, capabilities=ALL)
    assert (ids.uid, ids.count) == (32_769 + 7 * 1024, 1024)
    assert ids.uid + ids.count <= 1 + 65_536


def test_root_of_a_namespace_with_few_ids_does_without_a_range() -> None:
    for text in ("0 1000 1\n", "0 1000 1\n1 5000 100\n", ""):
        ids = userns.choose(text, euid=0, egid=0, slot=7, capabilities=ALL)
        assert (ids.uid, ids.gid, ids.count) == (0, 0, 1)


def test_root_that_is_the_hosts_and_has_no_other_id_makes_no_sandbox() -> None:
    """As in `unshare --map-root-user` by root: the kernel would not count its processes (L3)."""
    with pytest.raises(PermissionError, match="no sandbox may be root"):
        userns.choose("0 0 1\n", euid=0, egid=0, slot=7, capabilities=ALL)
    assert userns.choose("0 0 1\n1 9 65536\n", euid=0, egid=0, slot=7, capabilities=ALL).has_range


extents = st.lists(
    st.tuples(
        st.integers(0, 2**31), st.integers(0, 2**32 - 2), st.integers(min_value=1, max_value=2**32)
    ),
    max_size=5,
)


@given(extents=extents, slot=st.integers(0, 2**32 - 1))
def test_a_range_lies_inside_an_extent_and_never_holds_root(
    extents: list[tuple[int, int, int]], slot: int
) -> None:
    text = "".join(f"{inside:10} {outside:10} {count:10}\n" for inside, outside, count in extents)
    try:
        ids = userns.choose(text, euid=0, egid=0, slot=slot, capabilities=ALL)
    except PermissionError:
        assert (0, 0) in [one[:2] for one in extents]
        return
    if not ids.has_range:
        assert (0, 0) not in [one[:2] for one in extents]
        assert (ids.uid, ids.gid, ids.count) == (0, 0, 1)
        return
    assert ids.uid > 0
    assert any(
        inside <= ids.uid and ids.uid + ids.count <= inside + count for inside, _, count in extents
    )
