"""I1: which ids a zygote gets, from nothing but the text of a uid_map."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.engines.jail import userns

WHOLE = "         0          0 4294967295\n"
ALL = (1 << 41) - 1


def test_root_of_the_machine_gets_a_range_of_its_own() -> None:
    ids = userns.choose(WHOLE, euid=0, egid=0, pid=4242, capabilities=ALL)
    assert ids.has_range
    assert ids.count == userns.RANGE == 65_536
    assert ids.uid == ids.gid
    # Above every account, and below 2**31, beyond which some tools see a negative number.
    assert ids.uid >= 2**30
    assert ids.uid + ids.count < 2**31


def test_two_belljars_have_different_ranges() -> None:
    one = userns.choose(WHOLE, euid=0, egid=0, pid=100, capabilities=ALL)
    other = userns.choose(WHOLE, euid=0, egid=0, pid=101, capabilities=ALL)
    assert abs(one.uid - other.uid) >= userns.RANGE


def test_an_ordinary_user_has_its_one_id() -> None:
    ids = userns.choose(WHOLE, euid=1234, egid=567, pid=1, capabilities=ALL)
    assert (ids.uid, ids.gid, ids.count, ids.has_range) == (1234, 567, 1, False)


def test_only_root_that_may_mount_mounts_before_it_has_a_namespace() -> None:
    assert userns.choose(WHOLE, euid=0, egid=0, pid=1, capabilities=ALL).mounts_first
    for held in (0xA80425FB, 1 << 6 | 1 << 7):  # Docker's usual set; SETGID and SETUID alone
        ids = userns.choose(WHOLE, euid=0, egid=0, pid=1, capabilities=held)
        assert ids.has_range and not ids.mounts_first
        assert not userns.is_privileged(0, held) and not userns.is_stuck(0, held)


@pytest.mark.parametrize("number", [6, 7])  # SETGID, SETUID
def test_no_sandbox_gets_roots_own_id(number: int) -> None:
    """The kernel does not count root's processes, and root owns files in /proc."""
    left = ALL & ~(1 << number)
    assert userns.is_stuck(0, left) and not userns.is_stuck(1000, 0)
    with pytest.raises(PermissionError, match="no sandbox may be root"):
        userns.choose(WHOLE, euid=0, egid=0, pid=4242, capabilities=left)


def test_root_of_a_container_takes_the_upper_half_of_what_exists() -> None:
    """The ids of the container's own accounts are the low ones."""
    ids = userns.choose("0 100000 65536\n", euid=0, egid=0, pid=7, capabilities=ALL)
    assert (ids.uid, ids.gid, ids.count) == (32_768, 32_768, 32_768)


def test_the_second_extent_of_a_rootless_container() -> None:
    ids = userns.choose("0 1000 1\n1 100000 65536\n", euid=0, egid=0, pid=7, capabilities=ALL)
    assert (ids.uid, ids.count) == (32_769, 32_768)
    assert ids.uid + ids.count <= 1 + 65_536


def test_root_of_a_namespace_with_few_ids_does_without_a_range() -> None:
    for text in ("0 1000 1\n", "0 1000 1\n1 5000 100\n", ""):
        ids = userns.choose(text, euid=0, egid=0, pid=7, capabilities=ALL)
        assert (ids.uid, ids.gid, ids.count) == (0, 0, 1)


def test_root_that_is_the_hosts_and_has_no_other_id_makes_no_sandbox() -> None:
    """As in `unshare --map-root-user` by root: the kernel would not count its processes (L3)."""
    with pytest.raises(PermissionError, match="no sandbox may be root"):
        userns.choose("0 0 1\n", euid=0, egid=0, pid=7, capabilities=ALL)
    assert userns.choose("0 0 1\n1 9 65536\n", euid=0, egid=0, pid=7, capabilities=ALL).has_range


extents = st.lists(
    st.tuples(
        st.integers(0, 2**31), st.integers(0, 2**32 - 2), st.integers(min_value=1, max_value=2**32)
    ),
    max_size=5,
)


@given(extents=extents, pid=st.integers(1, 4_194_304))
def test_a_range_lies_inside_an_extent_and_never_holds_root(
    extents: list[tuple[int, int, int]], pid: int
) -> None:
    text = "".join(f"{inside:10} {outside:10} {count:10}\n" for inside, outside, count in extents)
    try:
        ids = userns.choose(text, euid=0, egid=0, pid=pid, capabilities=ALL)
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
