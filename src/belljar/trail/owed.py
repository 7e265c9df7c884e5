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
    what: str
    why: str
    number: int


class Owed:
    def __init__(self) -> None:
        self.doubtful: set[str] = set()
        """Attempts that may be in the trail although their callers were told that they, or their
        ends, are not. No more than were under way when the trouble began, and one transaction."""
        self.late: list[Item] = []
        """What was tried over the network; nothing came of it, since it could not be written."""
        self._left_out = 0
        self._refused: Counter[tuple[str, str, str]] = Counter()

    def __bool__(self) -> bool:
        return bool(self.doubtful or self.late or any(self._refused.values()))

    def failed(self, batch: Iterable[Item], *, tried: bool) -> None:
        """A transaction with these was not made. `tried`: those that begin something were in it."""
        for item in batch:
            if item.kind == "egress":
                if len(self.late) < MOST_LATE:
                    self.late.append(item)
                else:
                    count = item.content.get("count")
                    self._left_out += count if type(count) is int else 1
                continue
            if item.entry.seq or (tried and item.kind == "attempt"):
                self.doubtful.add(item.entry.id)
            self.turned_away(item)

    def turned_away(self, item: Item) -> None:
        """It has no line, nor has its attempt: nothing ran."""
        entry = item.entry
        if entry.seq:
            return
        if item.kind == "attempt":
            self.count(entry.tenant, entry.action, UNWRITTEN, 1)
        elif item.kind == "end" and item.content.get("status") == "refused":
            # Refused for another reason, and perhaps many at once.
            why, count = str(item.content.get("error") or UNWRITTEN), item.content.get("count")
            if not item.begins:  # its attempt was counted
                self.count(entry.tenant, entry.action, UNWRITTEN, -1)
            self.count(entry.tenant, entry.action, why, count if type(count) is int else 1)
        elif item.begins:
            self.count(entry.tenant, entry.action, UNWRITTEN, 1)

    def count(self, tenant: str, what: str, why: str, number: int) -> None:
        self._refused[tenant, what, why] += number

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
