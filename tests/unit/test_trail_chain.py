"""P2: any edit, swap, deletion in the middle or duplicate is found; a cut end by a noted head."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

from hypothesis import assume, given
from hypothesis import strategies as st

from belljar.trail import chain, records

CONTENT = st.fixed_dictionaries({"note": st.text(max_size=10), "n": st.integers()})


def trail(
    notes: list[dict[str, object]], *, start: int = 1, after: str = records.GENESIS
) -> list[chain.Line]:
    """A beginning, then attempts and their ends in turn, with anything in them."""
    contents: list[dict[str, object]] = [{"kind": "began", "id": "b", "time": "t"}]
    for number, note in enumerate(notes):
        id_ = f"id{number // 2}"
        if number % 2 == 0:
            contents.append({**note, "kind": "attempt", "id": id_, "time": "t", "tenant": "x\0"})
        else:
            told = {"kind": "end", "id": id_, "time": "t", "status": "ok"}
            contents.append({**note, **told, "attempt": start + number})
    lines: list[chain.Line] = []
    for content in contents:
        lines.append(chain.line(start + len(lines), lines[-1].hash if lines else after, content))
    return lines


TRAILS = st.lists(CONTENT, min_size=1, max_size=8).map(trail)


def fixed(item: chain.Line, previous: str) -> chain.Line:
    """Somebody who knows how the hash is made, but does not go on to the end."""
    return item._replace(hash=chain.chained(previous, item.body)) if previous else item


@given(TRAILS)
def test_p2_what_was_written_is_sound(lines: list[chain.Line]) -> None:
    verdict = chain.verify(lines)
    assert (
        verdict.sound
        and verdict.lines == len(lines)
        and verdict.head == (lines[-1].seq, lines[-1].hash)
    )
    assert len(verdict.open) == len([1 for line in lines if line.kind == "attempt"]) - len(
        [1 for line in lines if line.kind == "end"]
    )
    for noted in lines:
        assert chain.verify(lines, head=f"{noted.seq}:{noted.hash}").sound
        assert chain.verify(lines, head=noted.hash.upper()).sound


@given(TRAILS, st.data())
def test_p2_an_edit_is_found_where_it_is(lines: list[chain.Line], data: st.DataObject) -> None:
    where = data.draw(st.integers(0, len(lines) - 1))
    field = data.draw(st.sampled_from(chain.Line._fields))
    old = getattr(lines[where], field)
    noted = lines[-1].hash
    new = data.draw(st.integers() if field == "seq" else st.text(max_size=len(old) + 2))
    if field == "body" and data.draw(st.booleans()):  # one that is still a line
        content = json.loads(old)
        content[data.draw(st.sampled_from(sorted(content)))] = data.draw(st.text(max_size=3))
        new = records.canonical(content)
    assume(new != old)
    lines[where] = lines[where]._replace(**{field: new})
    if data.draw(st.booleans()) and lines[where].body.isascii() and field == "body":
        lines[where] = fixed(lines[where], lines[where - 1].hash if where else records.GENESIS)
    verdict = chain.verify(lines)
    if field in ("body", "hash") and where == len(lines) - 1 and verdict.sound:
        # The newest line alone can be written anew: only a head that was noted down shows it.
        assert field == "body"
        assert not chain.verify(lines, head=noted).sound
        return
    assert not verdict.sound
    assert verdict.lines <= where + 1


@given(TRAILS, st.data())
def test_p2_swaps_deletions_and_duplicates_are_found(
    lines: list[chain.Line], data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(lines) - 1))
    second = data.draw(st.integers(0, len(lines) - 1))
    tampered = list(lines)
    match data.draw(st.sampled_from(["swap", "delete", "duplicate"])):
        case "swap":
            assume(first != second)
            tampered[first], tampered[second] = tampered[second], tampered[first]
        case "delete":
            assume(first != len(lines) - 1)
            del tampered[first]
        case "duplicate":
            tampered.insert(second, tampered[first])
    if data.draw(st.booleans()):  # with numbers that fit again
        tampered = [line._replace(seq=seq) for seq, line in enumerate(tampered, start=1)]
    assert not chain.verify(tampered).sound


@given(TRAILS, st.data())
def test_p2_a_cut_end_is_found_by_a_head_that_was_noted_down(
    lines: list[chain.Line], data: st.DataObject
) -> None:
    left = data.draw(st.integers(1, len(lines) - 1))
    noted = lines[-1]
    assert chain.verify(lines[:left]).sound
    for head in (noted.hash, f"{noted.seq}:{noted.hash}"):
        assert not chain.verify(lines[:left], head=head).sound
    assert not chain.verify(lines, head=f"{noted.seq}:{noted.hash[:-1]}").sound
    assert not chain.verify(lines, head=f"{noted.seq + 1}:{noted.hash}").sound


def pruned(lines: list[chain.Line], cut: int) -> tuple[list[chain.Line], tuple[int, str]]:
    """As `prune` does it: from the line `cut` on, and one more that says so."""
    anchor = (cut, lines[cut - 2].hash)
    told = {"kind": "pruned", "time": "t", "first": cut, "after": anchor[1]}
    rest = lines[cut - 1 :]
    return [*rest, chain.line(rest[-1].seq + 1, rest[-1].hash, told)], anchor


@given(TRAILS, st.data())
def test_p2_what_pruning_left_is_sound_and_nothing_else(
    lines: list[chain.Line], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(2, len(lines)))
    left, anchor = pruned(lines, cut)
    assert chain.anchor_of(line.body for line in left if line.kind == "pruned") == anchor
    verdict = chain.verify(left, anchor=anchor)
    assert verdict.sound and verdict.first == cut
    for head in (f"{anchor[0] - 1}:{anchor[1]}", anchor[1]):
        assert "nothing before or after" in chain.verify(left, anchor=anchor, head=head).problem
        assert chain.verify(left, anchor=anchor, head=head, allow_pruned=True).sound
    assert not chain.verify(left).sound
    assert not chain.verify(left[1:], anchor=anchor).sound
    assert not chain.verify(left[:-1], anchor=anchor).sound
    assert not chain.verify(left, anchor=(cut, records.GENESIS)).sound
    assert not chain.verify(lines, anchor=anchor).sound


def test_p2_an_end_without_its_attempt_and_a_second_end_are_found() -> None:
    attempt = {"kind": "attempt", "id": "a", "time": "t"}
    end = {"kind": "end", "id": "a", "time": "t", "status": "ok", "attempt": 2}
    began = {"kind": "began", "id": "b", "time": "t"}

    def made(*contents: dict[str, object]) -> chain.Verdict:
        lines: list[chain.Line] = []
        for content in contents:
            before = lines[-1].hash if lines else records.GENESIS
            lines.append(chain.line(len(lines) + 1, before, content))
        return chain.verify(lines)

    assert made(began, attempt, end).sound
    assert not made(began, end).sound
    assert not made(began, attempt, end, end).sound
    assert not made(began, attempt, {**end, "attempt": 1}).sound
    assert not made(attempt, end).sound


def test_p2_what_was_tried_belongs_to_what_was_under_way() -> None:
    """N1: an attempt to reach something stands between its run's beginning and end."""

    def lines_of(*contents: dict[str, object]) -> list[chain.Line]:
        lines: list[chain.Line] = []
        for content in ({"kind": "began", "id": "b"}, *contents):
            after = lines[-1].hash if lines else records.GENESIS
            lines.append(chain.line(len(lines) + 1, after, {"time": "t", **content}))
        return lines

    attempt: dict[str, object] = {"kind": "attempt", "id": "a"}
    tried: dict[str, object] = {"kind": "egress", "id": "a", "status": "refused", "attempt": 2}
    end: dict[str, object] = {"kind": "end", "id": "a", "status": "ok", "attempt": 2}
    assert chain.verify(lines_of(attempt, tried, tried, end)).sound
    for wrong in (
        lines_of(attempt, end, tried),
        lines_of(tried, attempt),
        lines_of(attempt, {**tried, "attempt": 1}),
        lines_of(attempt, {**tried, "id": "c"}),
    ):
        assert "was not under way" in chain.verify(wrong).problem
    whole = lines_of(attempt, tried, tried, end)
    left = chain.verify(whole[3:], anchor=(4, whole[2].hash))
    assert "nothing in the trail says" in left.problem  # and no other complaint


