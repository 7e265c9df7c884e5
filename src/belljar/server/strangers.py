"""Connections on which nobody has shown a key: few for each address, none for long.

A connection is a stranger's from its first byte until the gate has admitted a request on it. Until
then it has a clock, and gives way to others when there are too many.
"""

from __future__ import annotations

from asyncio import TimerHandle

from belljar.server.reading import Reading

LEAST_STRANGERS = 16
"""Connections of one address that may wait to show a key, however few there are in all."""
GRACE_S = 5.0
"""Of a crowd that comes at once all are accepted before the first is read."""


class Stranger(Reading):
    """For a protocol of uvicorn, before its own class."""

    strangers: dict[str, dict[Stranger, None]]
    """By address, the oldest first; the same one for all connections of a server."""
    idle: dict[str, dict[Stranger, None]]
    """Between two requests, by tenant, the longest idle first; likewise."""
    client: tuple[str, int] | None
    tenant_name = ""
    """Whose key came last."""
    idle_since = 0.0
    _clock: TimerHandle | None = None

    def may_give_way(self) -> bool:
        """Whether nothing of anybody's is lost if it is closed."""
        raise NotImplementedError

    def too_slow(self) -> None:
        """Called when the clock has run down."""
        raise NotImplementedError

    def is_strange(self) -> None:
        """It takes a place among those of its address: the oldest one's if there is no other."""
        self.idle_since = self.loop.time()
        there = self.strangers.setdefault(self._address, {})
        if len(there) >= max(LEAST_STRANGERS, self.belljar.settings.connections // 4):
            oldest = next(iter(there))
            if self.loop.time() - oldest.idle_since >= GRACE_S:
                oldest.give_way()
                there = self.strangers.setdefault(self._address, {})
        there[self] = None

    def is_known(self) -> None:
        """Somebody's request is under way on it, or it is gone."""
        for known, name in ((self.strangers, self._address), (self.idle, self.tenant_name)):
            if there := known.get(name):
                there.pop(self, None)
            if not there:
                known.pop(name, None)

    def is_idle(self) -> None:
        """A tenant's request was answered on it, and the next one may come, or begins to."""
        self.idle_since = self.loop.time()
        there = self.idle.setdefault(self.tenant_name, {})
        there.pop(self, None)
        there[self] = None
        if len(there) > max(LEAST_STRANGERS, self.belljar.settings.connections // 4):
            next(iter(there)).give_way()

    def found_room(self) -> bool:
        """Closes a connection on which nothing is under way: a stranger's if there is one, else one
        of the tenant that has the most of them; of these the one that was idle longest. Nothing
        here looks at every connection: those who come while all are taken would slow it down."""
        oldest = [
            next((one for one in there if one is not self), None)
            for there in self.strangers.values()
        ]
        if strange := [one for one in oldest if one is not None]:
            min(strange, key=lambda one: one.idle_since).give_way()
        elif self.idle:
            most = max(map(len, self.idle.values()))
            there = next(there for there in self.idle.values() if len(there) == most)
            next(iter(there)).give_way()
        else:
            return False
        return True

    def give_way(self) -> None:
        self.is_known()
        if self.transport.get_write_buffer_size():
            self.cut()  # closing would wait until it is read
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_clock()
        self.is_known()
        super().connection_lost(exc)

    def start_clock(self) -> None:
        self._clock = self.loop.call_later(self.belljar.settings.header_timeout_s, self.too_slow)

    def stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""
