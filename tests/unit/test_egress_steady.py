"""The search for secrets says nothing about them by the time that it takes (N2)."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from belljar.egress.steady import LONGEST, Needle

FEW = st.binary(max_size=60).map(lambda data: bytes(byte % 3 for byte in data))


@given(
    needle=st.binary(min_size=1, max_size=LONGEST) | FEW.filter(len).map(lambda one: one[:LONGEST]),
    before=FEW,
    after=FEW,
    whole=st.booleans(),
)
@example(needle=b"ab", before=b"", after=b"", whole=True)
@example(needle=b"abcdefgh", before=b"abcdefg", after=b"", whole=False)
@example(needle=b"\xff" * 8, before=b"\xff" * 7, after=b"", whole=False)
def test_it_finds_what_is_there(needle: bytes, before: bytes, after: bytes, whole: bool) -> None:
    data = before + (needle if whole else needle[:-1]) + after
    assert Needle(needle).occurs(data) == (needle in data)


@given(needle=st.binary(min_size=1, max_size=LONGEST), data=st.binary(min_size=1, max_size=300))
def test_all_texts_of_a_length_are_numbers_of_a_length(needle: bytes, data: bytes) -> None:
    """On which alone depends how long the machine calculates with them."""
    like_it = (needle * len(data))[: len(data)]
    sizes = {Needle(needle).compared(one).bit_length() for one in (data, like_it, bytes(len(data)))}
    assert len(sizes) == 1