@given(TRAILS)
def test_p2_an_export_is_checked_by_anybody(lines: list[chain.Line]) -> None:
    """The few lines of docs/trail.md, and our own reader."""
    rows = [chain.exported(line) + "\n" for line in lines]
    previous = bytes(32)
    for row in rows:
        previous = hashlib.sha256(previous + row[82:-2].encode()).digest()
        assert previous.hex() == row[9:73]
    assert list(chain.read_export(rows)) == lines


@given(st.text())
def test_p2_what_is_no_export_is_said_to_be_none(text: str) -> None:
    def read() -> list[chain.Line]:
        return list(chain.read_export([text]))

    assert _refused(read)
    assert not chain.verify([], head=text).sound


def _refused(read: Callable[[], object]) -> bool:
    try:
        read()
    except ValueError:
        return True
    return False


@given(TRAILS, st.data())
def test_p2_what_follows_a_damaged_place_is_checked_too(
    lines: list[chain.Line], data: st.DataObject
) -> None:
    """One damage is one problem, and a second one behind it is found as well."""
    where = data.draw(st.integers(0, len(lines) - 1))
    damaged = list(lines)
    damaged[where] = lines[where]._replace(body=lines[where].body[:-1] + ',"x":1}')
    verdict = chain.verify(damaged)
    assert [problem.at for problem in verdict.problems] == [lines[where].seq]
    assert (verdict.lines, verdict.after) == (where, len(lines) - where - 1)
    assert verdict.head == (lines[-1].seq, lines[-1].hash)
    again = data.draw(st.integers(0, len(lines) - 1))
    assume(abs(again - where) > 1)
    damaged[again] = lines[again]._replace(tenant="another")
    places = sorted((lines[where].seq, lines[again].seq))
    assert [problem.at for problem in chain.verify(damaged).problems] == places
    del damaged[where]
    found = [problem.at for problem in chain.verify(damaged).problems]
    assert lines[again].seq in found and len(found) == (1 if where == len(lines) - 1 else 2)


def test_p2_what_a_process_tells_that_was_taken_for_dead_is_no_tampering() -> None:
    contents: list[dict[str, object]] = [
        {"kind": "began", "id": "b"},
        {"kind": "attempt", "id": "a"},
        {"kind": "lost", "id": "a", "status": "lost", "attempt": 2},
        {"kind": "egress", "id": "a", "status": "refused", "attempt": 2},
        {"kind": "egress", "id": "a", "status": "refused", "attempt": 1},
    ]
    lines: list[chain.Line] = []
    for content in contents:
        after = lines[-1].hash if lines else records.GENESIS
        lines.append(chain.line(len(lines) + 1, after, {"time": "t", **content}))
    assert chain.verify(lines[:4]).sound
    assert [problem.at for problem in chain.verify(lines).problems] == [5]
