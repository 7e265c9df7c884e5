"""What could not be written to the trail, and is written when that works again: a disk fault leaves
no attempt open, and none unrecorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from belljar.trail.writer import Item

MOST_LATE = 10_000
"""Lines about the network that are kept; further ones are only counted."""
UNWRITTEN = "TrailError"


class Refused(NamedTuple):
    """Attempts without a line of their own."""

    tenant: str
    why: str
    number: int


class Owed:
    def __init__(self) -> None:
        self.doubtful: set[str] = set()
        """Attempts whose callers were told that they, or their ends, are not in the trail."""
        self.late: list[Item] = []
        """What was tried over the network; nothing came of it, since it could not be written."""
        self._left_out = 0
        self._refused: Counter[tuple[str, str]] = Counter()

    def __bool__(self) -> bool:
        return bool(self.doubtful or self.late or any(self._refused.values()))

    def failed(self, batch: Iterable[Item]) -> None:
        """A transaction with these was not made."""
        for item in batch:
            if item.kind == "egress":
                if len(self.late) < MOST_LATE:
                    self.late.append(item)
                else:
                    self._left_out += 1
                continue
            self.doubtful.add(item.entry.id)
            self.turned_away(item)

    def turned_away(self, item: Item) -> None:
        """It has no line, nor has its attempt: nothing ran."""
        if item.entry.seq:
            return
        if item.kind == "attempt":
            self._refused[item.entry.tenant, UNWRITTEN] += 1
        elif item.kind == "end" and item.content.get("status") == "refused":
            # Refused for another reason, and perhaps many at once.
            why, count = str(item.content.get("error") or UNWRITTEN), item.content.get("count")
            self._refused[item.entry.tenant, UNWRITTEN] -= 1
            self._refused[item.entry.tenant, why] += count if type(count) is int else 1

    def refused(self) -> list[Refused]:
        return [Refused(*who, count) for who, count in self._refused.items() if count > 0]

    def late_contents(self) -> list[tuple[Item, dict[str, Any]]]:
        """The last of them says how many were left out."""
        told = [(item, dict(item.content)) for item in self.late]
        if self._left_out and told:
            told[-1][1]["left_out"] = self._left_out
        return told

    def paid(self) -> None:
        """All of it was written."""
        self.doubtful.clear()
        self.late.clear()
        self._left_out = 0
        for who in [who for who, count in self._refused.items() if count >= 0]:
            del self._refused[who]
