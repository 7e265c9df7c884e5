"""What one tenant may write in a minute, whatever wrote it; what is beyond that is counted.

A refusal costs a caller nothing and the trail two lines, and an attempt to reach something costs
code next to nothing: either could fill the disk, and then nobody runs anything. What ran always has
its own lines; quotas bound how much that is.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from belljar.trail import records

if TYPE_CHECKING:
    from belljar.trail.entry import Content, Entry
    from belljar.trail.writer import Item

TENANT_BYTES_A_MINUTE = 4 << 20
"""Of one tenant's lines; after that its long ones are cut to small fields and a hash. As much again
may be refusals and attempts over the network; after that those are counted."""
COUNTED_S = 1.0
"""How long they are counted before the number is written."""
MOST_KINDS = 20
"""Of one tenant's attempts that no rule allowed; those beyond are told by their verdict alone."""
_DIFFER = "many attempts that differ, counted together"
_SUMS = ("count", "bytes_sent", "bytes_received")
_WHOSE = frozenset({"kind", "id", "time", "tenant", "status", "sandbox", "at"})


class Counted(NamedTuple):
    """Attempts that were refused and have no line of their own."""

    tenant: str
    what: str
    why: str


class Crowd:
    """The accounts of one writer. `counted` and `is_full` are for any thread, the rest for the one
    that writes."""

    def __init__(self, wake: Callable[[], object]) -> None:
        """`wake`: there is something to be written in COUNTED_S."""
        self._wake = wake
        self._lock = threading.Lock()
        self._minute = 0
        self._bytes: Counter[str] = Counter()
        self._free: Counter[str] = Counter()
        """Of these, what cost its tenant nothing."""
        self._refused: Counter[Counted] = Counter()
        self._groups: dict[tuple[object, ...], _Group] = {}
        self._kinds: Counter[str] = Counter()
        self._due = 0.0

    def __bool__(self) -> bool:
        return bool(self._refused or self._groups)

    # -- accounts --------------------------------------------------------------------------------

    def allows(self, tenant: str, size: int, *, free: bool) -> bool:
        """Counts a line; False: only what is short may be written."""
        with self._lock:
            self._look_at_clock()
            if free:
                self._free[tenant] += min(size, records.SHORT_BYTES)
            self._bytes[tenant] += min(size, records.SHORT_BYTES)
            if size <= records.SHORT_BYTES:
                return True
            if self._bytes[tenant] + size > TENANT_BYTES_A_MINUTE:
                return False
            self._bytes[tenant] += size - records.SHORT_BYTES
            if free:
                self._free[tenant] += size - records.SHORT_BYTES
            return True

    def is_full(self, tenant: str) -> bool:
        with self._lock:
            self._look_at_clock()
            return self._free[tenant] >= TENANT_BYTES_A_MINUTE

    def _look_at_clock(self) -> None:
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute = minute
            self._bytes.clear()
            self._free.clear()

    def _begin(self) -> None:
        if not self:
            self._due = time.monotonic() + COUNTED_S
            self._wake()

    # -- refusals --------------------------------------------------------------------------------

    def counted(self, entry: Entry, ended: Content) -> bool:
        """Whether this one, which never began, needs no line: it is told by its number."""
        if ended.get("status") != "refused" or not self.is_full(entry.tenant):
            return False
        count = ended.get("count")
        kind = Counted(entry.tenant, entry.action, str(ended.get("error") or ""))
        with self._lock:
            self._begin()
            self._refused[kind] += count if type(count) is int else 1
        return True

    def refused(self, *, all_: bool) -> list[tuple[Counted, int]]:
        """Those to be told now; they are forgotten here."""
        with self._lock:
            if not all_ and time.monotonic() < self._due:
                return []
            found, self._refused = list(self._refused.items()), Counter()
        return found

    # -- attempts over the network ---------------------------------------------------------------

    def sift(self, batch: Iterable[Item], *, all_: bool) -> list[Item]:
        """What is to be written now; the rest is counted and comes later, before the end of its
        attempt in any case."""
        kept: list[Item] = []
        for item in batch:
            if item.kind == "egress" and self.is_full(item.entry.tenant):
                self._join(item)
                continue
            if item.kind == "end" and self._groups:
                kept += self._told(item.entry.id)
            kept.append(item)
        if self._groups and (all_ or time.monotonic() >= self._due):
            kept += self._told()
        return kept

    def _join(self, item: Item) -> None:
        said, tenant = item.content, item.entry.tenant
        # What a rule allowed may have reached somebody: that host is always told.
        allowed = said["status"] == "allowed" or bool(said.get("rule"))
        names = ("status", "run", "host", "port", *(("method",) if allowed else ("why",)))
        key: tuple[object, ...] = (item.entry.id, *(said.get(name) for name in names))
        if key not in self._groups and not allowed:
            if self._kinds[tenant] >= MOST_KINDS:
                key = (item.entry.id, said["status"])
            else:
                self._kinds[tenant] += 1
        if group := self._groups.get(key):
            group.add(item, alone=len(key) > 2)
            return
        with self._lock:
            self._begin()
        self._groups[key] = _Group(item)

    def _told(self, id_: str = "") -> list[Item]:
        """Of one attempt, or of all."""
        groups = {key: one for key, one in self._groups.items() if id_ in ("", key[0])}
        for key in groups:
            del self._groups[key]
        if not self._groups:
            self._kinds.clear()
        return [group.told() for group in groups.values()]


class _Group:
    """Attempts that are one line. The first stands for all, and whoever waits for one of them waits
    for that line."""

    def __init__(self, first: Item) -> None:
        self._first = first
        self._said: dict[str, Any] = dict(first.content)
        self._hash = hashlib.sha256(records.canonical(first.content).encode())

    def add(self, item: Item, *, alone: bool) -> None:
        """`alone`: they are of one kind, else of one verdict only."""
        said, other = self._said, item.content
        self._first.others.append(item)
        self._hash.update(records.canonical(other).encode())
        sums = {name: _number(said.get(name)) + _number(other.get(name)) for name in _SUMS[1:]}
        sums["count"] = _number(said.get("count"), 1) + _number(other.get("count"), 1)
        for name in [*said]:  # none of them is shown with another's
            if name not in _WHOSE and name not in _SUMS and said[name] != other.get(name):
                del said[name]
        said.update({name: value for name, value in sums.items() if value})
        if not alone:
            said["why"] = _DIFFER

    def told(self) -> Item:
        item = self._first
        if item.others:
            item.said = {**self._said, "counted_sha256": self._hash.hexdigest()}
        return item


def _number(value: object, otherwise: int = 0) -> int:
    return value if type(value) is int else otherwise
